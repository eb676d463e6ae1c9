//! What crosses the border to other libraries: `cudarc`'s traits, DLPack, and bytes set to zero.
//! Unsafe code of this crate stands here and in `real` only.
#![allow(unsafe_code)]

#[cfg(feature = "cudarc")]
mod cuda;
pub mod dlpack;
mod pinned;
mod zeros;

#[cfg(feature = "cudarc")]
pub use cuda::InUse;
