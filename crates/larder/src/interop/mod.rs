//! What crosses the border to other libraries: `cudarc`'s traits, and DLPack. The unsafe code of
//! this crate stands here and nowhere else.
#![allow(unsafe_code)]

mod cuda;
pub mod dlpack;
mod uses;

use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError, result};

use crate::block::Block;
pub use cuda::InUse;
pub(crate) use uses::Uses;

/// Sets the bytes of a block to zero, in the order of its own stream.
pub(crate) fn set_zero(block: &Block, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
    stream.context().bind_to_thread()?;
    let size_bytes = block.size_bytes() as usize;
    // SAFETY: the block has that many bytes, and it is live: it goes back in the order of this very
    // stream.
    unsafe { result::memset_d8_async(block.addr(), 0, size_bytes, stream.cu_stream()) }
}
