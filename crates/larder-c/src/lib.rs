//! Larder behind a C interface: `liblarder.so`, whose header is `include/larder.h`.
//!
//! The header is the contract, written by hand; a test compares it with what is here, name by name
//! and layout by layout. Each function of it is in the file of its subject. None of them unwinds:
//! `border` catches panics, keeps the last error of each thread, and holds all unsafe code.

mod addresses;
mod border;
mod checkpoint;
mod configure;
mod context;
mod history;
mod hooks;
mod larder;
#[cfg(test)]
mod layouts;
mod memory;
mod out_of_memory;
mod pools;
mod share;
mod snapshot;
mod sources;
mod stats;
mod symmetric;
mod torch;

use std::sync::Arc;

use larder_cuda::{CudaDevice, CudaError, CudaOptions};

/// A GPU for a host whose callers vouch for the streams that they name, as callers in C do: by a promise that
/// nothing checks.
pub fn open_trusting(index: u32) -> Result<Arc<CudaDevice>, CudaError> {
    Ok(Arc::new(border::trusting(CudaDevice::new(index, CudaOptions::default())?)))
}
