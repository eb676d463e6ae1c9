//! What variables and keys are called, and how many simulated GPUs there may be.

use larder_core::config;

/// More simulated GPUs than this have no addresses of their own.
pub(super) const SIMULATED_MAX: u32 = 1024;
/// The variables that PyTorch reads, the older name first; the first that is set counts alone.
pub const TORCH_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
/// The variable whose settings are put on top.
pub const CONF_VARIABLE: &str = "LARDER_CONF";

pub(super) const POLICY_KEY: &str = "policy";
pub(super) const SNAPSHOT_KEY: &str = "oom_snapshot";
pub(super) const METRICS_KEY: &str = "metrics";
pub(super) const PINNED_KEY: &str = "pinned";
pub(super) const PINNED_LIMIT_KEY: &str = "pinned_limit";
pub(super) const PINNED_AHEAD_KEY: &str = "pinned_ahead";
pub(super) const PINNED_IDLE_KEY: &str = "pinned_idle_s";
pub(super) const CAPTURES_KEY: &str = "plain_captures";
/// The keys that PyTorch does not have. In a process with PyTorch they are all that `LARDER_CONF`
/// takes.
pub const OWN_KEYS: [&str; 13] = {
    // Taken apart by number, so that one more does not go unnoticed.
    let [pages, captures, views, soft, most, floor] = config::ALLOCATOR_KEYS;
    [
        POLICY_KEY,
        pages,
        captures,
        views,
        soft,
        most,
        floor,
        PINNED_KEY,
        PINNED_LIMIT_KEY,
        PINNED_AHEAD_KEY,
        PINNED_IDLE_KEY,
        SNAPSHOT_KEY,
        METRICS_KEY,
    ]
};
