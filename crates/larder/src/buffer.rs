//! Buffers: elements of one type on a GPU.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::AnyBitPattern;
use larder_core::allocator::share::Shared;

use crate::allocator::Allocator;
use crate::block::Block;
use crate::error::{Error, FreeError};
use crate::stream::Stream;

/// Elements of one type on a GPU, which free themselves in the order of their stream.
///
/// On a real GPU, with the feature `cudarc`, a buffer goes straight into that crate: it implements
/// `DeviceSlice`, `DevicePtr` and `DevicePtrMut`, so copies and cuBLAS calls take it. Used on
/// another stream than its own in this way, it makes the streams wait for each other, and it is
/// handed out again only when that stream is done with it.
///
/// A launch takes it as an argument, too, but does not tell it on which stream: given `&buffer`
/// itself, a launch on another stream than the buffer's own waits for nothing, and nothing waits
/// for it. For such launches there are [`Buffer::read_on`] and [`Buffer::write_on`]; and for code
/// that gets the plain [address](Buffer::addr), [`Buffer::record_stream`].
pub struct Buffer<T> {
    block: Block,
    len: usize,
    /// The elements are on the GPU: sending the buffer sends none of them.
    element: PhantomData<fn() -> T>,
}

impl<T> Buffer<T> {
    pub(crate) fn new(block: Block, len: usize) -> Buffer<T> {
        Buffer { block, len, element: PhantomData }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many bytes the elements have.
    pub fn size_bytes(&self) -> u64 {
        self.block.size_bytes()
    }

    /// Where the elements are, as a number: on a real GPU, the value of a device pointer.
    pub fn addr(&self) -> u64 {
        self.block.addr()
    }

    /// The stream on which the buffer was handed out.
    pub fn stream(&self) -> &Stream {
        self.block.stream()
    }

    /// The bytes themselves.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// The bytes themselves, without their type.
    pub fn into_block(self) -> Block {
        self.block
    }

    /// The buffer is used on this stream too: once freed it is handed out again only when the work
    /// issued there by then is done. See [`Block::record_stream`].
    ///
    /// ```
    /// # use larder::Allocator;
    /// let allocator = Allocator::simulated(0)?;
    /// let [compute, copy] = [allocator.new_stream()?, allocator.new_stream()?];
    /// let batch = allocator.alloc::<f32>(300_000, &compute)?;
    /// batch.record_stream(&copy)?;
    /// drop(batch);
    /// assert_eq!(allocator.stats().active.all.current, 1, "the other stream may still read it");
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn record_stream(&self, stream: impl Into<Stream>) -> Result<(), Error> {
        self.block.record_stream(stream)
    }

    /// What another process needs to use the buffer. See [`Block::share`].
    pub fn share(&self) -> Result<Shared, Error> {
        self.block.share()
    }

    /// Frees the buffer as dropping it does. If that goes wrong, the buffer comes back with the
    /// error.
    #[allow(clippy::result_large_err)] // The buffer itself is in it.
    pub fn free(self) -> Result<(), FreeError<Buffer<T>>> {
        let len = self.len;
        self.block.free().map_err(|FreeError { error, unfreed }| FreeError {
            error,
            unfreed: unfreed.map(|block| Buffer::new(block, len)),
        })
    }
}

impl Allocator {
    /// `len` elements for use on the stream. What they hold is whatever was there before, and any
    /// bytes are values of such a type.
    pub fn alloc<T: AnyBitPattern>(
        &self,
        len: usize,
        stream: impl Into<Stream>,
    ) -> Result<Buffer<T>, Error> {
        let too_large = Error::TooLarge { len, element_bytes: size_of::<T>() };
        let size_bytes = len.checked_mul(size_of::<T>()).ok_or(too_large)?;
        let block = self.alloc_block(size_bytes as u64, stream)?;
        Ok(Buffer::new(block, len))
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "Buffer<{element}>({} at {:#x})", self.len, self.addr())
    }
}
