/* In the place of CUDA's header of this name, for code that runs on the host alone and where the
 * headers of CUDA's compiler are not installed: PyTorch's packages bring the runtime's headers, but
 * not those. */
#pragma once
#include <cuda_runtime_api.h>
