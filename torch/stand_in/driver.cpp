// What PyTorch asks of the driver besides what the stand-in of the proof has. Kernels that are compiled
// while a program runs cannot be run here.

// The functions that are not supported look at none of their arguments, so CUDA's own declarations of
// them would be in the way.
extern "C" {

int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

#define NOT_SUPPORTED(name) \
  int name() {              \
    return 801;             \
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

} // extern "C"
