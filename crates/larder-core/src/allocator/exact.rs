//! Exact: the calls about memory at an address: a request for it, and a remark on it.

use crate::allocator::Allocator;
use crate::error::{AddressProblem, Error, PoolProblem};
use crate::heap::size::{BLOCK_UNIT_BYTES, REQUEST_LIMIT_BYTES};
use crate::record::event::Level;
use crate::types::{Addr, StreamId};

impl Allocator {
    /// Memory of at least `size_bytes`, for use on `stream`, at this very address: where a program
    /// that is run again had it before, say. A free block of the pool and the stream that a plain
    /// request would be served from must hold all of it; the device is not asked for more. No bytes
    /// are at address 0.
    ///
    /// What lies before the address in its block is handed out and given back on the way, which is
    /// counted, and shown by the history, as one allocation more. The history marks all that is
    /// done for such a request.
    pub fn malloc_at(&self, size_bytes: u64, stream: StreamId, addr: Addr) -> Result<Addr, Error> {
        let not_at = |problem| Error::NotAt { addr, size_bytes, stream, problem };
        if size_bytes == 0 {
            return Ok(Addr(0));
        }
        if !addr.0.is_multiple_of(BLOCK_UNIT_BYTES) {
            return Err(not_at(AddressProblem::Unaligned(BLOCK_UNIT_BYTES)));
        }
        if size_bytes >= REQUEST_LIMIT_BYTES {
            return Err(not_at(AddressProblem::NotFree));
        }
        let mut inner = self.enter(Level::State);
        let result = inner.want(&*self.device, size_bytes, stream).and_then(|want| {
            match inner.heap.inventory().symmetric_for(&want) {
                Some(pool) => Err(Error::pool(pool)(PoolProblem::Symmetric)),
                None => inner.heap.take_at(&want, addr).ok_or(not_at(AddressProblem::NotFree)),
            }
        });
        drop(inner);
        self.leave_with(result)
    }

    /// Remembers what the program says about a live block, as an entry of the history of its own.
    pub fn annotate_memory(&self, addr: Addr, remark: &str) -> Result<(), Error> {
        let mut inner = self.enter(Level::Alloc);
        let block = inner.heap.live(addr).ok_or(Error::UnknownAddress(addr));
        let result = block.map(|block| inner.heap.record_remark(block, remark));
        drop(inner);
        self.leave();
        result
    }
}
