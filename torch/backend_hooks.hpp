// Functions and objects of PyTorch's, as the hooks of larder.h.

#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/headeronly/version.h>

#include "larder.h"

// 211 for PyTorch 2.11.
#define LARDER_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)
#define LARDER_TORCH_TEXT_OF(major, minor) #major "." #minor
#define LARDER_TORCH_TEXT_FROM(major, minor) LARDER_TORCH_TEXT_OF(major, minor)
#define LARDER_TORCH_TEXT LARDER_TORCH_TEXT_FROM(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR)

namespace larder_torch {

using c10::cuda::CUDACachingAllocator::AllocatorState;
using c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
using c10::cuda::CUDACachingAllocator::CheckpointDelta;
using c10::cuda::CUDACachingAllocator::CreateContextFn;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using c10::cuda::CUDACachingAllocator::DeviceStats;
using c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
using c10::cuda::CUDACachingAllocator::RecordContext;
using c10::cuda::CUDACachingAllocator::SegmentInfo;
using c10::cuda::CUDACachingAllocator::ShareableHandle;
using c10::cuda::CUDACachingAllocator::SnapshotInfo;
using c10::cuda::CUDACachingAllocator::StreamSegmentSize;
using c10::cuda::CUDACachingAllocator::TraceEntry;

// Something of larder.h's that is given back by a function of its own.
template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

template <typename T>
void destroy(void* data) {
  delete static_cast<T*>(data);
}

// What functions of PyTorch's throw.
//
// No exception can go through Larder, so that it is kept until the call of Larder's has returned,
// and thrown then.

inline std::exception_ptr& kept_exception() {
  static thread_local std::exception_ptr kept;
  return kept;
}

// How many threads keep one. It is looked at after every call, and nearly always it is 0.
inline std::atomic<int> exceptions_kept{0};

template <typename Hook>
auto keeping_exceptions(Hook&& hook) -> decltype(hook()) {
  try {
    return hook();
  } catch (...) {
    if (kept_exception() == nullptr) {
      kept_exception() = std::current_exception();
      exceptions_kept.fetch_add(1, std::memory_order_relaxed);
    }
    return decltype(hook())();
  }
}

// Takes what the calling thread keeps; null if that is nothing.
inline std::exception_ptr take_exception() {
  if (exceptions_kept.load(std::memory_order_relaxed) == 0) [[likely]] {
    return nullptr;
  }
  auto taken = std::exchange(kept_exception(), nullptr);
  if (taken != nullptr) {
    exceptions_kept.fetch_sub(1, std::memory_order_relaxed);
  }
  return taken;
}

// Filters and sources.

using Filter = std::function<bool(cudaStream_t)>;

inline larder_filter filter_of(Filter filter) {
  larder_filter asked{};
  asked.kind = LARDER_FILTER_FUNCTION;
  asked.takes = [](void* data, void* stream) {
    return keeping_exceptions(
        [&] { return (*static_cast<Filter*>(data))(static_cast<cudaStream_t>(stream)); });
  };
  asked.release = destroy<Filter>;
  asked.data = new Filter(std::move(filter));
  return asked;
}

// The pool keeps the allocator alive until its last segment has gone back. A custom allocator says
// that it has no memory by null or by an exception, as PyTorch's own does.
using Source = std::shared_ptr<CUDAAllocator>;

inline larder_source source_of(Source allocator) {
  larder_source source{};
  source.alloc = [](void* data, size_t size, int32_t, void*) -> void* {
    try {
      return (*static_cast<Source*>(data))->raw_alloc(size);
    } catch (const std::exception& error) {
      TORCH_WARN("a custom allocator could not allocate: ", error.what());
      return nullptr;
    }
  };
  source.free = [](void* data, void* ptr, size_t, int32_t, void*) {
    try {
      (*static_cast<Source*>(data))->raw_delete(ptr);
    } catch (const std::exception& error) {
      TORCH_WARN("a custom allocator could not free: ", error.what());
    }
  };
  source.release = destroy<Source>;
  source.data = new Source(std::move(allocator));
  return source;
}

// Of the calling thread: the next pool over a custom allocator is symmetric, with segments of at
// least so many bytes.
inline std::optional<size_t>& symmetric_asked_for() {
  static thread_local std::optional<size_t> growth;
  return growth;
}

// Memory that others keep without need, such as what was sent to other processes and is done with.
inline bool run_free_memory_callbacks(void*, int32_t) {
  return keeping_exceptions([] {
    bool freed = false;
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    return freed;
  });
}

// The stream that the calling thread works on: where that is captured, so is what the thread frees.
inline bool tell_current_stream(void*, int32_t device, void** stream) {
  return keeping_exceptions([&] {
    *stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
    return true;
  });
}

#if LARDER_TORCH >= 215
// What PyTorch's settings have the next expandable segment of a stream reserve, by the class that
// PyTorch keeps of the stream. A class that they do not name is warned of once.
inline uint64_t reserve_for(void*, int32_t, void* stream, uint64_t device_bytes) {
  using c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  return keeping_exceptions([&]() -> uint64_t {
    const auto name = c10::cuda::CUDACachingAllocator::getExpandableSegmentReserveClassForStream(
        static_cast<cudaStream_t>(stream));
    const auto decision =
        CUDAAllocatorConfig::expandable_segments_reserve_decision(name, device_bytes);
    if (decision.reserve_bytes.has_value() && !name.empty() && !decision.class_known) {
      static std::mutex mutex;
      static std::set<std::string> known;
      std::unique_lock<std::mutex> lock(mutex);
      const bool is_new = known.insert(name).second;
      lock.unlock();
      if (is_new) {
        TORCH_WARN(
            "expandable_segments_reserve_by_class has no class '", name,
            "': its streams reserve what expandable_segments_reserve says");
      }
    }
    return CUDAAllocatorConfig::clamp_reserve_bytes(decision, device_bytes + device_bytes / 8);
  });
}
#endif

// Contexts: a shared pointer in a box that counts its references.

using Context = std::shared_ptr<c10::GatheredContext>;

struct ContextBox {
  explicit ContextBox(Context context) : context(std::move(context)) {}
  Context context;
  std::atomic<size_t> references{1};
};

inline Context context_in(void* box) {
  return box == nullptr ? nullptr : static_cast<ContextBox*>(box)->context;
}

inline void retain_context(void*, void* box) {
  static_cast<ContextBox*>(box)->references.fetch_add(1, std::memory_order_relaxed);
}

inline void release_context(void*, void* box) {
  auto* held = static_cast<ContextBox*>(box);
  if (held->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete held;
  }
}

// Gathering may throw; an allocation does not fail for want of a stack.
inline void* gather_context(void* data) {
  try {
    auto context = reinterpret_cast<CreateContextFn>(data)();
    return context == nullptr ? nullptr : new ContextBox(std::move(context));
  } catch (const std::exception& error) {
    TORCH_WARN_ONCE("the context of an allocation could not be gathered: ", error.what());
    return nullptr;
  }
}

inline larder_contexts contexts_by(CreateContextFn recorder) {
  void* data = reinterpret_cast<void*>(recorder);
  return {gather_context, retain_context, release_context, data};
}

inline uint64_t unix_time_ns(void*) {
  return static_cast<uint64_t>(c10::getTime());
}

// Observers and trackers.

inline void tell_out_of_memory(void* data, const larder_out_of_memory* report) {
  if (report->rejected) {
    return;
  }
  keeping_exceptions([&] {
    (*static_cast<OutOfMemoryObserver*>(data))(
        report->device, report->tried_bytes,
        report->has_cap ? report->cap_bytes : report->total_bytes, report->free_bytes);
  });
}

#if LARDER_TORCH >= 212
using c10::cuda::CUDACachingAllocator::OomRejectionObserver;

inline void tell_rejection(void* data, const larder_out_of_memory* report) {
  if (report->rejected) {
    std::thread([observer = *static_cast<OomRejectionObserver*>(data), report = *report] {
      try {
        observer(report.device, report.tried_bytes, report.reserved_bytes, report.total_bytes);
      } catch (const std::exception& error) {
        TORCH_WARN("an observer of rejected allocations failed: ", error.what());
      }
    }).detach();
  }
}
#endif

inline TraceEntry entry_of(const larder_event& event, c10::approx_time_t time) {
  std::string metadata = event.user_metadata;
#if LARDER_TORCH < 215
  // Before there was a place for it, PyTorch put what the allocator says behind what the program
  // does.
  if (event.internal_metadata[0] != '\0') {
    metadata += (metadata.empty() ? "" : "\n") + std::string(event.internal_metadata);
  }
#endif
  TraceEntry entry{
      static_cast<TraceEntry::Action>(event.action),
      static_cast<c10::DeviceIndex>(event.device),
      event.addr,
      event.size,
      event.stream,
      {event.pool.a, event.pool.b},
      time,
      context_in(event.context),
      event.compile_context,
      std::move(metadata)};
#if LARDER_TORCH >= 215
  entry.internal_metadata_ = event.internal_metadata;
#endif
  return entry;
}

inline void tell_event(void* data, const larder_event* event) {
  keeping_exceptions([&] {
    (*static_cast<AllocatorTraceTracker*>(data))(entry_of(*event, c10::getApproximateTime()));
  });
}

}  // namespace larder_torch
