// A CUDA runtime over the stand-in for the driver, so that PyTorch itself runs where there is no
// GPU: the functions of libcudart.so.13 that its libraries import. Memory, streams, events and
// graphs are the driver's, and whoever asks the driver itself, as Larder does, sees the same card.
// kernels.h tells what becomes of kernels; functions of libraries like cuBLAS do not work.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "work.h"

namespace {

thread_local cudaError_t last_error = cudaSuccess;

// The runtime has the driver's numbers for all errors that there are here.
cudaError_t told(CUresult result) {
  auto error = static_cast<cudaError_t>(result);
  if (error != cudaSuccess && error != cudaErrorNotReady) {
    last_error = error;
  }
  return error;
}

cudaError_t refused(cudaError_t error) {
  return last_error = error;
}

// The runtime makes its device's context current in each thread that calls it.
void enter() {
  static thread_local bool is_in = false;
  if (!is_in) {
    CUcontext context = nullptr;
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    is_in = true;
  }
}

CUdeviceptr at(const void* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}

cudaError_t copy(void* to, const void* from, size_t count, cudaStream_t stream) {
  // Memory of the host that is not pinned is read at once, as CUDA does with little of it.
  constexpr size_t READ_AT_ONCE = 64 << 10;
  if (count <= READ_AT_ONCE && !is_on_card(at(from))) {
    auto* bytes = static_cast<const char*>(from);
    std::vector<char> read(bytes, bytes + count);
    return told(give_work(stream, [=] { return std::memcpy(to, read.data(), count), true; }));
  }
  return told(give_work(stream, [=] { return std::memmove(to, from, count), true; }));
}

cudaError_t finish(cudaError_t given, cudaStream_t stream) {
  return given == cudaSuccess ? told(cuStreamSynchronize(stream)) : given;
}

struct Launch {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Launch> configured;

}  // namespace

extern "C" {

// Devices.

cudaError_t cudaGetDeviceCount(int* count) {
  return told(cuDeviceGetCount(count));
}
cudaError_t cudaGetDevice(int* device) {
  return *device = 0, cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  enter();
  return device == 0 ? cudaSuccess : refused(cudaErrorInvalidDevice);
}
cudaError_t cudaDriverGetVersion(int* version) {
  return told(cuDriverGetVersion(version));
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) {
    return refused(cudaErrorInvalidDevice);
  }
  *properties = {};
  std::strcpy(properties->name, "stand-in for a GPU");
  cuDeviceTotalMem(&properties->totalGlobalMem, 0);
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->l2CacheSize = 50 << 20;
  properties->unifiedAddressing = 1;
  for (int* dimension : {properties->maxThreadsDim, properties->maxGridSize}) {
    dimension[0] = dimension[1] = dimension[2] = 1024;
  }
  properties->maxGridSize[0] = 2147483647;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess) {
    return error;
  }
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return *value = properties.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = properties.minor, cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      return *value = properties.multiProcessorCount, cudaSuccess;
    case cudaDevAttrWarpSize:
      return *value = properties.warpSize, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = static_cast<int>(properties.sharedMemPerBlockOptin), cudaSuccess;
    case cudaDevAttrMaxGridDimX:
      return *value = properties.maxGridSize[0], cudaSuccess;
    default:
      return *value = 1, cudaSuccess;
  }
}

cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  return told(cuDeviceGetPCIBusId(name, length, device));
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  return *can = 0, cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  enter();
  return told(cuCtxSynchronize());
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return "an error of the stand-in";
  }
}

// The newest version of a function of the driver's.
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name,
    void** function,
    unsigned,
    unsigned long long,
    cudaDriverEntryPointQueryResult* answer) {
  *function = nullptr;
  for (const char* version : {"_v3", "_v2", ""}) {
    if (*function == nullptr) {
      *function = dlsym(RTLD_DEFAULT, (std::string(name) + version).c_str());
    }
  }
  if (answer != nullptr) {
    *answer = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return *function ? cudaSuccess : cudaErrorSymbolNotFound;
}

// Memory.

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  enter();
  return told(cuMemGetInfo(free, total));
}
cudaError_t cudaMalloc(void** address, size_t size) {
  enter();
  if (size == 0) {
    return *address = nullptr, cudaSuccess;
  }
  return told(cuMemAlloc(reinterpret_cast<CUdeviceptr*>(address), size));
}
cudaError_t cudaMallocManaged(void** address, size_t size, unsigned) {
  return cudaMalloc(address, size);
}
cudaError_t cudaFree(void* address) {
  enter();
  return address ? told(cuMemFree(at(address))) : cudaSuccess;
}
cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t stream) {
  enter();
  return told(cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(address), size, stream));
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  enter();
  return told(cuMemFreeAsync(at(address), stream));
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return told(cuDeviceGetDefaultMemPool(pool, device));
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return told(cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return told(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t kept) {
  return told(cuMemPoolTrimTo(pool, kept));
}

cudaError_t cudaMallocHost(void** out, size_t size) {
  enter();
  return told(cuMemHostAlloc(out, size, 0));
}
cudaError_t cudaHostAlloc(void** out, size_t size, unsigned flags) {
  enter();
  return told(cuMemHostAlloc(out, size, flags));
}
cudaError_t cudaFreeHost(void* address) {
  enter();
  return address ? told(cuMemFreeHost(address)) : cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t size, unsigned flags) {
  enter();
  return told(cuMemHostRegister(address, size, flags));
}
cudaError_t cudaHostUnregister(void* address) {
  enter();
  return told(cuMemHostUnregister(address));
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  attributes->type = is_on_card(at(address))  ? cudaMemoryTypeDevice
                     : is_pinned(at(address)) ? cudaMemoryTypeHost
                                              : cudaMemoryTypeUnregistered;
  attributes->devicePointer = const_cast<void*>(address);
  attributes->hostPointer =
      attributes->type == cudaMemoryTypeHost ? const_cast<void*>(address) : nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t count, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, count, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t count, cudaMemcpyKind) {
  return finish(copy(to, from, count, nullptr), nullptr);
}
cudaError_t cudaMemcpyPeerAsync(
    void* to, int, const void* from, int, size_t count, cudaStream_t stream) {
  return copy(to, from, count, stream);
}
cudaError_t cudaMemcpy2DAsync(
    void* to,
    size_t to_pitch,
    const void* from,
    size_t from_pitch,
    size_t width,
    size_t height,
    cudaMemcpyKind,
    cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    copy(
        static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
        width, stream);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t count, cudaStream_t stream) {
  return told(cuMemsetD8Async(at(to), static_cast<unsigned char>(value), count, stream));
}
cudaError_t cudaMemset(void* to, int value, size_t count) {
  return finish(cudaMemsetAsync(to, value, count, nullptr), nullptr);
}

// Sharing with other processes.

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  CUdeviceptr base = 0;
  if (CUresult result = cuMemGetAddressRange(&base, nullptr, at(address)); result != CUDA_SUCCESS) {
    return told(result);
  }
  return told(cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), base));
}
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
  CUipcMemHandle inner;
  std::memcpy(&inner, &handle, sizeof inner);
  return told(cuIpcOpenMemHandle(reinterpret_cast<CUdeviceptr*>(address), inner, flags));
}
cudaError_t cudaIpcCloseMemHandle(void* address) {
  return told(cuIpcCloseMemHandle(at(address)));
}
// Who is told of an event of another process finds it done: it is waited for before the handle is
// given.
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  std::memset(handle, 0, sizeof *handle);
  return told(cuEventSynchronize(event));
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t) {
  return told(cuEventCreate(event, 0));
}

// Streams and events.

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  enter();
  return told(cuStreamCreate(stream, 0));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  return *priority = 0, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return told(cuStreamDestroy(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return told(cuStreamQuery(stream));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return told(cuStreamSynchronize(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return told(cuStreamWaitEvent(stream, event, flags));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  enter();
  return told(cuEventCreate(event, flags));
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return told(cuEventDestroy(event));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  enter();
  return told(cuEventRecord(event, stream));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return told(cuEventQuery(event));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return told(cuEventSynchronize(event));
}
cudaError_t cudaEventElapsedTime(float* elapsed_ms, cudaEvent_t from, cudaEvent_t to) {
  return told(cuEventElapsedTime(elapsed_ms, from, to));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return told(give_work(stream, [=] { return function(argument), true; }));
}
cudaError_t cudaStreamAddCallback(
    cudaStream_t stream, cudaStreamCallback_t function, void* argument, unsigned) {
  return told(give_work(stream, [=] { return function(stream, cudaSuccess, argument), true; }));
}

// Captures and graphs.

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return told(cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return told(cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return told(cuStreamEndCapture(stream, graph));
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    cudaGraph_t* graph,
    const cudaGraphNode_t** nodes,
    const cudaGraphEdgeData** edges,
    size_t* count) {
  if (edges != nullptr) {
    *edges = nullptr;
  }
  cuuint64_t number = 0;
  auto* found = reinterpret_cast<CUstreamCaptureStatus*>(status);
  CUresult result = cuStreamGetCaptureInfo(stream, found, &number, graph, nodes, nullptr, count);
  if (id != nullptr) {
    *id = number;
  }
  return told(result);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaStreamUpdateCaptureDependencies(
    cudaStream_t stream,
    cudaGraphNode_t* nodes,
    const cudaGraphEdgeData*,
    size_t count,
    unsigned flags) {
  return told(cuStreamUpdateCaptureDependencies(stream, nodes, nullptr, count, flags));
}
cudaError_t cudaGraphAddNode(
    cudaGraphNode_t* node,
    cudaGraph_t graph,
    const cudaGraphNode_t* before,
    const cudaGraphEdgeData*,
    size_t count,
    cudaGraphNodeParams* wanted) {
  if (wanted->type != cudaGraphNodeTypeEmpty) {
    return refused(cudaErrorNotSupported);
  }
  return told(add_empty_node(node, graph, before, count));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return told(cuGraphGetNodes(graph, nodes, count));
}
cudaError_t cudaGraphNodeGetDependencies(
    cudaGraphNode_t node, cudaGraphNode_t* before, cudaGraphEdgeData*, size_t* count) {
  return told(cuGraphNodeGetDependencies(node, before, nullptr, count));
}
cudaError_t cudaGraphInstantiate(
    cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return told(cuGraphInstantiateWithFlags(exec, graph, flags));
}
cudaError_t cudaGraphInstantiateWithFlags(
    cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return told(cuGraphLaunch(exec, stream));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return told(cuGraphDestroy(graph));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return told(cuGraphExecDestroy(exec));
}
// Objects that a graph is to keep are kept for ever.
cudaError_t cudaUserObjectCreate(
    cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
  return *object = nullptr, cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) {
  return cudaSuccess;
}

// Kernels.

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 0;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(
    void**,
    const char* host_function,
    char*,
    const char* device_name,
    int,
    uint3*,
    uint3*,
    dim3*,
    dim3*,
    int*) {
  name_kernel(host_function, device_name);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configured.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  Launch launch = configured.back();
  configured.pop_back();
  *grid = launch.grid;
  *block = launch.block;
  *shared = launch.shared;
  *static_cast<cudaStream_t*>(stream) = launch.stream;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(reinterpret_cast<const void*>(kernel), arguments, stream);
}
cudaError_t cudaLaunchKernel(
    const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(function, arguments, stream);
}
cudaError_t cudaLaunchCooperativeKernel(
    const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(function, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(
    const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch(function, arguments, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 2, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, size_t, unsigned) {
  return *blocks = 2, cudaSuccess;
}
cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

}  // extern "C"
