//! Plain memory: requests of a thread whose blocks can be given to other processes and libraries by
//! the driver's own handles, which it makes of plain segments alone.

use std::fmt;
use std::marker::PhantomData;
use std::thread;

use crate::allocator::Allocator;

impl Allocator {
    /// Requests of the calling thread get blocks of plain segments from now on, whatever the
    /// settings say, until [`Allocator::end_plain`] was called as often. They are cut from
    /// segments, cached and given back like all others; a private pool's come from that pool.
    pub fn begin_plain(&self) {
        self.lock().heap.pools_mut().begin_plain(thread::current().id());
    }

    /// Ends what the calling thread began last. False if it began nothing.
    pub fn end_plain(&self) -> bool {
        self.lock().heap.pools_mut().end_plain(thread::current().id())
    }

    /// Plain memory for requests of the calling thread as long as the value lives.
    ///
    /// ```
    /// # use larder_core::{Addr, Allocator, Error, StreamId};
    /// # fn example(allocator: &Allocator) -> Result<Addr, Error> {
    /// let _plain = allocator.plain_memory();
    /// // `cuIpcGetMemHandle` takes it, and so do RDMA libraries.
    /// allocator.malloc(1 << 30, StreamId(0))
    /// # }
    /// ```
    #[must_use = "plain memory is had as long as the value lives"]
    pub fn plain_memory(&self) -> PlainMemory<'_> {
        self.begin_plain();
        PlainMemory { allocator: self, thread: PhantomData }
    }
}

/// As long as it lives, requests of the thread that made it get plain memory.
pub struct PlainMemory<'a> {
    allocator: &'a Allocator,
    /// It ends on the thread on which it began.
    thread: PhantomData<*const ()>,
}

impl Drop for PlainMemory<'_> {
    fn drop(&mut self) {
        self.allocator.end_plain();
    }
}

impl fmt::Debug for PlainMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainMemory").finish_non_exhaustive()
    }
}
