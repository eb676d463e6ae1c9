// Larder as PyTorch's CUDA allocator: every virtual that
// c10::cuda::CUDACachingAllocator::CUDAAllocator of PyTorch 2.11 has, forwarded to larder.h. What
// later versions added is marked by LARDER_TORCH.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "backend_hooks.hpp"
#include "backend_interposed.hpp"
#include "backend_profiler.hpp"
#include "backend_values.hpp"
#include "larder.h"

namespace larder_torch {

inline constexpr size_t kExbibyte = size_t{1} << 60;

inline void delete_cached(void* ptr);
inline void delete_uncached(void* ptr);

// PyTorch reads this variable itself, and only "1" counts.
inline bool caching_is_forbidden() {
  static const bool forbidden = [] {
    const char* value = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return forbidden;
}

// The layout of a private pool.
struct Checkpoint : AllocatorState {
  explicit Checkpoint(larder_checkpoint* layout) : layout(layout, larder_checkpoint_free) {}
  Owned<larder_checkpoint> layout;
};

// There is one of it in a process, which is never destroyed: memory is freed until the very end.
class Backend final : public CUDAAllocator {
 public:
  Backend(std::string devices, std::string settings)
      : devices_(std::move(devices)), settings_(std::move(settings)) {}

  static Backend& instance() {
    return *installed.load(std::memory_order_relaxed);
  }

  // Beginnings.

  // Opening the devices makes no context on them; the first use of each does.
  void init(int device_count) override {
    std::lock_guard<std::mutex> guard(init_mutex_);
    if (initialized() || device_count == 0) {
      return;
    }
    larder* opened = nullptr;
    check(larder_open(devices_.c_str(), settings_.c_str(), &opened));
    Owned<larder> owned(opened, larder_close);
    TORCH_CHECK(
        larder_device_count(opened) >= device_count,
        "Larder sees " + std::to_string(larder_device_count(opened)) +
            " devices where PyTorch sees " + std::to_string(device_count));
    std::string given =
        c10::CachingAllocator::AcceleratorAllocatorConfig::last_allocator_settings();
    propose_settings(opened);
    apply_settings(opened, about_captures(given));
    for (int device = 0; device < device_count; ++device) {
      check(larder_on_miss(opened, device, run_free_memory_callbacks, nullptr, nullptr));
      check(larder_on_current_stream(opened, device, tell_current_stream, nullptr, nullptr));
#if LARDER_TORCH >= 215
      check(larder_on_reserve(opened, device, reserve_for, nullptr, nullptr));
#endif
    }
    larder_stats stats;
    check(larder_get_stats(opened, 0, &stats));
    max_split_size_ = stats.max_split_size;
    device_count_ = device_count;
    larder_.store(owned.release(), std::memory_order_release);
  }

  bool initialized() override {
    return larder_.load(std::memory_order_acquire) != nullptr;
  }

  // Settings were read anew by PyTorch. The memory fraction among them caps nothing by now: it did
  // when the devices were opened, and from then on the cap is what setMemoryFraction says.
  void reconfigure(const std::string& given) {
    larder* opened = larder_.load(std::memory_order_acquire);
    if (opened == nullptr) {
      return;
    }
    std::vector<double> caps;
    for (int device = 0; device < device_count_; ++device) {
      caps.push_back(getMemoryFraction(static_cast<c10::DeviceIndex>(device)));
    }
    apply_settings(opened, about_captures(given));
    for (int device = 0; device < device_count_; ++device) {
      auto index = static_cast<c10::DeviceIndex>(device);
      if (getMemoryFraction(index) != caps[device]) {
        setMemoryFraction(caps[device], index);
      }
    }
  }

  // Memory.

  c10::DataPtr allocate(size_t size) override {
    TORCH_CHECK_WITH(
        OutOfMemoryError, size < kExbibyte,
        "CUDA out of memory. Tried to allocate more than 1EB memory.");
    c10::DeviceIndex device = current_device();
    if (is_uncached()) [[unlikely]] {
      void* ptr = malloc_uncached(size);
      return {ptr, ptr, &delete_uncached, device_named(device)};
    }
    void* ptr = nullptr;
    if (size != 0) {
      ptr = take(device, size, c10::cuda::getCurrentCUDAStream(device));
    }
    return {ptr, ptr, &delete_cached, device_named(device)};
  }

  void* raw_alloc(size_t size) override {
    if (size == 0) {
      return nullptr;
    }
    if (is_uncached()) [[unlikely]] {
      return malloc_uncached(size);
    }
    c10::DeviceIndex device = current_device();
    return take(device, size, c10::cuda::getCurrentCUDAStream(device));
  }

  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    if (size == 0) {
      return nullptr;
    }
    return is_uncached() ? malloc_uncached(size) : take(current_device(), size, stream);
  }

  void raw_delete(void* ptr) override {
    if (is_uncached()) [[unlikely]] {
      delete_uncached(ptr);
    } else {
      put(ptr);
    }
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return is_uncached() ? &delete_uncached : &delete_cached;
  }

  void put(void* ptr) {
    if (ptr == nullptr) {
      return;
    }
    if (c10::memoryProfilingEnabled()) [[unlikely]] {
      report_free(opened(), ptr);
    }
    check_at(larder_free(opened(), ptr), ptr);
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
      (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
    }
  }

  // What was not allocated here, such as memory of another process, is none of our business.
  void recordStream(const c10::DataPtr& owner, c10::cuda::CUDAStream stream) override {
    if (owner.get() != nullptr && owner.get_deleter() == &delete_cached) {
      check(larder_record_stream(opened(), owner.get(), stream.stream()));
    }
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, count, cudaMemcpyDeviceToDevice));
  }

  void emptyCache(c10::MempoolId_t pool) override {
    if (initialized()) {
      check(larder_empty_cache(opened(), to_larder(pool)));
    }
  }

  void enable(bool value) override {
    enabled_ = value;
  }

  bool isEnabled() const override {
    return enabled_;
  }

  void* getBaseAllocation(void* ptr, size_t* size) override {
    void* base = nullptr;
    size_t whole = 0;
    check_at(larder_base_allocation(opened(), ptr, &base, &whole), ptr);
    if (size != nullptr) {
      *size = whole;
    }
    return base;
  }

  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    if (*largest == 0) {
      *largest = getMemoryInfo(device).first;
    }
    uint64_t cached = 0;
    check(larder_largest_free_block(opened(), device, &cached));
    *largest = std::max<size_t>(*largest, cached);
  }

  double getMemoryFraction(c10::DeviceIndex device) override {
    double fraction = 1;
    check(larder_memory_fraction(opened(), device, &fraction));
    return fraction;
  }

  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    check(larder_set_memory_fraction(opened(), device, fraction));
  }

  // Statistics.

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    larder_stats stats;
    check(larder_get_stats(opened(), device, &stats));
    // PyTorch shows the limit of the beginning, whatever was set since.
    stats.max_split_size = max_split_size_;
    return to_torch(stats, opened(), device);
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check(larder_reset_accumulated_stats(opened(), device));
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    check(larder_reset_peak_stats(opened(), device));
  }

  // Expandable segments of the default stream are not shown, as PyTorch does not show them.
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    std::vector<StreamSegmentSize> sizes;
    for (const auto& segment : expandable_segments(opened(), device)) {
      if (segment.stream != nullptr) {
        sizes.emplace_back(
            static_cast<cudaStream_t>(segment.stream), segment.is_small, segment.mapped_bytes);
      }
    }
    return sizes;
  }

  // Private pools.

  void createOrIncrefPool(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
      std::shared_ptr<CUDAAllocator> allocator) override {
    if (allocator == nullptr) {
      if (!is_made_interposed(device, pool)) {
        check(larder_pool_add_use(opened(), device, to_larder(pool), nullptr));
      }
      return;
    }
    auto source = source_of(std::move(allocator));
    if (const auto growth = std::exchange(symmetric_asked_for(), std::nullopt)) {
      check(larder_pool_add_symmetric(opened(), device, to_larder(pool), &source, *growth));
      return;
    }
    check(larder_pool_add_use(opened(), device, to_larder(pool), &source));
  }

  // Plain memory for requests of the calling thread, which PyTorch has no calls for.

  void begin_plain() {
    check(larder_plain_begin(opened()));
  }

  void end_plain() {
    check(larder_plain_end(opened()));
  }

  // Sleep and wake, which PyTorch has no calls for.

  void begin_region(const char* tag, larder_keep keep) {
    check(larder_region_begin(opened(), tag, keep));
  }

  void end_region(const char* tag) {
    check(larder_region_end(opened(), tag));
  }

  void leave_regions() {
    check(larder_regions_leave(opened()));
  }

  void return_to_regions() {
    check(larder_regions_return(opened()));
  }

  larder_slept sleep(c10::DeviceIndex device, const char* tags, larder_keep keep) {
    larder_slept slept{};
    check(larder_sleep(opened(), device, tags, keep, &slept));
    return slept;
  }

  void wake(c10::DeviceIndex device, const char* tags) {
    check(larder_wake(opened(), device, tags));
  }

  larder_sleep_stats sleep_stats(c10::DeviceIndex device) {
    larder_sleep_stats stats{};
    check(larder_get_sleep_stats(opened(), device, &stats));
    return stats;
  }

  void set_keep_limit(c10::DeviceIndex device, uint64_t limit_bytes) {
    check(larder_set_keep_limit(opened(), device, limit_bytes));
  }

  // Requests of other libraries of the process, for a device and a stream that need not be
  // PyTorch's current ones.

  void* take_for(c10::DeviceIndex device, size_t size, cudaStream_t stream) {
    TORCH_CHECK(
        device >= 0 && device < device_count_, "there is no GPU ", static_cast<int>(device),
        " here: PyTorch sees ", device_count_.load());
    if (size == 0) {
      return nullptr;
    }
    if (is_uncached()) [[unlikely]] {
      c10::cuda::CUDAGuard guard(device);
      return malloc_uncached(size);
    }
    return take(device, size, stream);
  }

  void record_use(void* ptr, cudaStream_t stream) {
    if (ptr != nullptr && !is_uncached()) {
      check_at(larder_record_stream(opened(), ptr, stream), ptr);
    }
  }

  // Symmetric pools, which PyTorch has no calls for.

  larder_position position_of(const void* ptr) {
    larder_position found{};
    check(larder_position_of(opened(), ptr, &found));
    return found;
  }

  uint64_t seal(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
      size_t ranks,
      bool (*exchange)(void*, const void*, void*)) {
    uint64_t calls = 0;
    check(larder_pool_seal(opened(), device, to_larder(pool), ranks, exchange, nullptr, &calls));
    return calls;
  }

  uint64_t trim(c10::DeviceIndex device, c10::MempoolId_t pool) {
    uint64_t segments = 0;
    check(larder_pool_trim(opened(), device, to_larder(pool), &segments));
    return segments;
  }

  void beginAllocateToPool(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
      std::function<bool(cudaStream_t)> filter) override {
    const bool is_made = is_made_interposed(device, pool);
    auto asked = filter_of(std::move(filter));
    const auto begun = larder_pool_begin(opened(), device, to_larder(pool), &asked);
    if (is_made) {
      // To begin is a use by itself.
      check(larder_pool_drop_use(opened(), device, to_larder(pool)));
    }
    check(begun);
  }

  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    check(larder_pool_end(opened(), device, to_larder(pool)));
  }

  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    check(larder_pool_drop_use(opened(), device, to_larder(pool)));
  }

  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    uint32_t uses = 0;
    check(larder_pool_uses(opened(), device, to_larder(pool), &uses));
    return static_cast<int>(uses);
  }

  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool on) override {
    check(larder_pool_set_use_on_oom(opened(), device, to_larder(pool), on));
  }

  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    check(larder_pool_set_no_split(opened(), device, to_larder(pool)));
  }

  bool checkPoolLiveAllocations(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
      const std::unordered_set<void*>& expected) override {
    std::vector<void*> ptrs(expected.begin(), expected.end());
    bool same = false;
    check(larder_pool_has_live(opened(), device, to_larder(pool), ptrs.data(), ptrs.size(), &same));
    return same;
  }

  std::shared_ptr<AllocatorState> getCheckpointState(
      c10::DeviceIndex device, c10::MempoolId_t pool) override {
    larder_checkpoint* layout = nullptr;
    check(larder_pool_checkpoint(opened(), device, to_larder(pool), &layout));
    return std::make_shared<Checkpoint>(layout);
  }

  CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    auto* checkpoint = dynamic_cast<Checkpoint*>(state.get());
    TORCH_CHECK(checkpoint != nullptr, "the checkpoint is not one of Larder's");
    larder_restored* changes = nullptr;
    check(larder_pool_restore(opened(), device, checkpoint->layout.get(), &changes));
    Owned<larder_restored> restored(changes, larder_restored_free);
    CheckpointDelta delta;
    size_t count = 0;
    void* const* freed = larder_restored_freed(changes, &count);
    delta.ptrs_freed.assign(freed, freed + count);
    void* const* live = larder_restored_live(changes, &count);
    for (size_t index = 0; index < count; ++index) {
      void* ptr = live[index];
      delta.dataptrs_allocd.emplace_back(ptr, ptr, &delete_cached, device_named(device));
    }
    return delta;
  }

  // Other processes, other devices.

  ShareableHandle shareIpcHandle(void* ptr) override {
    larder_shared* found = nullptr;
    check_at(larder_share(opened(), ptr, &found), ptr);
    Owned<larder_shared> shared(found, larder_shared_free);
    size_t length = 0;
    const uint8_t* bytes = larder_shared_bytes(found, &length);
    auto offset = static_cast<ptrdiff_t>(larder_shared_offset(found));
    return {offset, std::string(reinterpret_cast<const char*>(bytes), length)};
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    int32_t device = current_device();
    const auto* bytes = reinterpret_cast<const uint8_t*>(handle.data());
    void* base = nullptr;
    check(larder_open_shared(opened(), device, bytes, handle.size(), &base));
    return {
        base, [this, device](void* ptr) { warn_of(larder_close_shared(opened(), device, ptr)); }};
  }

  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex owner) override {
    c10::cuda::CUDAGuard guard(device);
    cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(error);
    }
    check(larder_enable_peer(opened(), device, owner));
  }

  // Without peer access the plain copy knows only memory of cudaMalloc.
  cudaError_t memcpyAsync(
      void* to,
      int to_device,
      const void* from,
      int from_device,
      size_t count,
      cudaStream_t stream,
      bool p2p_enabled) override {
    auto has_expandable = [&](int device) {
      bool has = false;
      check(larder_has_expandable(opened(), device, &has));
      return has;
    };
    bool plain = p2p_enabled || to_device == from_device ||
                 (!has_expandable(to_device) && !has_expandable(from_device));
    return plain ? cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream)
                 : cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
  }

  // History.

  bool isHistoryEnabled() override {
    return initialized() && larder_is_recording(opened());
  }

  void recordHistory(
      bool enabled,
      CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool clear,
      const std::vector<std::string>& skip_actions) override {
    TORCH_CHECK(
        !enabled || when == RecordContext::NEVER || recorder != nullptr,
        "a history with contexts needs a function that gathers them");
    uint32_t skip = 0;
    for (const auto& action : skip_actions) {
      skip |= 1U << c10::CachingDeviceAllocator::parseTraceEntryAction(action);
    }
    // As long as there are no devices there is nothing to remember, nor to forget.
    if (!initialized()) {
      return;
    }
    if (!enabled) {
      check(larder_stop_history(opened()));
      return;
    }
    larder_contexts contexts = contexts_by(recorder);
    larder_history_options options{};
    options.max_entries = std::max<size_t>(1, max_entries);
    options.level = static_cast<larder_level>(when);
    options.clear = clear;
    options.skip = skip;
    options.contexts = recorder == nullptr ? nullptr : &contexts;
    options.clock = unix_time_ns;
    check(larder_record_history(opened(), &options));
  }

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& facts) override {
    if (!isHistoryEnabled()) {
      return;
    }
    std::string name, stage;
    for (const auto& [key, value] : facts) {
      if (key == "name") {
        name = value;
      } else if (key == "stage") {
        stage = value;
      }
    }
    check(larder_annotate(opened(), current_device(), name.c_str(), stage == "START"));
  }

  void pushCompileContext(std::string& context) override {
    larder_push_compile_context(context.c_str());
  }

  void popCompileContext() override {
    larder_pop_compile_context();
  }

  void setUserMetadata(const std::string& metadata) override {
    larder_set_user_metadata(metadata.c_str());
  }

  std::string getUserMetadata() override {
    return larder_user_metadata();
  }

  SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override {
    if (!initialized()) {
      SnapshotInfo nothing;
      nothing.config_metadata = settings_in_force();
      return nothing;
    }
    larder_snapshot* taken = nullptr;
    check(larder_take_snapshot(opened(), to_larder(pool), include_traces, &taken));
    Owned<larder_snapshot> owned(taken, larder_snapshot_free);
    return to_torch(*taken, device_count_);
  }

  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    for (int32_t device = 0; device < device_count_; ++device) {
      auto* told = new OutOfMemoryObserver(observer);
      check(larder_on_out_of_memory(
          opened(), device, tell_out_of_memory, destroy<OutOfMemoryObserver>, told));
    }
  }

  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    for (int32_t device = 0; device < device_count_; ++device) {
      auto* told = new AllocatorTraceTracker(tracker);
      check(larder_on_event(opened(), device, tell_event, destroy<AllocatorTraceTracker>, told));
    }
  }

#if LARDER_TORCH >= 212
  // Told of requests that throw_on_cudamalloc_oom rejects, on a thread of its own.
  void attachOomRejectionObserver(OomRejectionObserver observer) override {
    for (int32_t device = 0; device < device_count_; ++device) {
      auto* told = new OomRejectionObserver(observer);
      check(larder_on_out_of_memory(
          opened(), device, tell_rejection, destroy<OomRejectionObserver>, told));
    }
  }

  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) override {
    void* context = nullptr;
    if (larder_context_of(opened(), ptr, &context) != LARDER_OK || context == nullptr) {
      return nullptr;
    }
    auto found = context_in(context);
    release_context(nullptr, context);
    return found;
  }
#endif

#if LARDER_TORCH >= 213
  // A graph's capture has begun on the calling thread's stream, or is over. Other threads' requests
  // for it find its pool by that. Where PyTorch means something else by it, there is nothing to
  // mark.
  void markCaptureBegin(c10::DeviceIndex device) override {
    (void)larder_capture_begin(opened(), device, c10::cuda::getCurrentCUDAStream(device));
  }

  void markCaptureEnd(c10::DeviceIndex device) override {
    check(larder_capture_end(opened(), device, c10::cuda::getCurrentCUDAStream(device)));
  }

  c10::DataPtr allocateWithAddress(size_t size, void* addr) override {
    TORCH_CHECK(
        !is_uncached(),
        "memory at an address of one's own comes out of a cache, and caching is off");
    // In words that programs look for.
    TORCH_CHECK(
        reinterpret_cast<uintptr_t>(addr) % 512 == 0,
        address_text(addr) + " is not aligned to kMinBlockSize, which is 512 bytes");
    c10::DeviceIndex device = current_device();
    void* ptr = nullptr;
    if (size != 0) {
      auto stream = c10::cuda::getCurrentCUDAStream(device);
      larder_status status = larder_malloc_at(opened(), device, size, stream, addr, &ptr);
      if (status != LARDER_OK) {
        check_at(status, addr);
      }
      hand_out(status, ptr, device);
    }
    return {ptr, ptr, &delete_cached, device_named(device)};
  }
#endif

#if LARDER_TORCH >= 214
  bool supportsUserMetadata() override {
    return true;
  }

  void annotateMemory(const void* ptr, const std::string& metadata) override {
    larder_status status = larder_annotate_memory(opened(), ptr, metadata.c_str());
    rethrow_kept();
    TORCH_CHECK(
        status != LARDER_UNKNOWN_ADDRESS,
        "there is no live allocation at " + address_text(ptr) + " to annotate");
    check(status);
  }
#endif

  // The stream is about to be destroyed, which PyTorch does to none of its own.
  void forget_stream(c10::DeviceIndex device, cudaStream_t stream) {
    if (initialized()) {
      check(larder_forget_stream(opened(), device, stream));
    }
  }

  // Programs ask for this name to find out whether statistics, pools and snapshots can be had.
  std::string name() override {
    return "native";
  }

  static inline std::atomic<Backend*> installed{nullptr};

 private:
  larder* opened() const {
    larder* opened = larder_.load(std::memory_order_acquire);
    TORCH_CHECK(opened != nullptr, "the allocator is not initialised: did you call init?");
    return opened;
  }

  // Asking the runtime costs more than all the rest, and where there is one device it is that one.
  c10::DeviceIndex current_device() const {
    if (device_count_.load(std::memory_order_relaxed) == 1) [[likely]] {
      return 0;
    }
    c10::DeviceIndex device = -1;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
  }

  // Larder's own settings, if they say whether captures have plain memory, are the last word.
  std::optional<std::string> about_captures(const std::string& given) const {
    return names(settings_, "plain_captures") ? std::nullopt : std::optional(given);
  }

  // A new pool, where a library stands in front of cudaMalloc, gets its segments through that
  // library. It has one use then.
  bool is_made_interposed(c10::DeviceIndex device, c10::MempoolId_t pool) {
    uint32_t uses = 0;
    if (!malloc_is_interposed() ||
        larder_pool_uses(opened(), device, to_larder(pool), &uses) != LARDER_OK || uses > 0) {
      return false;
    }
    const auto source = runtime_source();
    // One that still has memory is no new one, and stays as it was made.
    return larder_pool_add_use(opened(), device, to_larder(pool), &source) == LARDER_OK;
  }

  bool is_uncached() const {
    return !enabled_ || caching_is_forbidden();
  }

  static void* malloc_uncached(size_t size) {
    void* ptr = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&ptr, size));
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace()) {
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
    }
    return ptr;
  }

  void* take(c10::DeviceIndex device, size_t size, cudaStream_t stream) {
    void* ptr = nullptr;
    larder_status status = larder_malloc(opened(), device, size, stream, &ptr);
    hand_out(status, ptr, device);
    return ptr;
  }

  // The end of a call that hands out memory.
  void hand_out(larder_status status, void* ptr, c10::DeviceIndex device) {
    if (auto kept = take_exception()) [[unlikely]] {
      if (status == LARDER_OK) {
        larder_free(opened(), ptr);
        (void)take_exception();
      }
      std::rethrow_exception(kept);
    }
    if (status != LARDER_OK) [[unlikely]] {
      if (status == LARDER_OUT_OF_MEMORY) {
        report_out_of_memory(device);
      }
      fail(status);
    }
    if (c10::memoryProfilingEnabled()) [[unlikely]] {
      report_malloc(opened(), ptr, device);
    }
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
    }
  }

  std::string devices_;
  std::string settings_;
  std::mutex init_mutex_;
  std::atomic<larder*> larder_{nullptr};
  std::atomic<int32_t> device_count_{0};
  std::atomic<int64_t> max_split_size_{-1};
  std::atomic<bool> enabled_{true};
};

// Memory is freed in destructors, which must not throw: what goes wrong is said, not thrown.
inline void delete_cached(void* ptr) {
  try {
    Backend::instance().put(ptr);
  } catch (const std::exception& error) {
    TORCH_WARN("memory could not be freed: ", error.what());
  }
}

inline void delete_uncached(void* ptr) {
  if (const auto* interpreter = c10::impl::GPUTrace::get_trace()) {
    (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
  }
  C10_CUDA_CHECK_WARN(cudaFree(ptr));
}

}  // namespace larder_torch
