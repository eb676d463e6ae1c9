//! Memory that is set to zero before anybody has it.

use bytemuck::AnyBitPattern;

use crate::allocator::Allocator;
#[cfg(feature = "cuda")]
use crate::block::Block;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::stream::Stream;

impl Allocator {
    /// `len` elements for use on the stream, all zero once the work that the stream has so far is
    /// done. A simulated GPU has no bytes to set.
    pub fn alloc_zeros<T: AnyBitPattern>(
        &self,
        len: usize,
        stream: impl Into<Stream>,
    ) -> Result<Buffer<T>, Error> {
        let buffer = self.alloc(len, stream)?;
        #[cfg(feature = "cuda")]
        set_zero(buffer.block())?;
        Ok(buffer)
    }
}

/// Sets all bytes of a block to zero, in the order of its own stream.
#[cfg(feature = "cuda")]
fn set_zero(block: &Block) -> Result<(), Error> {
    let Some(gpu) = block.allocator().real_gpu().filter(|_| block.size_bytes() > 0) else {
        return Ok(());
    };
    let span = larder_core::types::Span::new(larder_core::Addr(block.addr()), block.size_bytes());
    // SAFETY: the block has that many bytes, and it is live: it goes back in the order of this very
    // stream.
    unsafe { gpu.zero(span, block.stream().id()) }
}
