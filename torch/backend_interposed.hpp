// A library that stands in front of cudaMalloc, as torch_memory_saver's does by LD_PRELOAD, sees what PyTorch asks the
// device for, and expects to see all of a MemPool's and a graph's memory. Where there is one, private pools get their
// segments by the runtime's own calls, which lead through it.

#pragma once

#include <dlfcn.h>

#include <string_view>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>

#include "larder.h"

namespace larder_torch {

// Whether a call of cudaMalloc from here goes to anything but the runtime.
inline bool malloc_is_interposed() {
  static const bool interposed = [] {
    Dl_info found{};
    cudaError_t (*called)(void**, size_t) = &cudaMalloc;
    if (dladdr(reinterpret_cast<void*>(called), &found) == 0 || found.dli_fname == nullptr) {
      return false;
    }
    std::string_view path = found.dli_fname;
    const auto name = path.substr(path.rfind('/') + 1);
    return name.rfind("libcudart", 0) != 0 && name.rfind("libc10", 0) != 0;
  }();
  return interposed;
}

// On a device, and allowed while streams are captured: PyTorch calls the runtime so too.
template <class Call>
inline bool called_on(int32_t device, Call call) {
  c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  int before = 0;
  bool is_done = cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(device) == cudaSuccess && call() == cudaSuccess;
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

} // namespace larder_torch
