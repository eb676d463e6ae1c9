//! The real GPU, and its streams. Unsafe code of this crate stands here and in `interop` only.
#![allow(unsafe_code)]

pub(crate) mod gpu;
pub(crate) mod stream;
