// What PyTorch's profiler is told of memory. It is asked for rarely, so that the figures are looked
// up only when somebody listens.

#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "backend_values.hpp"
#include "larder.h"

namespace larder_torch {

inline c10::Device device_named(c10::DeviceIndex index) {
  return {c10::DeviceType::CUDA, index};
}

// By how much the memory grew, and what it is then.
inline void report_malloc(larder* larder, void* ptr, c10::DeviceIndex device) {
  larder_block_info block;
  larder_stats stats;
  check(larder_block_of(larder, ptr, &block));
  check(larder_get_stats(larder, device, &stats));
  c10::reportMemoryUsageToProfiler(
      ptr, static_cast<int64_t>(block.size), stats.allocated_bytes.all.current,
      stats.reserved_bytes.all.current, device_named(device));
}

// Reports that memory is about to be freed, while its size is still known.
inline void report_free(larder* larder, void* ptr) {
  larder_block_info block;
  larder_stats stats;
  if (larder_block_of(larder, ptr, &block) == LARDER_OK &&
      larder_get_stats(larder, block.device, &stats) == LARDER_OK) {
    auto size = static_cast<int64_t>(block.size);
    c10::reportMemoryUsageToProfiler(
        ptr, -size, stats.allocated_bytes.all.current - size, stats.reserved_bytes.all.current,
        device_named(static_cast<c10::DeviceIndex>(block.device)));
  }
}

inline void report_out_of_memory(c10::DeviceIndex device) {
  larder_out_of_memory report;
  if (larder_last_out_of_memory(&report) == LARDER_OK) {
    c10::reportOutOfMemoryToProfiler(
        static_cast<int64_t>(report.rounded_bytes), report.allocated_bytes, report.reserved_bytes,
        device_named(device));
  }
}

}  // namespace larder_torch
