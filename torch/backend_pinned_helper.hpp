// The thread of PyTorch's setting pinned_use_background_threads: it asks whether copies are done,
// so that requests find what they need in the cache and need not ask.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "larder.h"

namespace larder_torch {

// A process that was forked from one with pinned memory has no CUDA and no such thread, and what it
// frees is its parent's.
inline std::atomic<bool> is_forked{false};

// It lives as long as the process; its thread ends before CUDA does.
class PinnedHelper {
 public:
  // Asks from now on, or no longer.
  void run(larder* host, bool wanted) {
    is_wanted_ = wanted;
    if (is_forked) {
      return;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    if (wanted && !thread_.joinable()) {
      thread_ = std::thread([this, host] { ask(host); });
      self() = this;
      (void)std::atexit([] { self()->end(); });
    }
  }

 private:
  static PinnedHelper*& self() {
    static PinnedHelper* helper = nullptr;
    return helper;
  }

  void ask(larder* host) {
    while (!is_over_) {
      // What goes wrong is told to the request that asks next.
      if (is_wanted_) {
        (void)larder_poll(host);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  void end() {
    is_over_ = true;
    if (!is_forked) {
      thread_.join();
    }
  }

  std::mutex mutex_;
  std::thread thread_;
  std::atomic<bool> is_wanted_{false};
  std::atomic<bool> is_over_{false};
};

}  // namespace larder_torch
