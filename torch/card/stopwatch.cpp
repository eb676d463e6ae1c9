// Times what memory costs a program: each malloc of PyTorch's allocator, whichever is in place, and
// each call for memory of the CUDA driver and runtime. It stands in front of a program by
// LD_PRELOAD, so that nothing that is timed knows of it.

#include <dlfcn.h>
#include <x86intrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

using Address = unsigned long long;

// What was timed since somebody looked last.
struct Times {
  std::atomic<uint64_t> count{0}, total{0}, worst{0};

  void add(uint64_t lap) {
    count += 1;
    total += lap;
    uint64_t most = worst;
    while (most < lap && !worst.compare_exchange_weak(most, lap)) {
    }
  }

  void take(uint64_t* values, double ns_per_tick) {
    values[0] = count.exchange(0);
    values[1] = static_cast<uint64_t>(ns_per_tick * static_cast<double>(total.exchange(0)));
    values[2] = static_cast<uint64_t>(ns_per_tick * static_cast<double>(worst.exchange(0)));
  }
};

Times mallocs, calls;
thread_local int calls_begun = 0;

// The processor's own counter: to ask the system what time it is takes as long as a malloc, and
// wants memory that a program has driven out of the caches meanwhile.
uint64_t ticks() {
  return __rdtsc();
}

double elapsed_ns(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - since).count();
}

// What a tick is, by the time that has passed since the library was loaded.
const auto loaded = std::chrono::steady_clock::now();
const uint64_t loaded_ticks = ticks();

double ns_per_tick() {
  return elapsed_ns(loaded) / static_cast<double>(ticks() - loaded_ticks);
}

// A call of the driver's. The runtime's cudaMalloc calls the driver's own, and both are one.
struct Lap {
  uint64_t begin = calls_begun++ == 0 ? ticks() : 0;

  ~Lap() {
    if (--calls_begun == 0) {
      calls.add(ticks() - begin);
    }
  }
};

using Find = void* (*)(void*, const char*) noexcept;

// The C library's own dlsym, by the name of its version, since that without one is the one below.
Find finder() noexcept {
  static const Find find = [] {
    void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    return reinterpret_cast<Find>(found ? found : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  }();
  return find;
}

void* find(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  void* found = handle ? finder()(handle, name) : nullptr;
  if (found == nullptr) {
    std::abort();
  }
  return found;
}

constexpr char DRIVER[] = "libcuda.so.1";
constexpr char RUNTIME[] = "libcudart.so.13";

}  // namespace

#define TIMED(library, name, declared, given)                                         \
  extern "C" int name declared {                                                      \
    static const auto real = reinterpret_cast<int(*) declared>(find(library, #name)); \
    Lap lap;                                                                          \
    return real given;                                                                \
  }

TIMED(RUNTIME, cudaMalloc, (void** address, size_t size), (address, size))
TIMED(RUNTIME, cudaFree, (void* address), (address))
TIMED(DRIVER, cuMemAlloc_v2, (Address * address, size_t size), (address, size))
TIMED(DRIVER, cuMemFree_v2, (Address address), (address))
TIMED(
    DRIVER,
    cuMemAddressReserve,
    (Address * address, size_t size, size_t alignment, Address wish, Address flags),
    (address, size, alignment, wish, flags))
TIMED(DRIVER, cuMemAddressFree, (Address address, size_t size), (address, size))
TIMED(
    DRIVER,
    cuMemCreate,
    (Address * page, size_t size, const void* kind, Address flags),
    (page, size, kind, flags))
TIMED(DRIVER, cuMemRelease, (Address page), (page))
TIMED(
    DRIVER,
    cuMemMap,
    (Address address, size_t size, size_t offset, Address page, Address flags),
    (address, size, offset, page, flags))
TIMED(DRIVER, cuMemUnmap, (Address address, size_t size), (address, size))
TIMED(
    DRIVER,
    cuMemSetAccess,
    (Address address, size_t size, const void* access, size_t count),
    (address, size, access, count))

namespace {

// Under the names by which the driver's table of functions knows them, too, which have no version.
const std::pair<const char*, void*> OURS[] = {
    {"cudaMalloc", reinterpret_cast<void*>(cudaMalloc)},
    {"cudaFree", reinterpret_cast<void*>(cudaFree)},
    {"cuMemAlloc", reinterpret_cast<void*>(cuMemAlloc_v2)},
    {"cuMemAlloc_v2", reinterpret_cast<void*>(cuMemAlloc_v2)},
    {"cuMemFree", reinterpret_cast<void*>(cuMemFree_v2)},
    {"cuMemFree_v2", reinterpret_cast<void*>(cuMemFree_v2)},
    {"cuMemAddressReserve", reinterpret_cast<void*>(cuMemAddressReserve)},
    {"cuMemAddressFree", reinterpret_cast<void*>(cuMemAddressFree)},
    {"cuMemCreate", reinterpret_cast<void*>(cuMemCreate)},
    {"cuMemRelease", reinterpret_cast<void*>(cuMemRelease)},
    {"cuMemMap", reinterpret_cast<void*>(cuMemMap)},
    {"cuMemUnmap", reinterpret_cast<void*>(cuMemUnmap)},
    {"cuMemSetAccess", reinterpret_cast<void*>(cuMemSetAccess)},
};

void* ours(const char* name) {
  for (const auto& [known, function] : OURS) {
    if (std::strcmp(known, name) == 0) {
      return function;
    }
  }
  return nullptr;
}

}  // namespace

// The driver's functions by name: how the runtime comes to them.
extern "C" int cuGetProcAddress(const char* name, void** function, int version, Address flags) {
  static const auto real = reinterpret_cast<int (*)(const char*, void**, int, Address)>(
      find(DRIVER, "cuGetProcAddress"));
  const int result = real(name, function, version, flags);
  void* own = ours(name);
  if (result == 0 && own != nullptr) {
    *function = own;
  }
  return result;
}

extern "C" int cuGetProcAddress_v2(
    const char* name, void** function, int version, Address flags, void* status) {
  static const auto real = reinterpret_cast<int (*)(const char*, void**, int, Address, void*)>(
      find(DRIVER, "cuGetProcAddress_v2"));
  const int result = real(name, function, version, flags, status);
  const bool asks_for_this = std::strcmp(name, "cuGetProcAddress") == 0;
  void* own =
      asks_for_this && version >= 12000 ? reinterpret_cast<void*>(cuGetProcAddress_v2) : ours(name);
  if (result == 0 && own != nullptr && *function != nullptr) {
    *function = own;
  }
  return result;
}

// It has to end in a jump: the C library looks at who called to know what comes next to them.
extern "C" __attribute__((optimize("O2"))) void* dlsym(void* handle, const char* name) noexcept {
  if (std::strncmp(name, "cu", 2) == 0) {
    if (std::strcmp(name, "cuGetProcAddress") == 0) {
      return reinterpret_cast<void*>(cuGetProcAddress);
    }
    if (std::strcmp(name, "cuGetProcAddress_v2") == 0) {
      return reinterpret_cast<void*>(cuGetProcAddress_v2);
    }
    if (void* own = ours(name)) {
      return own;
    }
  }
  return finder()(handle, name);
}

namespace {

// c10::Allocator declares its destructor first, which takes two places in the table, and then
// allocate.
constexpr size_t BEFORE_TABLE = 2, ALLOCATE_PLACE = 2, PLACES = 96;

// The result is an object, so that the caller says where it goes, as the first argument.
using Allocate = void* (*)(void* result, void* allocator, size_t size);
Allocate real_allocate = nullptr;

void* timed_allocate(void* result, void* allocator, size_t size) {
  const uint64_t begin = ticks();
  void* given = real_allocate(result, allocator, size);
  mallocs.add(ticks() - begin);
  return given;
}

}  // namespace

// Times PyTorch's allocator from now on: its object gets a copy of its table of functions, in which
// allocate is ours.
extern "C" int stopwatch_start() {
  void* library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    return 1;
  }
  auto* current = reinterpret_cast<void****>(
      finder()(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
  if (current == nullptr || *current == nullptr) {
    return 2;
  }
  void*** allocator = *current;
  void** table = *allocator;
  void** copy = new void*[BEFORE_TABLE + PLACES];
  std::memcpy(copy, table - BEFORE_TABLE, (BEFORE_TABLE + PLACES) * sizeof(void*));
  real_allocate = reinterpret_cast<Allocate>(table[ALLOCATE_PLACE]);
  copy[BEFORE_TABLE + ALLOCATE_PLACE] = reinterpret_cast<void*>(timed_allocate);
  *allocator = copy + BEFORE_TABLE;
  return 0;
}

// How many there were, what they took and what the slowest took, of mallocs and then of calls; and
// begins anew.
extern "C" void stopwatch_take(uint64_t* values) {
  mallocs.take(values, ns_per_tick());
  calls.take(values + 3, ns_per_tick());
}
