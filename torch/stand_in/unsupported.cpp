// Functions of the runtime that are not supported.

#include "not_supported.h"

extern "C" {

NOT_SUPPORTED(cudaDeviceEnablePeerAccess)
NOT_SUPPORTED(cudaDeviceGetGraphMemAttribute)
NOT_SUPPORTED(cudaDeviceSetGraphMemAttribute)
NOT_SUPPORTED(cudaGetSymbolAddress)
NOT_SUPPORTED(cudaGraphConditionalHandleCreate)
NOT_SUPPORTED(cudaGraphDebugDotPrint)
NOT_SUPPORTED(cudaKernelSetAttributeForDevice)
NOT_SUPPORTED(cudaLibraryGetGlobal)
NOT_SUPPORTED(cudaLibraryGetKernel)
NOT_SUPPORTED(cudaLibraryGetKernelCount)
NOT_SUPPORTED(cudaLibraryGetManaged)
NOT_SUPPORTED(cudaLibraryGetUnifiedFunction)
NOT_SUPPORTED(cudaLibraryLoadData)
NOT_SUPPORTED(cudaLibraryLoadFromFile)
NOT_SUPPORTED(cudaLibraryUnload)
NOT_SUPPORTED(cudaMemPoolSetAccess)
NOT_SUPPORTED(cudaMemcpyToSymbol)
NOT_SUPPORTED(cudaStreamBeginCaptureToGraph)

}  // extern "C"
