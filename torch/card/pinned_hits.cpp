// What a hit of pinned memory costs in C++: a request that the cache can meet and the free behind
// it, through PyTorch's own interface, whichever allocator stands behind it.

#include <algorithm>
#include <chrono>
#include <cstddef>

#include <ATen/core/CachingHostAllocator.h>

// The best of some rounds, in nanoseconds for one request with its free.
extern "C" double pinned_hit_ns(size_t size, int count) {
  using Clock = std::chrono::steady_clock;
  at::HostAllocator* allocator = at::getHostAllocator(at::kCUDA);
  // The first brings the memory.
  allocator->allocate(size).clear();
  double best = 1e18;
  for (int round = 0; round < 10; ++round) {
    const auto begin = Clock::now();
    for (int each = 0; each < count; ++each) {
      const at::DataPtr block = allocator->allocate(size);
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    best = std::min(best, took.count() / count);
  }
  return best;
}
