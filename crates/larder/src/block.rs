//! Blocks: bytes of a GPU that free themselves.

#[cfg(feature = "cudarc")]
use cudarc::driver::{CudaStream, SyncOnDrop};
use larder_core::Addr;
use larder_core::allocator::share::Shared;

use crate::allocator::Allocator;
use crate::error::{Error, FreeError};
use crate::stream::Stream;
#[cfg(feature = "cudarc")]
use crate::uses::{Access, Uses};

/// Bytes on a GPU. Dropping the block gives them back to the cache in the order of its stream: the
/// next block there may be the same bytes, and comes after the work that uses this one.
#[derive(Debug)]
pub struct Block {
    allocator: Allocator,
    addr: Addr,
    size_bytes: u64,
    stream: Stream,
    #[cfg(feature = "cudarc")]
    uses: Uses,
}

impl Block {
    pub(crate) fn new(allocator: Allocator, addr: Addr, size_bytes: u64, stream: Stream) -> Block {
        Block {
            allocator,
            addr,
            size_bytes,
            stream,
            #[cfg(feature = "cudarc")]
            uses: Uses::default(),
        }
    }

    /// Where the bytes are, as a number: on a real GPU, the value of a device pointer. No bytes are
    /// at 0.
    pub fn addr(&self) -> u64 {
        self.addr.0
    }

    /// The address, at a place that a kernel's arguments can point to.
    #[cfg(feature = "cudarc")]
    pub(crate) fn addr_place(&self) -> &u64 {
        &self.addr.0
    }

    /// How many bytes were asked for.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The stream on which the block was handed out.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The allocator that the block goes back to.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Makes the block's own stream wait for its uses on others.
    #[cfg(feature = "cudarc")]
    fn wait_for_uses(&self) -> Result<(), Error> {
        Ok(self.stream.cuda().map_or(Ok(()), |own| self.uses.wait(own))?)
    }

    /// The block is about to be used on the stream: makes the stream wait for what it must, and
    /// returns what notes the end of the use.
    #[cfg(feature = "cudarc")]
    pub(crate) fn use_on<'a>(&'a self, stream: &'a CudaStream, access: Access) -> SyncOnDrop<'a> {
        let Some(own) = self.stream.cuda() else {
            panic!(
                "this memory is on a simulated GPU, which cudarc cannot reach; \
                 make the allocator with Allocator::cuda"
            )
        };
        self.uses.begin(own, stream, access)
    }

    /// The bytes are used on this stream too: once freed they are handed out again only when the
    /// work issued there by then is done.
    ///
    /// `cudarc`'s copies and cuBLAS calls take care of it by themselves. This is for what gets the
    /// plain address, and for launches: see [`Buffer::read_on`](crate::Buffer::read_on).
    pub fn record_stream(&self, stream: impl Into<Stream>) -> Result<(), Error> {
        let stream = stream.into();
        self.allocator.admit(&stream)?;
        self.allocator.record_stream(self.addr, stream.id())
    }

    /// Remembers what the program says about the block, as an event of its own of the history. A
    /// block of no bytes has none.
    pub fn annotate(&self, remark: &str) -> Result<(), Error> {
        if self.addr == Addr(0) { Ok(()) } else { self.allocator.annotate(self.addr, remark) }
    }

    /// What another process needs to use the bytes. The block must live until that process has
    /// closed them.
    pub fn share(&self) -> Result<Shared, Error> {
        self.allocator.share(self.addr)
    }

    /// Frees the block as dropping it does. If that goes wrong, the block comes back with the
    /// error.
    #[allow(clippy::result_large_err)] // The block itself is in it.
    pub fn free(mut self) -> Result<(), FreeError<Block>> {
        match self.give_back() {
            Ok(()) => Ok(()),
            Err(error) => {
                let unfreed = (self.addr != Addr(0)).then_some(self);
                Err(FreeError { error, unfreed })
            }
        }
    }

    /// Frees the bytes. They are this block's until that went well, or until it shows that somebody
    /// else freed them; then they may be somebody else's already.
    fn give_back(&mut self) -> Result<(), Error> {
        #[cfg(feature = "cudarc")]
        self.wait_for_uses()?;
        let freed = self.allocator.free(self.addr);
        let gone =
            matches!(freed, Ok(()) | Err(Error::Allocator(larder_core::Error::UnknownAddress(_))));
        if gone {
            self.addr = Addr(0);
        }
        freed
    }

    /// Gives the bytes to somebody who will free them by their address.
    pub fn leak(mut self) -> u64 {
        std::mem::take(&mut self.addr).0
    }
}

impl Allocator {
    /// Bytes for use on the stream.
    pub fn alloc_block(&self, size_bytes: u64, stream: impl Into<Stream>) -> Result<Block, Error> {
        let stream = stream.into();
        self.admit(&stream)?;
        let addr = self.malloc(size_bytes, stream.id())?;
        Ok(Block::new(self.clone(), addr, size_bytes, stream))
    }

    /// Bytes for use on the stream, at this very address: where a program that is run again had
    /// them before, say. What is free there must hold all of it, of the pool and the stream that
    /// [`Allocator::alloc_block`] would serve the request from.
    pub fn alloc_block_at(
        &self,
        size_bytes: u64,
        stream: impl Into<Stream>,
        addr: u64,
    ) -> Result<Block, Error> {
        let stream = stream.into();
        self.admit(&stream)?;
        let native = self.native("hand out memory at an address")?;
        let addr = native.malloc_at(size_bytes, stream.id(), Addr(addr))?;
        Ok(Block::new(self.clone(), addr, size_bytes, stream))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            self.allocator.note_drop_error(error);
        }
    }
}
