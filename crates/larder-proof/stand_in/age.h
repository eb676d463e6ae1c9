// How old the driver is that is stood in for: those before CUDA 12.3 know nothing of data on edges,
// and have the calls that tell of edges under older names.

#pragma once

#include <cuda.h>

#ifdef BEFORE_CUDA_12_3
#undef cuGraphNodeGetDependencies
#undef cuStreamUpdateCaptureDependencies
#define CAPTURE_INFO cuStreamGetCaptureInfo_v2
#define DEPENDENCIES cuGraphNodeGetDependencies
#define UPDATE_DEPENDENCIES cuStreamUpdateCaptureDependencies
#define EDGES(type)
#else
#define CAPTURE_INFO cuStreamGetCaptureInfo_v3
#define DEPENDENCIES cuGraphNodeGetDependencies_v2
#define UPDATE_DEPENDENCIES cuStreamUpdateCaptureDependencies_v2
#define EDGES(type) type,
#endif
