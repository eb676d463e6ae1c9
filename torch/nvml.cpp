// A libnvidia-ml.so.1 for machines without a GPU. PyTorch from 2.13 on asks it, before the first
// mapping of an expandable segment, whether memory can be shared over a fabric, and calls through a
// null pointer where there is none. It knows no device and no process.

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

extern "C" {

nvmlReturn_t nvmlInit_v2() {
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char*, nvmlDevice_t* device) {
  *device = nullptr;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(
    nvmlDevice_t, unsigned int, nvmlIntNvLinkDeviceType_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t, unsigned int, nvmlPciInfo_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(
    nvmlDevice_t, unsigned int* count, nvmlProcessInfo_v1_t*) {
  *count = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t, nvmlGpuFabricInfoV_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
