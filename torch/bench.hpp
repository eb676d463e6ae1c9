// What a malloc and a free of the allocator cost.

#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <x86intrin.h>

#include <c10/cuda/CUDACachingAllocator.h>

#include "script.hpp"

namespace bench {

// So many passes are not timed, on any side: some policies come to know a program's way in the
// first ones.
constexpr uint64_t kFirstPasses = 4;

// One operation with its allocation's place in a table, so that the timed loop looks nothing up.
struct Step {
  // What to ask for; 0 to free what is in the slot.
  uint64_t size;
  uint32_t slot;
  uint32_t stream;
};

struct Steps {
  std::vector<Step> steps;
  uint32_t slots = 0;
  uint64_t streams = 1;
};

// The `alloc` and `free` lines of a script; whatever is live at the end is freed, so that the next
// pass finds what this one found. Slots are used again, so that the table stays small.
inline Steps steps_of(const std::vector<script::Op>& ops) {
  Steps result;
  std::unordered_map<std::string, uint32_t> live;
  std::vector<uint32_t> spare;
  for (const script::Op& op : ops) {
    if (op.name == "alloc" && op.number(1) > 0) {
      auto stream = static_cast<uint32_t>(op.number(2));
      uint32_t slot = result.slots;
      if (spare.empty()) {
        result.slots += 1;
      } else {
        slot = spare.back();
        spare.pop_back();
      }
      live[op.words[0]] = slot;
      result.steps.push_back({op.number(1), slot, stream});
      result.streams = std::max<uint64_t>(result.streams, stream + 1);
    } else if (op.name == "free") {
      if (auto found = live.find(op.words.at(0)); found != live.end()) {
        result.steps.push_back({0, found->second, 0});
        spare.push_back(found->second);
        live.erase(found);
      }
    }
  }
  std::vector<uint32_t> left;
  for (const auto& [id, slot] : live) {
    left.push_back(slot);
  }
  std::sort(left.begin(), left.end());
  for (uint32_t slot : left) {
    result.steps.push_back({0, slot, 0});
  }
  return result;
}

// One pass over all steps, on streams that start at `first_stream`.
inline void pass(const Steps& steps, std::vector<void*>& table, uint64_t first_stream) {
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  for (const Step& step : steps.steps) {
    if (step.size > 0) {
      auto stream = script::handle(first_stream + step.stream);
      table[step.slot] = allocator->raw_alloc_with_stream(step.size, stream);
    } else {
      allocator->raw_delete(table[step.slot]);
    }
  }
}

// The same with other memory touched before each step, as programs do; how many of the processor's
// ticks the steps alone took.
inline uint64_t cold_pass(
    const Steps& steps,
    std::vector<void*>& table,
    uint64_t first_stream,
    std::vector<unsigned char>& other) {
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  uint64_t ticks = 0;
  for (const Step& step : steps.steps) {
    // One byte of each line of the caches.
    volatile unsigned char* byte = other.data();
    for (size_t at = 0; at < other.size(); at += 64) {
      byte[at] = static_cast<unsigned char>(byte[at] + 1);
    }
    const uint64_t begin = __rdtsc();
    if (step.size > 0) {
      auto stream = script::handle(first_stream + step.stream);
      table[step.slot] = allocator->raw_alloc_with_stream(step.size, stream);
    } else {
      allocator->raw_delete(table[step.slot]);
    }
    ticks += __rdtsc() - begin;
  }
  return ticks;
}

// What the processor counts in a while, and how long that was.
struct Ticks {
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
  uint64_t ticks = __rdtsc();

  std::chrono::nanoseconds duration_of(uint64_t count) const {
    const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - time;
    const double ns = passed.count() / static_cast<double>(__rdtsc() - ticks);
    return std::chrono::nanoseconds(static_cast<int64_t>(ns * static_cast<double>(count)));
  }
};

// Where threads meet: none goes on before all have come.
class Barrier {
 public:
  explicit Barrier(size_t count) : left_(count) {}

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    left_ -= 1;
    if (left_ == 0) {
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [this] { return left_ == 0; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  size_t left_;
};

inline void run(
    const std::string& path, uint64_t repeat, uint64_t threads, uint64_t between_bytes) {
  auto steps = steps_of(script::read(path));
  using Clock = std::chrono::steady_clock;
  Barrier ready(threads);
  // The threads read the clock themselves: on a full machine this one may sleep for longer than
  // they run.
  std::vector<Clock::time_point> starts(threads), ends(threads);
  std::vector<std::thread> runs;
  std::vector<std::exception_ptr> failures(threads);
  for (uint64_t thread = 0; thread < threads; ++thread) {
    runs.emplace_back([&, thread] {
      std::vector<void*> table(steps.slots);
      uint64_t first_stream = thread * steps.streams;
      bool is_ready = false;
      try {
        for (uint64_t i = 0; i < kFirstPasses; ++i) {
          pass(steps, table, first_stream);
        }
        is_ready = true;
        ready.wait();
        starts[thread] = Clock::now();
        if (between_bytes == 0) {
          for (uint64_t i = 0; i < repeat; ++i) {
            pass(steps, table, first_stream);
          }
          ends[thread] = Clock::now();
        } else {
          std::vector<unsigned char> other(between_bytes);
          const Ticks since;
          uint64_t ticks = 0;
          for (uint64_t i = 0; i < repeat; ++i) {
            ticks += cold_pass(steps, table, first_stream, other);
          }
          ends[thread] = starts[thread] + since.duration_of(ticks);
        }
      } catch (...) {
        failures[thread] = std::current_exception();
        if (!is_ready) {
          ready.wait();
        }
      }
    });
  }
  for (auto& run : runs) {
    run.join();
  }
  for (auto& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
  std::chrono::duration<double, std::nano> elapsed =
      *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
  uint64_t ops = steps.steps.size() * repeat * threads;
  double ns_per_op = elapsed.count() / static_cast<double>(std::max<uint64_t>(ops, 1));
  std::cout << "{\"ns_per_op\":" << ns_per_op << ",\"ops\":" << ops << ",\"threads\":" << threads
            << "}\n";
}

}  // namespace bench
