//! The simulated GPU.
#![forbid(unsafe_code)]
pub mod script;
