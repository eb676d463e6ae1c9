// A thread that does for pinned memory what requests then need not wait for: it asks whether copies
// are done (PyTorch's setting pinned_use_background_threads), gets memory ahead of need and gives
// back what nobody uses (Larder's pinned_ahead and pinned_idle_s).

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
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
  // Does from now on what is wanted. Whether it asks may change later.
  void run(larder* host, bool asks, const larder_pinned_keeping& keeping) {
    // In a forked process the thread is gone, and may have left the mutex locked.
    if (is_forked) {
      return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    asks_ = asks;
    const bool is_wanted = asks || keeping.ahead_bytes != 0 || keeping.idle_s != 0;
    if (is_wanted && !thread_.joinable()) {
      thread_ = std::thread([this, host, keeping] { work(host, keeping); });
      self() = this;
      (void)std::atexit([] { self()->end(); });
    }
    lock.unlock();
    changed_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;

  static PinnedHelper*& self() {
    static PinnedHelper* helper = nullptr;
    return helper;
  }

  // What goes wrong here is told to the request that asks next.
  void work(larder* host, const larder_pinned_keeping& keeping) {
    const auto idle = std::chrono::seconds(keeping.idle_s);
    auto next_look = Clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_over_) {
      const bool asks = asks_;
      lock.unlock();
      if (asks) {
        (void)larder_poll(host);
      }
      if (keeping.ahead_bytes != 0) {
        (void)larder_grow_ahead(host, 0, keeping.ahead_bytes, larder_host_stream(), nullptr);
      }
      if (keeping.idle_s != 0 && Clock::now() >= next_look) {
        const auto age = static_cast<uint64_t>(std::chrono::nanoseconds(idle).count());
        (void)larder_release_unused(host, 0, age, keeping.ahead_bytes, nullptr);
        next_look = Clock::now() + idle / 4;
      }
      lock.lock();
      // By this clock, since older systems cannot wait by the other.
      const auto until = std::chrono::system_clock::now() + pause(asks, keeping);
      changed_.wait_until(lock, until, [&] { return is_over_ || asks_ != asks; });
    }
  }

  static Clock::duration pause(bool asks, const larder_pinned_keeping& keeping) {
    if (asks) {
      return std::chrono::microseconds(100);
    }
    if (keeping.ahead_bytes != 0) {
      return std::chrono::milliseconds(1);
    }
    if (keeping.idle_s != 0) {
      return std::chrono::milliseconds(250) * keeping.idle_s;
    }
    return std::chrono::hours(1);
  }

  void end() {
    if (is_forked) {
      return;
    }
    {
      std::lock_guard<std::mutex> guard(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  bool asks_ = false;
  bool is_over_ = false;
};

}  // namespace larder_torch
