// What graph captures mean for pinned memory: the host writes to it whenever it likes, and not when
// a graph is replayed. So what was taken inside a capture and copied there is nobody else's as long
// as the graph may be replayed, though the program gives it back.

#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/Stream.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "backend_hooks.hpp"
#include "larder.h"

namespace larder_torch {

using HostFilter = std::function<bool(c10::Stream)>;

// PyTorch asks about the stream that the calling thread works on: memory of the host is of none.
inline larder_filter host_filter_of(std::shared_ptr<HostFilter> filter) {
  larder_filter asked{};
  asked.kind = LARDER_FILTER_FUNCTION;
  asked.takes = [](void* data, void*) {
    return keeping_exceptions([&] {
      return (**static_cast<std::shared_ptr<HostFilter>*>(data))(c10::cuda::getCurrentCUDAStream());
    });
  };
  asked.release = destroy<std::shared_ptr<HostFilter>>;
  asked.data = new std::shared_ptr<HostFilter>(std::move(filter));
  return asked;
}

class PinnedCaptures {
 public:
  // Whether there is anything to look after. Nearly always there is not.
  bool is_on() const {
    return watched_.load(std::memory_order_relaxed) != 0;
  }

  void begin(c10::MempoolId_t pool, std::shared_ptr<HostFilter> filter) {
    std::lock_guard<std::mutex> guard(mutex_);
    open_.emplace_back(pool, std::move(filter));
    released_.erase(pool);
    count();
  }

  void end(c10::MempoolId_t pool) {
    std::lock_guard<std::mutex> guard(mutex_);
    open_.erase(
        std::remove_if(
            open_.begin(), open_.end(), [&](const auto& scope) { return scope.first == pool; }),
        open_.end());
    count();
  }

  // No graph uses the pool any more.
  void release(c10::MempoolId_t pool) {
    std::lock_guard<std::mutex> guard(mutex_);
    released_.insert(pool);
  }

  // Memory was taken; the calling thread may be in the middle of a capture.
  void note_taken(void* ptr) {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    if (status == cudaStreamCaptureStatusNone) {
      return;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [pool, filter] : open_) {
      if ((*filter)(stream)) {
        taken_[ptr] = {pool, false};
        count();
        return;
      }
    }
  }

  // A stream of this device copies from it or to it.
  void note_used(void* ptr, c10::DeviceIndex device) {
    devices_.fetch_or(uint64_t{1} << (device & 63), std::memory_order_relaxed);
    if (is_on()) [[unlikely]] {
      std::lock_guard<std::mutex> guard(mutex_);
      if (auto found = taken_.find(ptr); found != taken_.end()) {
        found->second.used = true;
      }
    }
  }

  // Whether memory that the program gives back is still a graph's.
  bool keeps(void* ptr) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto found = taken_.find(ptr);
    if (found == taken_.end()) {
      return false;
    }
    const Taken taken = found->second;
    taken_.erase(found);
    if (taken.used) {
      kept_[taken.pool].push_back(ptr);
    }
    count();
    return taken.used;
  }

  // What was kept for graphs that are gone, once their last replay is done. Nothing while any
  // capture is on: nobody may wait for a device then.
  std::vector<void*> take_kept() {
    std::vector<void*> kept;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (!open_.empty()) {
        return kept;
      }
      for (const auto& pool : released_) {
        auto found = kept_.find(pool);
        if (found != kept_.end()) {
          kept.insert(kept.end(), found->second.begin(), found->second.end());
          kept_.erase(found);
        }
      }
    }
    if (!kept.empty()) {
      wait_for_devices();
    }
    return kept;
  }

 private:
  struct Taken {
    c10::MempoolId_t pool;
    bool used = false;
  };

  void count() {
    watched_.store(open_.size() + taken_.size(), std::memory_order_relaxed);
  }

  void wait_for_devices() const {
    const uint64_t devices = devices_.load(std::memory_order_relaxed);
    for (int device = 0; device < 64; ++device) {
      if ((devices >> device & 1) != 0) {
        c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
        C10_CUDA_CHECK(cudaDeviceSynchronize());
      }
    }
  }

  std::mutex mutex_;
  std::vector<std::pair<c10::MempoolId_t, std::shared_ptr<HostFilter>>> open_;
  std::unordered_map<void*, Taken> taken_;
  std::unordered_map<c10::MempoolId_t, std::vector<void*>, c10::MempoolIdHash> kept_;
  std::set<c10::MempoolId_t> released_;
  std::atomic<size_t> watched_{0};
  std::atomic<uint64_t> devices_{0};
};

}  // namespace larder_torch
