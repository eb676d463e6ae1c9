//! What crosses the border to other libraries: the real GPU's streams, `cudarc`'s traits, and DLPack.
//! The unsafe code of this crate stands here and nowhere else.
#![allow(unsafe_code)]

#[cfg(feature = "cudarc")]
mod cuda;
pub mod dlpack;
#[cfg(feature = "cuda")]
pub(crate) mod real;
#[cfg(feature = "cudarc")]
mod uses;

#[cfg(feature = "cudarc")]
pub use cuda::InUse;
#[cfg(feature = "cudarc")]
pub(crate) use uses::Uses;

#[cfg(feature = "cuda")]
use crate::{block::Block, error::Error};

/// Sets the bytes of a block to zero, in the order of its own stream.
#[cfg(feature = "cuda")]
pub(crate) fn set_zero(block: &Block, gpu: &real::RealGpu) -> Result<(), Error> {
    let span = larder_core::types::Span::new(larder_core::Addr(block.addr()), block.size_bytes());
    // SAFETY: the block has that many bytes, and it is live: it goes back in the order of this very
    // stream.
    unsafe { gpu.zero(span, block.stream().id()) }
}
