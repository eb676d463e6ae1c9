// What PyTorch asks of the driver besides what the stand-in of the proof has. Kernels that are
// compiled while a program runs cannot be run here.

#include "not_supported.h"

extern "C" {

int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

NOT_SUPPORTED(cuFuncGetAttribute)
NOT_SUPPORTED(cuFuncSetAttribute)
NOT_SUPPORTED(cuFuncSetCacheConfig)
NOT_SUPPORTED(cuLaunchCooperativeKernel)
NOT_SUPPORTED(cuLinkAddData_v2)
NOT_SUPPORTED(cuLinkComplete)
NOT_SUPPORTED(cuLinkCreate_v2)
NOT_SUPPORTED(cuModuleLoad)
NOT_SUPPORTED(cuModuleLoadDataEx)
NOT_SUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_SUPPORTED(cuPointerGetAttribute)
NOT_SUPPORTED(cuTensorMapEncodeTiled)

}  // extern "C"
