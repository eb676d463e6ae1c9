//! Keys: the names of all settings, and since when PyTorch has them.

use crate::torch_version::TorchVersion;

pub(super) const KEYS: &[&str] = &[
    "backend",
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "throw_on_cudamalloc_oom",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "page_size_mb",
    "plain_captures",
    "tight_soft",
    "tight_most",
    "tight_floor_mb",
    "tight_views_percent",
];

/// The settings of an allocator that PyTorch does not have. Those of a process, such as the policy,
/// are read where devices are opened, outside of the core.
pub const ALLOCATOR_KEYS: [&str; 6] = [
    "page_size_mb",
    "plain_captures",
    "tight_views_percent",
    "tight_soft",
    "tight_most",
    "tight_floor_mb",
];

/// The first PyTorch that knows a setting, as far as that is one of those with a version here; none
/// if no PyTorch has it.
pub fn known_since(key: &str) -> Option<TorchVersion> {
    if ALLOCATOR_KEYS.contains(&key) || !KEYS.contains(&key) {
        return None;
    }
    Some(match key {
        "throw_on_cudamalloc_oom" | "pinned_free_catch_all" => TorchVersion::V2_12,
        "pinned_max_round_threshold_mb" | "pinned_max_cached_size_mb" => TorchVersion::V2_13,
        "expandable_segments_reserve" | "expandable_segments_reserve_by_class" => {
            TorchVersion::V2_15
        }
        _ => TorchVersion::V2_11,
    })
}
