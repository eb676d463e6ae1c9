// PyTorch's kernels of which the stand-in knows what they do. All others do nothing: memory is
// what this is about, and what is in it only where a test can see that it is the wrong memory.

#pragma once

#include <cuda_runtime_api.h>

// Remembers the device's name of a kernel.
void name_kernel(const void* host_function, const char* device_name);

// Gives a stream a kernel to run.
cudaError_t launch(const void* host_function, void** arguments, cudaStream_t stream);
