// Values of larder.h's as PyTorch's, and the other way round.

#pragma once

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "backend_hooks.hpp"
#include "larder.h"

namespace larder_torch {

// Errors.

[[noreturn]] inline void fail(larder_status status) {
  std::string text = larder_last_error();
  if (status == LARDER_OUT_OF_MEMORY) {
    // The error that the driver keeps must not come up again at the next launch of a kernel.
    (void)cudaGetLastError();
    // Programs look for PyTorch's own first words.
    auto rest = std::min(text.find(" out of memory"), text.size());
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA", text.substr(rest));
  }
  TORCH_CHECK_VALUE(status != LARDER_BAD_SETTING, text);
  TORCH_CHECK(false, text);
}

// What a function of PyTorch's threw in the call that has just returned comes before what Larder
// says.
inline void rethrow_kept() {
  if (auto kept = take_exception()) [[unlikely]] {
    std::rethrow_exception(kept);
  }
}

// Without a stream of C++'s: where a compiler brings a standard library of its own into this one,
// its streams cannot write numbers.
inline std::string address_text(const void* ptr) {
  char address[32];
  std::snprintf(address, sizeof(address), "%p", ptr);
  return ptr == nullptr ? "0" : address;
}

// In PyTorch's words, which programs look for.
[[noreturn]] inline void fail_at(larder_status status, void* ptr) {
  TORCH_CHECK(status != LARDER_UNKNOWN_ADDRESS, "invalid device pointer: " + address_text(ptr));
  TORCH_CHECK(
      status != LARDER_NOT_FREE,
      "no free memory of this stream lies at the exact address " + address_text(ptr));
  fail(status);
}

inline void check(larder_status status) {
  rethrow_kept();
  if (status != LARDER_OK) [[unlikely]] {
    fail(status);
  }
}

// Throws what a call about a pointer refused.
inline void check_at(larder_status status, void* ptr) {
  rethrow_kept();
  if (status != LARDER_OK) [[unlikely]] {
    fail_at(status, ptr);
  }
}

inline void warn_of(larder_status status) {
  if (status != LARDER_OK) {
    TORCH_WARN(larder_last_error());
  }
}

inline larder_pool_id to_larder(c10::MempoolId_t pool) {
  return {pool.first, pool.second};
}

// Settings.

// PyTorch's keys would be without effect: PyTorch's own values take their place.
inline void check_settings(const std::string& settings) {
  check(larder_check_own_settings("LARDER_CONF", settings.c_str()));
}

// Whether a settings text names a key. White space counts for nothing in it, and these letters part
// its words.
inline bool names(const std::string& text, const std::string& key) {
  std::string word;
  for (char letter : text + ",") {
    if (std::string(",:[]").find(letter) != std::string::npos) {
      if (word == key) {
        return true;
      }
      word.clear();
    } else if (std::isspace(static_cast<unsigned char>(letter)) == 0) {
      word += letter;
    }
  }
  return false;
}

// What PyTorch is told where nobody gave it settings. The comma means nothing to it; by the comma
// this text is told from one that a program asked for, also where a program saves what is in force
// and restores it.
constexpr const char* kProposal = "expandable_segments:True,";

// Where nobody gave PyTorch any settings, those of Larder's policy count, and PyTorch is told: what
// it says of its settings stays true. Whoever gives some means what they are in PyTorch.
inline void propose_settings(larder* larder) {
  using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
  larder_settings settings;
  check(larder_get_settings(larder, &settings));
  if (settings.expandable_segments && Common::last_allocator_settings().empty()) {
    c10::CachingAllocator::setAllocatorSettings(kProposal);
  }
}

// Whether captures have plain memory though other memory is expandable, by a text that was given to
// PyTorch. Whoever names expandable segments means what they are in PyTorch, captures' memory
// included; other keys change nothing of it.
inline bool has_plain_captures(const std::string& given, bool before) {
  return given == kProposal || (before && !names(given, "expandable_segments"));
}

// Puts PyTorch's settings in force. `given` is the text that was read last, if it decides about
// captures.
inline void apply_settings(larder* larder, const std::optional<std::string>& given) {
  using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
  using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  larder_settings settings;
  check(larder_get_settings(larder, &settings));
  settings.large_segment_bytes = Common::large_segment_size();
  settings.max_split_bytes = Common::max_split_size();
  settings.max_non_split_rounding_bytes = Common::max_non_split_rounding_size();
  settings.garbage_collection_threshold = Common::garbage_collection_threshold();
  const auto& divisions = Common::roundup_power2_divisions();
  for (size_t index = 0; index < LARDER_DIVISION_CLASSES; ++index) {
    settings.roundup_divisions[index] = index < divisions.size() ? divisions[index] : 0;
  }
  settings.expandable_segments = Common::use_expandable_segments();
  settings.release_lock_on_device_alloc = Cuda::release_lock_on_cudamalloc();
  settings.capture_reuse = Cuda::graph_capture_record_stream_reuse();
#if LARDER_TORCH >= 212
  settings.reject_above_fraction = Cuda::throw_on_cudamalloc_oom();
#endif
  settings.memory_fraction = Cuda::per_process_memory_fraction();
  if (given) {
    settings.plain_captures = has_plain_captures(*given, settings.plain_captures);
  }
  check(larder_set_settings(larder, &settings));
}

// Statistics.

inline c10::CachingAllocator::Stat to_torch(const larder_counter& counter) {
  c10::CachingAllocator::Stat stat;
  stat.current = counter.current;
  stat.peak = counter.peak;
  stat.allocated = counter.allocated;
  stat.freed = counter.freed;
  return stat;
}

inline c10::CachingAllocator::StatArray to_torch(const larder_counters& counters) {
  return {to_torch(counters.all), to_torch(counters.small_pool), to_torch(counters.large_pool)};
}

inline DeviceStats to_torch(const larder_stats& stats, larder* larder, int32_t device) {
  DeviceStats result;
  result.allocation = to_torch(stats.allocation);
  result.segment = to_torch(stats.segment);
  result.active = to_torch(stats.active);
  result.inactive_split = to_torch(stats.inactive_split);
  result.allocated_bytes = to_torch(stats.allocated_bytes);
  result.reserved_bytes = to_torch(stats.reserved_bytes);
  result.active_bytes = to_torch(stats.active_bytes);
  result.inactive_split_bytes = to_torch(stats.inactive_split_bytes);
  result.requested_bytes = to_torch(stats.requested_bytes);
  result.oversize_allocations = to_torch(stats.oversize_allocations);
  result.oversize_segments = to_torch(stats.oversize_segments);
  result.num_alloc_retries = stats.num_alloc_retries;
  result.num_ooms = stats.num_ooms;
  result.num_sync_all_streams = stats.num_sync_all_streams;
  result.num_device_alloc = stats.num_device_alloc;
  result.num_device_free = stats.num_device_free;
  result.max_split_size = stats.max_split_size;
#if LARDER_TORCH >= 212
  result.num_oom_rejections = stats.num_oom_rejections;
#endif
#if LARDER_TORCH >= 213
  size_t count = 0;
  check(larder_pool_reserved(larder, device, nullptr, nullptr, 0, &count));
  std::vector<larder_pool_id> pools(count);
  std::vector<larder_counters> reserved(count);
  check(larder_pool_reserved(larder, device, pools.data(), reserved.data(), count, &count));
  for (size_t index = 0; index < std::min(count, pools.size()); ++index) {
    c10::MempoolId_t pool{pools[index].a, pools[index].b};
    result.reserved_bytes_by_private_pools[pool] = to_torch(reserved[index]);
  }
#else
  (void)larder;
  (void)device;
#endif
  return result;
}

inline std::vector<larder_expandable> expandable_segments(larder* larder, int32_t device) {
  size_t count = 0;
  check(larder_expandable_segments(larder, device, nullptr, 0, &count));
  std::vector<larder_expandable> segments(count);
  check(larder_expandable_segments(larder, device, segments.data(), segments.size(), &count));
  segments.resize(std::min(count, segments.size()));
  return segments;
}

// Snapshots.

inline SegmentInfo to_torch(const larder_snapshot_segment& segment) {
  SegmentInfo info;
  info.device = static_cast<c10::DeviceIndex>(segment.device);
  info.address = segment.addr;
  info.total_size = segment.total_size;
  info.requested_size = segment.requested_size;
  info.allocated_size = segment.allocated_size;
  info.active_size = segment.active_size;
  info.stream = segment.stream;
  info.is_large = segment.is_large;
  info.is_expandable = segment.is_expandable;
  info.owner_private_pool_id = {segment.pool.a, segment.pool.b};
  info.registration_counter = static_cast<int32_t>(segment.serial);
  info.context_when_allocated = context_in(segment.context);
  info.blocks.reserve(segment.block_count);
  for (size_t index = 0; index < segment.block_count; ++index) {
    const larder_snapshot_block& block = segment.blocks[index];
    auto& shown = info.blocks.emplace_back();
    shown.size = block.size;
    shown.requested_size = block.requested_size;
    shown.allocated = block.state == LARDER_BLOCK_LIVE;
    shown.active = block.state != LARDER_BLOCK_FREE;
    shown.context_when_allocated = context_in(block.context);
  }
  return info;
}

inline c10::cuda::CUDACachingAllocator::AllocatorConfigInfo settings_in_force() {
  using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
  using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  c10::cuda::CUDACachingAllocator::AllocatorConfigInfo info;
  info.garbage_collection_threshold = Common::garbage_collection_threshold();
  info.max_split_size = Common::max_split_size();
  info.pinned_num_register_threads = Cuda::pinned_num_register_threads();
  info.expandable_segments = Common::use_expandable_segments();
  info.release_lock_on_malloc = Cuda::release_lock_on_cudamalloc();
  info.pinned_use_host_register = Cuda::pinned_use_cuda_host_register();
  info.graph_capture_record_stream_reuse = Cuda::graph_capture_record_stream_reuse();
  info.last_allocator_settings = Common::last_allocator_settings();
  info.roundup_power2_divisions = Common::roundup_power2_divisions();
#if LARDER_TORCH >= 213
  info.max_round_threshold = Common::pinned_max_round_threshold();
  info.max_cached_size = Common::pinned_max_cached_size();
#endif
  return info;
}

inline SnapshotInfo to_torch(const larder_snapshot& snapshot, int32_t device_count) {
  constexpr uint64_t kNanosecondsPerMicrosecond = 1000;
  SnapshotInfo info;
  size_t count = 0;
  const larder_snapshot_segment* segments = larder_snapshot_segments(&snapshot, &count);
  info.segments.reserve(count);
  for (size_t index = 0; index < count; ++index) {
    info.segments.push_back(to_torch(segments[index]));
  }
  for (int32_t device = 0; device < device_count; ++device) {
    const larder_event* events = larder_snapshot_events(&snapshot, device, &count);
    auto& trace = info.device_traces.emplace_back();
    trace.reserve(count);
    for (size_t index = 0; index < count; ++index) {
      auto& entry = trace.emplace_back(entry_of(events[index], 0));
      entry.time_.t_ = static_cast<time_t>(events[index].time_ns / kNanosecondsPerMicrosecond);
    }
  }
  const larder_annotation* annotations = larder_snapshot_annotations(&snapshot, &count);
  for (size_t index = 0; index < count; ++index) {
    const larder_annotation& annotation = annotations[index];
    auto& entry =
        info.external_annotations.emplace_back(static_cast<c10::DeviceIndex>(annotation.device), 0);
    entry.time_.t_ = static_cast<time_t>(annotation.time_ns / kNanosecondsPerMicrosecond);
    entry.recordUserMetadata("name", annotation.name);
    entry.recordUserMetadata("stage", annotation.start ? "START" : "END");
  }
  info.config_metadata = settings_in_force();
  return info;
}

}  // namespace larder_torch
