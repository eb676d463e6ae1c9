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
mod pinned;
mod pools;
mod share;
mod sleep;
mod snapshot;
mod sources;
mod stats;
mod symmetric;
mod torch;

/// How large the structures of the header are that its callers fill in: whoever declares them on
/// his own can see that he still has all of them.
pub mod sizes {
    use crate::{configure, context, history, out_of_memory, pools, sources, stats};

    /// `larder_settings`.
    pub const SETTINGS_BYTES: usize = size_of::<configure::SettingValues>();
    /// `larder_source`.
    pub const SOURCE_BYTES: usize = size_of::<sources::Source>();
    /// `larder_filter`.
    pub const FILTER_BYTES: usize = size_of::<pools::Filter>();
    /// `larder_contexts`.
    pub const CONTEXTS_BYTES: usize = size_of::<context::ContextFunctions>();
    /// `larder_history_options`.
    pub const HISTORY_OPTIONS_BYTES: usize = size_of::<history::Options>();
    /// `larder_stats`.
    pub const STATS_BYTES: usize = size_of::<stats::Stats>();
    /// `larder_out_of_memory`.
    pub const OUT_OF_MEMORY_BYTES: usize = size_of::<out_of_memory::OutOfMemoryReport>();
}

use std::sync::Arc;

use larder_cuda::{CudaDevice, CudaError, CudaOptions};

/// A GPU for a host whose callers vouch for the streams that they name, as callers in C do: by a
/// promise that nothing checks.
pub fn open_trusting(index: u32) -> Result<Arc<CudaDevice>, CudaError> {
    Ok(Arc::new(border::trusting(CudaDevice::new(index, CudaOptions::default())?)))
}
