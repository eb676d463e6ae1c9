// What a CUDA runtime on top of the stand-in may ask of it besides the driver's own calls.

#pragma once

#include <cuda.h>

#include <functional>

using Work = std::function<bool()>;  // true when it is done

// Gives a stream something to do, behind what it has; under capture it becomes a node.
CUresult give_work(CUstream stream, Work work);

// Whether an address is one of the card's.
bool is_on_card(CUdeviceptr addr);

// Whether an address is one of pinned memory of the host.
bool is_pinned(CUdeviceptr addr);

// Puts a node that does nothing into the graph of a capture.
extern "C" CUresult add_empty_node(
    CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count);
