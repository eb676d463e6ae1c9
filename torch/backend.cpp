// Puts Larder in the place of PyTorch's own CUDA allocator.
//
// The library that this file becomes is loaded into a process with PyTorch in it, and
// larder_torch_install() is called before anything of CUDA is used. It needs nothing of Python, so
// that a C++ program can load it too. It builds against PyTorch 2.11 and later.

#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <regex>
#include <string>
#include <utility>

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include "backend_allocator.hpp"
#include "backend_pinned.hpp"
#include "backend_values.hpp"

namespace larder_torch {
namespace {

namespace config = c10::CachingAllocator;

// PyTorch reads settings in two steps, of which the second is a hook for what is CUDA's own. Ours
// comes after it and looks at the outcome.
void follow_settings(Backend& backend) {
  auto& hook = config::AcceleratorAllocatorConfig::getConfigParserHook();
  hook = [&backend, before = hook](const std::string& text) {
    if (before) {
      before(text);
    }
    backend.reconfigure(text);
    if (PinnedBackend* pinned = PinnedBackend::installed.load()) {
      pinned->reconfigure();
    }
  };
}

// PyTorch's kernels run on real devices alone. "process" is the device that the process has beside
// PyTorch, and only a program without kernels names it.
std::string devices_asked_for() {
  const char* asked = std::getenv("LARDER_DEVICE");
  std::string devices = asked != nullptr ? asked : "cuda";
  TORCH_CHECK(
      devices == "cuda" || devices == "process", "LARDER_DEVICE is '", devices,
      "', and PyTorch needs real GPUs and chooses them itself: unset it, and "
      "choose GPUs by CUDA_VISIBLE_DEVICES");
  return devices;
}

// "policy:torch" is that of the PyTorch in use, which this library was built for.
std::string with_own_torch(const std::string& settings) {
  static const std::regex own_policy(R"((^|,)\s*policy\s*:\s*torch\s*(?=,|$))");
  return std::regex_replace(settings, own_policy, "$1policy:torch-" LARDER_TORCH_TEXT);
}

// PyTorch reads its settings when they are first asked for; a mistake in them shall be found before
// anything is changed.
void have_settings_read() {
  const std::string complaint =
      "PyTorch cannot read PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF: ";
  try {
    (void)config::AcceleratorAllocatorConfig::instance();
    (void)c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::instance();
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, complaint + error.what_without_backtrace());
  } catch (const std::exception& error) {
    TORCH_CHECK(false, complaint + error.what());
  }
}

// Puts Larder in the place of PyTorch's allocator of pinned host memory too, unless the settings
// leave it to PyTorch. The place is in PyTorch's large library, which a program with the allocator
// alone does not have; it is looked for where it is loaded already, and linked to by nobody.
void install_pinned(const std::string& settings) {
  bool leaves = false;
  check(larder_leaves_pinned(settings.c_str(), &leaves));
  void* library = leaves ? nullptr : dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    return;
  }
  using Set = void (*)(at::DeviceType, at::HostAllocator*, uint8_t);
  constexpr const char* kSet = "_ZN2at16setHostAllocatorEN3c1010DeviceTypeEPNS_13HostAllocatorEh";
  auto set = reinterpret_cast<Set>(dlsym(library, kSet));
  TORCH_CHECK(set != nullptr, "PyTorch has no place for an allocator of pinned host memory");
  auto pinned = std::make_unique<PinnedBackend>(settings);
  PinnedBackend::installed = pinned.get();
  set(at::kCUDA, pinned.release(), /*priority=*/255);
}

// The libraries that a process finds under the name liblarder.so need not be those that this one
// was built with; of another version they might lay out their values differently.
void check_version() {
  std::string built_for =
      std::to_string(LARDER_VERSION_MAJOR) + "." + std::to_string(LARDER_VERSION_MINOR) + ".";
  std::string found = larder_version();
  TORCH_CHECK(
      found.rfind(built_for, 0) == 0, "this library was built for Larder " + built_for +
                                          "x, and the liblarder.so that it found is " + found);
}

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

bool& was_out_of_memory() {
  static thread_local bool was = false;
  return was;
}

// Runs the body of a call. Returns 0, or 1 with the reason in last_error().
template <typename Body>
int caught(Body&& body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& error) {
    last_error() = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error() = error.what();
  }
  return 1;
}

// Calls with the backend that is installed; its errors are kept for larder_torch_last_error().
template <typename Body>
int with_backend(Body&& body) {
  return caught([&] {
    Backend* backend = Backend::installed.load();
    TORCH_CHECK(backend != nullptr, "Larder is not installed in this process");
    body(*backend);
  });
}

}  // namespace
}  // namespace larder_torch

extern "C" {

// Puts Larder in the place of PyTorch's own allocator. `settings` are Larder's own, "key:value,…",
// or NULL for those of the variable LARDER_CONF; PyTorch's come from PyTorch. Returns 0, or 1 with
// the reason in larder_torch_last_error(), and then nothing was changed.
__attribute__((visibility("default"))) int larder_torch_install(const char* settings) {
  using namespace larder_torch;
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  return caught([&] {
    if (Backend::installed.load() != nullptr) {
      return;
    }
    auto& current = c10::cuda::CUDACachingAllocator::allocator;
    TORCH_CHECK(
        !current.load()->initialized(),
        "CUDA is in use already, and what was allocated cannot change hands: install Larder before "
        "the first use of CUDA");
    TORCH_CHECK(
        current.load()->name() == "native", "PyTorch's allocator is '", current.load()->name(),
        "', and Larder takes the place of the "
        "native one only");
    check_version();
    have_settings_read();
    const char* environment = std::getenv("LARDER_CONF");
    std::string wanted = settings != nullptr ? settings : environment != nullptr ? environment : "";
    check_settings(wanted);
    const std::string devices = devices_asked_for();
    auto backend = std::make_unique<Backend>(devices, with_own_torch(wanted));
    if (devices == "cuda") {
      install_pinned(with_own_torch(wanted));
    }
    follow_settings(*backend);
    Backend::installed = backend.get();
    current = backend.get();
    c10::SetAllocator(c10::kCUDA, backend.release(), /*priority=*/255);
  });
}

__attribute__((visibility("default"))) int larder_torch_is_installed(void) {
  return larder_torch::Backend::installed.load() != nullptr;
}

// Why the calling thread's last larder_torch_install failed.
__attribute__((visibility("default"))) const char* larder_torch_last_error(void) {
  return larder_torch::last_error().c_str();
}

// A stream of the program's own is about to be destroyed. Returns 0, or 1 with the reason in
// larder_torch_last_error().
__attribute__((visibility("default"))) int larder_torch_forget_stream(int device, void* stream) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    backend.forget_stream(static_cast<c10::DeviceIndex>(device), static_cast<cudaStream_t>(stream));
  });
}

// What other libraries of the process share with PyTorch is one cache. Memory of the device for
// work on the stream, NULL for no bytes. NULL for others too where it cannot be, with the reason in
// larder_torch_last_error().
__attribute__((visibility("default"))) void* larder_torch_take(
    int device, size_t size, void* stream) {
  void* ptr = nullptr;
  larder_torch::was_out_of_memory() = false;
  (void)larder_torch::with_backend([&](larder_torch::Backend& backend) {
    try {
      ptr = backend.take_for(
          static_cast<c10::DeviceIndex>(device), size, static_cast<cudaStream_t>(stream));
    } catch (const c10::OutOfMemoryError&) {
      larder_torch::was_out_of_memory() = true;
      throw;
    }
  });
  return ptr;
}

// Whether the calling thread's last larder_torch_take failed for want of memory.
__attribute__((visibility("default"))) int larder_torch_was_out_of_memory(void) {
  return larder_torch::was_out_of_memory();
}

// Gives it back to the stream that it was taken for. Returns 0, or 1 with the reason in
// larder_torch_last_error(); so does the next.
__attribute__((visibility("default"))) int larder_torch_put(void* ptr) {
  return larder_torch::with_backend(
      [&](larder_torch::Backend& backend) { backend.raw_delete(ptr); });
}

// Another stream uses it too: once it is given back, it serves nobody before the work that is on
// the stream then.
__attribute__((visibility("default"))) int larder_torch_record_use(void* ptr, void* stream) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    backend.record_use(ptr, static_cast<cudaStream_t>(stream));
  });
}

// Requests of the calling thread get memory that other processes and libraries can be given, until
// as many ends. Returns 0, or 1 with the reason in larder_torch_last_error(); so does the end.
__attribute__((visibility("default"))) int larder_torch_plain_begin(void) {
  return larder_torch::with_backend([](larder_torch::Backend& backend) { backend.begin_plain(); });
}

__attribute__((visibility("default"))) int larder_torch_plain_end(void) {
  return larder_torch::with_backend([](larder_torch::Backend& backend) { backend.end_plain(); });
}

// Requests of the calling thread get memory of a tag, or of none, until as many ends; see
// larder_region_begin. Returns 0, or 1 with the reason in larder_torch_last_error(); so do those
// below.
__attribute__((visibility("default"))) int larder_torch_region_begin(const char* tag, int keep) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    backend.begin_region(tag, static_cast<larder_keep>(keep));
  });
}

__attribute__((visibility("default"))) int larder_torch_region_end(const char* tag) {
  return larder_torch::with_backend(
      [&](larder_torch::Backend& backend) { backend.end_region(tag); });
}

__attribute__((visibility("default"))) int larder_torch_regions_leave(void) {
  return larder_torch::with_backend(
      [](larder_torch::Backend& backend) { backend.leave_regions(); });
}

__attribute__((visibility("default"))) int larder_torch_regions_return(void) {
  return larder_torch::with_backend(
      [](larder_torch::Backend& backend) { backend.return_to_regions(); });
}

// Puts memory of tags, or with NULL all memory, to sleep; see larder_sleep. `out` has room for
// what larder_slept has.
__attribute__((visibility("default"))) int larder_torch_sleep(
    int device, const char* tags, int keep, uint64_t* out) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    const larder_slept slept =
        backend.sleep(static_cast<c10::DeviceIndex>(device), tags, static_cast<larder_keep>(keep));
    out[0] = slept.asleep_bytes;
    out[1] = slept.kept_bytes;
    out[2] = slept.plain_bytes;
  });
}

__attribute__((visibility("default"))) int larder_torch_wake(int device, const char* tags) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    backend.wake(static_cast<c10::DeviceIndex>(device), tags);
  });
}

// What sleeps, in the order of larder_sleep_stats.
__attribute__((visibility("default"))) int larder_torch_sleep_stats(int device, uint64_t* out) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    const larder_sleep_stats stats = backend.sleep_stats(static_cast<c10::DeviceIndex>(device));
    out[0] = stats.asleep_bytes;
    out[1] = stats.used_bytes;
    out[2] = stats.kept_bytes;
    out[3] = stats.spare_bytes;
    out[4] = stats.generation;
  });
}

__attribute__((visibility("default"))) int larder_torch_set_keep_limit(
    int device, uint64_t limit_bytes) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    backend.set_keep_limit(static_cast<c10::DeviceIndex>(device), limit_bytes);
  });
}

// The next pool that the calling thread makes over a custom allocator is symmetric: where its
// blocks lie follows from the calls alone, and segments have at least so many bytes.
__attribute__((visibility("default"))) void larder_torch_ask_for_symmetric(size_t growth_bytes) {
  larder_torch::symmetric_asked_for() = growth_bytes;
}

// Whether it was made meanwhile; from here on nothing is asked for any more.
__attribute__((visibility("default"))) int larder_torch_symmetric_was_made(void) {
  return !std::exchange(larder_torch::symmetric_asked_for(), std::nullopt).has_value();
}

// Where a live block lies in its symmetric pool: its segment, its offset there, the number of the
// call that made it. Returns 0, or 1 with the reason in larder_torch_last_error(); so do those
// below.
__attribute__((visibility("default"))) int larder_torch_position_of(
    const void* ptr, uint64_t* out) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    const larder_position found = backend.position_of(ptr);
    out[0] = found.segment;
    out[1] = found.offset;
    out[2] = found.generation;
  });
}

// Compares the calls of all ranks; see larder_pool_seal.
__attribute__((visibility("default"))) int larder_torch_seal(
    int device,
    uint64_t pool_a,
    uint64_t pool_b,
    size_t ranks,
    bool (*exchange)(void*, const void*, void*),
    uint64_t* calls) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    *calls = backend.seal(static_cast<c10::DeviceIndex>(device), {pool_a, pool_b}, ranks, exchange);
  });
}

// Gives back the empty segments of a symmetric pool; see larder_pool_trim.
__attribute__((visibility("default"))) int larder_torch_trim(
    int device, uint64_t pool_a, uint64_t pool_b, uint64_t* segments) {
  return larder_torch::with_backend([&](larder_torch::Backend& backend) {
    *segments = backend.trim(static_cast<c10::DeviceIndex>(device), {pool_a, pool_b});
  });
}

// For programs that are to run on the PyTorch that this library was built for and on no other.
__attribute__((visibility("default"))) const char* larder_torch_version(void) {
  return LARDER_TORCH_TEXT;
}

}  // extern "C"
