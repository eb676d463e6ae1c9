// The history of pinned host memory, since PyTorch 2.14: its blocks and what happened, and beside
// them what others pinned without an allocator.

#pragma once

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>

#include "backend_hooks.hpp"
#include "backend_values.hpp"
#include "larder.h"

namespace larder_torch {

class PinnedHistory {
 public:
  using HostSegmentInfo = c10::CachingDeviceAllocator::HostSegmentInfo;

  void record(
      larder* host,
      bool enabled,
      CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool clear) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      recorder_ = recorder;
      when_ = enabled ? when : RecordContext::NEVER;
      max_entries_ = max_entries;
      if (clear) {
        entries_.clear();
      }
    }
    if (!enabled) {
      check(larder_stop_history(host));
      return;
    }
    larder_contexts contexts = contexts_by(recorder);
    larder_history_options options{};
    options.max_entries = std::max<size_t>(1, max_entries);
    options.level = static_cast<larder_level>(when);
    options.clear = clear;
    // To look at it is no part of it.
    options.skip = 1U << TraceEntry::SNAPSHOT;
    options.contexts = recorder == nullptr ? nullptr : &contexts;
    options.clock = unix_time_ns;
    check(larder_record_history(host, &options));
  }

  // Each block is told as a segment: PyTorch's own blocks are segments.
  std::vector<HostSegmentInfo> segments(larder* host) {
    std::vector<HostSegmentInfo> found;
    if (host != nullptr) {
      larder_snapshot* taken = nullptr;
      check(larder_take_snapshot(host, {0, 0}, false, &taken));
      Owned<larder_snapshot> owned(taken, larder_snapshot_free);
      size_t count = 0;
      const larder_snapshot_segment* segments = larder_snapshot_segments(taken, &count);
      for (size_t index = 0; index < count; ++index) {
        const larder_snapshot_segment& segment = segments[index];
        size_t address = segment.addr;
        for (size_t at = 0; at < segment.block_count; ++at) {
          const larder_snapshot_block& block = segment.blocks[at];
          auto& shown = found.emplace_back();
          shown.address = address;
          shown.size = block.size;
          shown.allocated = block.state == LARDER_BLOCK_LIVE;
          shown.active = block.state != LARDER_BLOCK_FREE;
          shown.owner_private_pool_id = {segment.pool.a, segment.pool.b};
          shown.context_when_allocated = context_in(block.context);
          address += block.size;
        }
      }
    }
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [ptr, registered] : registered_) {
      auto& shown = found.emplace_back();
      shown.address = reinterpret_cast<size_t>(ptr);
      shown.size = registered.size;
      shown.allocated = shown.active = true;
      shown.context_when_allocated = registered.context;
    }
    return found;
  }

  std::vector<TraceEntry> traces(larder* host) {
    constexpr uint64_t kNanosecondsPerMicrosecond = 1000;
    std::vector<TraceEntry> found;
    if (host != nullptr) {
      larder_snapshot* taken = nullptr;
      check(larder_take_snapshot(host, {0, 0}, true, &taken));
      Owned<larder_snapshot> owned(taken, larder_snapshot_free);
      size_t count = 0;
      const larder_event* events = larder_snapshot_events(taken, 0, &count);
      for (size_t index = 0; index < count; ++index) {
        auto& entry = found.emplace_back(entry_of(events[index], 0));
        entry.device_ = -1;
        entry.stream_ = nullptr;
        entry.time_.t_ = static_cast<time_t>(events[index].time_ns / kNanosecondsPerMicrosecond);
      }
    }
    {
      std::lock_guard<std::mutex> guard(mutex_);
      found.insert(found.end(), entries_.begin(), entries_.end());
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& one, const auto& other) {
      return one.time_.t_ < other.time_.t_;
    });
    return found;
  }

  // Somebody pinned memory without an allocator.
  void note_registered(void* ptr, size_t size) {
    Context context = gathered(RecordContext::STATE);
    std::lock_guard<std::mutex> guard(mutex_);
    registered_[ptr] = {size, context};
    note(TraceEntry::SEGMENT_ALLOC, ptr, size, nullptr);
    note(TraceEntry::ALLOC, ptr, size, std::move(context));
  }

  void note_unregistered(void* ptr) {
    Context context = gathered(RecordContext::ALL);
    std::lock_guard<std::mutex> guard(mutex_);
    const auto found = registered_.find(ptr);
    if (found == registered_.end()) {
      return;
    }
    const Registered registered = found->second;
    registered_.erase(found);
    note(TraceEntry::FREE_REQUESTED, ptr, registered.size, std::move(context));
    note(TraceEntry::FREE_COMPLETED, ptr, registered.size, registered.context);
    note(TraceEntry::SEGMENT_FREE, ptr, registered.size, nullptr);
  }

 private:
  struct Registered {
    size_t size = 0;
    Context context;
  };

  // What the program's function says, if so much is asked for.
  Context gathered(RecordContext level) {
    CreateContextFn recorder = nullptr;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      recorder = when_ >= level ? recorder_ : nullptr;
    }
    return recorder == nullptr ? nullptr : recorder();
  }

  void note(TraceEntry::Action action, void* ptr, size_t size, Context context) {
    TraceEntry entry(
        action, -1, reinterpret_cast<size_t>(ptr), size, nullptr, {0, 0}, 0,
        when_ >= RecordContext::ALLOC ? std::move(context) : nullptr);
    entry.time_.t_ = static_cast<time_t>(c10::getTime() / 1000);
    entries_.push_back(std::move(entry));
    while (entries_.size() > max_entries_) {
      entries_.pop_front();
    }
  }

  std::mutex mutex_;
  CreateContextFn recorder_ = nullptr;
  RecordContext when_ = RecordContext::NEVER;
  size_t max_entries_ = 0;
  std::unordered_map<void*, Registered> registered_;
  std::deque<TraceEntry> entries_;
};

}  // namespace larder_torch
