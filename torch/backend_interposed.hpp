// A library that stands in front of cudaMalloc, as torch_memory_saver's does by LD_PRELOAD, sees
// what PyTorch asks the device for, and expects to see all of a MemPool's and a graph's memory.
// Where there is one, private pools get their segments by the runtime's own calls, which lead
// through it.

#pragma once

#include <link.h>

#include <cstdint>
#include <string>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>

#include "larder.h"

namespace larder_torch {

// The file of the library in which a function lies; empty if it is in none.
inline std::string library_of(uintptr_t function) {
  struct Search {
    uintptr_t address;
    std::string path;
  } search{function, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        for (int at = 0; at < library->dlpi_phnum; ++at) {
          const auto& part = library->dlpi_phdr[at];
          if (part.p_type == PT_LOAD &&
              search.address - library->dlpi_addr - part.p_vaddr < part.p_memsz) {
            search.path = library->dlpi_name;
            return 1;
          }
        }
        return 0;
      },
      &search);
  return search.path;
}

// Whether a call of cudaMalloc from here goes to anything but the runtime.
inline bool malloc_is_interposed() {
  static const bool interposed = [] {
    cudaError_t (*called)(void**, size_t) = &cudaMalloc;
    const std::string path = library_of(reinterpret_cast<uintptr_t>(called));
    const std::string name = path.substr(path.rfind('/') + 1);
    return !name.empty() && name.rfind("libcudart", 0) != 0 && name.rfind("libc10", 0) != 0;
  }();
  return interposed;
}

// On a device, and allowed while streams are captured: PyTorch calls the runtime so too.
template <class Call>
inline bool called_on(int32_t device, Call call) {
  c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  int before = 0;
  bool is_done = cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(device) == cudaSuccess &&
                 call() == cudaSuccess;
  if (!is_done) {
    // The runtime's last error would come up at the next launch of a kernel.
    (void)cudaGetLastError();
  }
  (void)cudaSetDevice(before);
  return is_done;
}

inline larder_source runtime_source() {
  larder_source source{};
  source.alloc = [](void*, size_t size, int32_t device, void*) -> void* {
    void* address = nullptr;
    return called_on(device, [&] { return cudaMalloc(&address, size); }) ? address : nullptr;
  };
  source.free = [](void*, void* address, size_t, int32_t device, void*) {
    called_on(device, [&] { return cudaFree(address); });
  };
  return source;
}

}  // namespace larder_torch
