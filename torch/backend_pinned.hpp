// Larder as PyTorch's allocator of pinned host memory: every virtual of at::HostAllocator,
// forwarded to a larder of larder.h whose one device is the host. What later versions added is
// marked by LARDER_TORCH.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAStream.h>
#include <pthread.h>

#include "backend_pinned_captures.hpp"
#include "backend_pinned_helper.hpp"
#include "backend_values.hpp"
#include "larder.h"

#if LARDER_TORCH >= 214
#include "backend_pinned_history.hpp"
#endif

namespace larder_torch {

inline void delete_pinned(void* ptr);

[[noreturn]] inline void fail_pinned(larder_status status) {
  if (status == LARDER_OUT_OF_MEMORY) {
    const std::string text = larder_last_error();
    // The error that the driver keeps must not come up again at the next launch of a kernel.
    (void)cudaGetLastError();
    TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  }
  fail(status);
}

// There is one of it in a process, which is never destroyed: memory is freed until the very end.
class PinnedBackend final : public at::HostAllocator {
 public:
  explicit PinnedBackend(std::string settings) : settings_(std::move(settings)) {
    (void)pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
  }

  static PinnedBackend& instance() {
    return *installed.load(std::memory_order_relaxed);
  }

  // Memory.

  at::DataPtr allocate(size_t size) override {
    void* ptr = nullptr;
    if (size != 0) {
      larder* host = opened();
      const larder_status status = take(host, size, &ptr);
      if (status != LARDER_OK) [[unlikely]] {
        ptr = take_again(host, size, status);
      }
      if (captures_.is_on()) [[unlikely]] {
        captures_.note_taken(ptr);
      }
    }
    return {ptr, ptr, &delete_pinned, at::DeviceType::CPU};
  }

  // The pointer is not all that a block is to those who would take it over, as PyTorch's own is
  // not.
  bool is_simple_data_ptr(const c10::DataPtr&) const override {
    return false;
  }

  void put(void* ptr) {
    if (ptr == nullptr || is_forked.load(std::memory_order_relaxed)) {
      return;
    }
    if (captures_.is_on() && captures_.keeps(ptr)) [[unlikely]] {
      return;
    }
    larder* host = opened();
    check(larder_free(host, ptr));
    if (const size_t most = max_cached(); most != kAll) [[unlikely]] {
      check(larder_release_above(host, 0, most, nullptr));
    }
  }

  // Whether the memory is ours. The context says it, and where somebody wrapped the memory, the
  // address.
  bool record_event(void* ptr, void* ctx, c10::Stream stream) override {
    larder* host = host_.load(std::memory_order_acquire);
    if (host == nullptr) {
      return false;
    }
    const c10::cuda::CUDAStream used(stream);
    void* named = larder_stream_on(used.device_index(), used.stream());
    for (void* address : {ctx, ptr}) {
      if (address == nullptr) {
        continue;
      }
      const larder_status status = larder_record_stream(host, address, named);
      if (status == LARDER_OK) {
        captures_.note_used(address, used.device_index());
        return true;
      }
      if (status != LARDER_UNKNOWN_ADDRESS) {
        check(status);
      }
    }
    return false;
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

  void empty_cache() override {
    if (larder* host = host_.load(std::memory_order_acquire)) {
      give_back_kept(host);
      check(larder_empty_cache(host, {0, 0}));
    }
  }

  // Statistics.

  at::HostStats get_stats() override {
    at::HostStats result;
    larder* host = host_.load(std::memory_order_acquire);
    if (host == nullptr) {
      return result;
    }
    larder_stats stats;
    check(larder_get_stats(host, 0, &stats));
    result.active_requests = to_torch(stats.active.all);
    result.active_bytes = to_torch(stats.active_bytes.all);
    result.allocations = to_torch(stats.segment.all);
    result.allocated_bytes = to_torch(stats.reserved_bytes.all);
    result.num_host_alloc = stats.num_device_alloc;
    result.num_host_free = stats.num_device_free;
    larder_pinned_calls calls;
    check(larder_get_pinned_calls(host, &calls));
    result.host_alloc_time = to_torch(calls.got);
    result.host_free_time = to_torch(calls.given_back);
    for (size_t index = 0; index < result.bucket_allocation.size(); ++index) {
      result.bucket_allocation[index] = static_cast<int64_t>(calls.by_size[index]);
    }
    return result;
  }

  void reset_accumulated_stats() override {
    if (larder* host = host_.load(std::memory_order_acquire)) {
      check(larder_reset_accumulated_stats(host, 0));
      check(larder_reset_pinned_calls(host, true, false));
    }
  }

  void reset_peak_stats() override {
    if (larder* host = host_.load(std::memory_order_acquire)) {
      check(larder_reset_peak_stats(host, 0));
      check(larder_reset_pinned_calls(host, false, true));
    }
  }

  // Pools of graph captures.

  void begin_allocate_to_pool(
      c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) override {
    auto shared = std::make_shared<HostFilter>(std::move(filter));
    auto asked = host_filter_of(shared);
    check(larder_pool_begin(opened(), 0, to_larder(pool), &asked));
    captures_.begin(pool, std::move(shared));
  }

  void end_allocate_to_pool(c10::MempoolId_t pool) override {
    check(larder_pool_end(opened(), 0, to_larder(pool)));
    captures_.end(pool);
  }

  void release_pool(c10::MempoolId_t pool) override {
    check(larder_pool_drop_use(opened(), 0, to_larder(pool)));
    uint32_t uses = 0;
    if (larder_pool_uses(opened(), 0, to_larder(pool), &uses) != LARDER_OK || uses == 0) {
      captures_.release(pool);
    }
  }

  // Settings were read anew by PyTorch.
  void reconfigure() {
    if (larder* host = host_.load(std::memory_order_acquire)) {
      apply_pinned_settings(host);
    }
  }

#if LARDER_TORCH >= 214
  // History.

  void record_history(
      bool enabled,
      c10::CachingDeviceAllocator::CreateContextFn recorder,
      size_t max_entries,
      c10::CachingDeviceAllocator::RecordContext when,
      bool clear) override {
    if (enabled || host_.load(std::memory_order_acquire) != nullptr) {
      history_.record(opened(), enabled, recorder, max_entries, when, clear);
    }
  }

  bool is_history_enabled() const override {
    larder* host = host_.load(std::memory_order_acquire);
    return host != nullptr && larder_is_recording(host);
  }

  std::vector<c10::CachingDeviceAllocator::HostSegmentInfo> get_segments() override {
    return history_.segments(host_.load(std::memory_order_acquire));
  }

  std::vector<c10::CachingDeviceAllocator::TraceEntry> get_traces() override {
    return history_.traces(host_.load(std::memory_order_acquire));
  }

  void record_external_register(void* ptr, size_t size) override {
    if (is_history_enabled()) {
      history_.note_registered(ptr, size);
    }
  }

  void record_external_unregister(void* ptr) override {
    history_.note_unregistered(ptr);
  }
#endif

  static inline std::atomic<PinnedBackend*> installed{nullptr};

 private:
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  // Larger blocks than this are not cached: they go back once copies are done.
  static size_t max_cached() {
#if LARDER_TORCH >= 213
    return c10::CachingAllocator::AcceleratorAllocatorConfig::pinned_max_cached_size();
#else
    return kAll;
#endif
  }

  // Large blocks are whole pages: what reads files past the system's cache, or shares pages, counts
  // on it.
  static larder_status take(larder* host, size_t size, void** ptr) {
    constexpr size_t kSmall = size_t{1} << 20, kPage = 4096;
    const size_t whole = size <= kSmall ? size : (size + kPage - 1) / kPage * kPage;
    static void* const work = larder_host_stream();
    if (const size_t most = max_cached(); most != kAll) [[unlikely]] {
      check(larder_release_above(host, 0, most, nullptr));
    }
    const larder_status status = larder_malloc(host, 0, whole, work, ptr);
    if (auto kept = take_exception()) [[unlikely]] {
      if (status == LARDER_OK) {
        (void)larder_free(host, *ptr);
      }
      std::rethrow_exception(kept);
    }
    return status;
  }

  // There is no memory. What was kept for graphs that are gone makes room for once.
  void* take_again(larder* host, size_t size, larder_status status) {
    void* ptr = nullptr;
    if (status == LARDER_OUT_OF_MEMORY && give_back_kept(host)) {
      status = take(host, size, &ptr);
    }
    if (status != LARDER_OK) {
      fail_pinned(status);
    }
    return ptr;
  }

  // Gives back what graphs used that are gone by now. Says whether there was anything.
  bool give_back_kept(larder* host) {
    const auto kept = captures_.take_kept();
    for (void* ptr : kept) {
      check(larder_free(host, ptr));
    }
    return !kept.empty();
  }

  larder* opened() {
    if (larder* host = host_.load(std::memory_order_acquire)) [[likely]] {
      return host;
    }
    return open();
  }

  // Opened at the first request: PyTorch has started CUDA by then.
  larder* open() {
    std::lock_guard<std::mutex> guard(open_mutex_);
    if (larder* host = host_.load(std::memory_order_acquire)) {
      return host;
    }
    larder* opened = nullptr;
    check(larder_open_pinned("cuda", settings_.c_str(), &opened));
    Owned<larder> owned(opened, larder_close);
    apply_pinned_settings(opened);
    reserve(opened);
    host_.store(owned.release(), std::memory_order_release);
    return opened;
  }

  // What PyTorch's settings want in one piece beforehand.
  static void reserve(larder* host) {
    using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
    if (const size_t megabytes = Cuda::pinned_reserve_segment_size_mb(); megabytes > 0) {
      void* ptr = nullptr;
      const larder_status status = take(host, megabytes << 20, &ptr);
      if (status != LARDER_OK) {
        fail_pinned(status);
      }
      check(larder_free(host, ptr));
    }
  }

  // PyTorch's settings of pinned memory mean what they mean there; what they do not name is done as
  // is best.
  void apply_pinned_settings(larder* host) {
    using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
    using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
    const std::string given = Common::last_allocator_settings();
    larder_pinning how = LARDER_PIN_BEST;
    if (Cuda::pinned_use_cuda_host_register()) {
      how = LARDER_PIN_REGISTER;
    } else if (names(given, "pinned_use_cuda_host_register")) {
      how = LARDER_PIN_DRIVER;
    }
    const bool is_said = names(given, "pinned_num_register_threads");
    check(larder_set_pinning(host, how, is_said ? Cuda::pinned_num_register_threads() : 0));
    larder_pinned_keeping keeping;
    check(larder_get_pinned_keeping(host, &keeping));
    helper_.run(host, Common::pinned_use_background_threads(), keeping);
  }

  static c10::CachingAllocator::DurationStat to_torch(const larder_timed_calls& calls) {
    c10::CachingAllocator::DurationStat stat;
    stat.total = static_cast<int64_t>(calls.total_us);
    stat.max = static_cast<int64_t>(calls.max_us);
    stat.min = static_cast<int64_t>(calls.min_us);
    stat.count = static_cast<int64_t>(calls.count);
    return stat;
  }

  static c10::CachingAllocator::Stat to_torch(const larder_counter& counter) {
    return larder_torch::to_torch(counter);
  }

  std::string settings_;
  std::mutex open_mutex_;
  std::atomic<larder*> host_{nullptr};
  PinnedCaptures captures_;
  PinnedHelper helper_;
#if LARDER_TORCH >= 214
  PinnedHistory history_;
#endif
};

// Memory is freed in destructors, which must not throw: what goes wrong is said, not thrown.
inline void delete_pinned(void* ptr) {
  try {
    PinnedBackend::instance().put(ptr);
  } catch (const std::exception& error) {
    TORCH_WARN("pinned memory could not be freed: ", error.what());
  }
}

}  // namespace larder_torch
