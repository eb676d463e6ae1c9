// A stand-in for the CUDA driver on the host's memory, so that the proof program and everything
// below it runs where there is no GPU. It shows that the calls are made as CUDA's own header
// declares them and that the proof can pass; it shows nothing about a GPU.
//
// Streams are queues of work that is done whenever somebody asks; the proof's kernels are functions
// of the same names below. It knows no more than the proof needs.
// It is strict about whose a stream is: see hands.h.

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "age.h"
#include "hands.h"
#include "kernels.h"
#include "memory.h"
#include "pages.h"
#include "work.h"

namespace {

// Streams, events, captures.

struct Node {
    std::set<Node *> before;
    Work work;
};

struct Capture {
    cuuint64_t id = 0;
    bool broken = false;
    bool over = false;
    std::vector<std::shared_ptr<Node>> nodes;
    std::set<struct CUstream_st *> streams;
};

std::map<CUgraph, std::shared_ptr<Capture>> graphs;
std::map<CUgraphExec, std::shared_ptr<Capture>> execs;
cuuint64_t capture_next = 1;

}  // namespace

struct CUstream_st {
    std::deque<Work> queue;
    std::shared_ptr<Capture> capture;
    std::set<Node *> ends;
    std::vector<CUgraphNode> told;
    bool origin = false;
};

// That a stream has come to where an event was recorded, and when.
struct Mark {
    bool done = false;
    Clock::time_point at;
};

struct CUevent_st {
    std::shared_ptr<Mark> mark;
    std::shared_ptr<Capture> capture;
    std::set<Node *> nodes;
};

namespace {

CUstream_st legacy;
std::set<CUstream_st *> streams{&legacy};
std::set<CUevent_st *> events;

// The stream of a handle that a call is about. The handle may be one that is gone: it is looked up,
// not followed.
CUstream_st *resolve(CUstream stream, const char *call) {
    CUstream_st *at = reinterpret_cast<uintptr_t>(stream) <= 2 ? &legacy : stream;
    if (!streams.count(at)) refuse(call, "that is destroyed");
    check_hands(at, call);
    return at;
}

// Does all work that can be done now.
void pump() {
    for (bool moved = true; moved;) {
        moved = false;
        for (CUstream_st *stream : streams) {
            while (!stream->queue.empty() && stream->queue.front()()) {
                stream->queue.pop_front();
                moved = true;
            }
        }
    }
}

void add(CUstream stream, Work work, const char *call = "work") {
    CUstream_st *at = resolve(stream, call);
    if (!at->capture) {
        at->queue.push_back(std::move(work));
        pump();
        return;
    }
    auto node = std::make_shared<Node>();
    node->before = at->ends;
    node->work = std::move(work);
    at->ends = {node.get()};
    at->capture->nodes.push_back(node);
}

CUresult wait_until(Lock &lock, const std::function<bool()> &done) {
    for (pump(); !done(); pump()) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        lock.lock();
    }
    return CUDA_SUCCESS;
}

bool all_done() {
    for (CUstream_st *stream : streams) {
        if (!stream->queue.empty()) return false;
    }
    return true;
}

// Contexts.

int context_mark;
thread_local CUcontext current = nullptr;
thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute, CUdevice) {
    return *value = 1, CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char *name, int length, CUdevice) {
    std::strncpy(name, "0000:00:00.0", static_cast<size_t>(length));
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice) { return *bytes = capacity, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
    return *context = reinterpret_cast<CUcontext>(&context_mark), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *other) {
    return std::swap(mode, *other), CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int *can, CUdevice, CUdevice) { return *can = 0, CUDA_SUCCESS; }
CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) { return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED; }

CUresult cuGetErrorName(CUresult, const char **text) { return *text = "CUDA_ERROR", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char **text) {
    return *text = "the stand-in refuses", CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *free, size_t *total) {
    Lock lock(mutex);
    *free = capacity - used;
    *total = capacity;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxSynchronize() {
    Lock lock(mutex);
    return wait_until(lock, all_done);
}

CUresult cuMemAlloc(CUdeviceptr *addr, size_t size) {
    Lock lock(mutex);
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    Shared memory;
    if (CUresult result = create(size, memory); result != CUDA_SUCCESS) return result;
    *addr = place(memory, lowest_room(size));
    plain[*addr] = {memory, size};
    return CUDA_SUCCESS;
}

// Unlike unmapping, freeing waits for all work.
CUresult cuMemFree(CUdeviceptr addr) {
    Lock lock(mutex);
    wait_until(lock, all_done);
    auto found = plain.find(addr);
    if (found == plain.end()) return CUDA_ERROR_INVALID_VALUE;
    displace(addr, found->second.size);
    plain.erase(found);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned) {
    Lock lock(mutex);
    return events.insert(*event = new CUevent_st), CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    Lock lock(mutex);
    events.erase(event);
    delete event;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    Lock lock(mutex);
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    CUstream_st *at = resolve(stream, "cuEventRecord");
    event->capture = at->capture;
    event->nodes = at->ends;
    if (at->capture) return CUDA_SUCCESS;
    auto mark = event->mark = std::make_shared<Mark>();
    add(stream, [mark] { return mark->at = Clock::now(), mark->done = true; });
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
    Lock lock(mutex);
    pump();
    return !event->mark || event->mark->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    Lock lock(mutex);
    auto mark = event->mark;
    return wait_until(lock, [mark] { return !mark || mark->done; });
}

CUresult cuEventElapsedTime(float *elapsed_ms, CUevent from, CUevent to) {
    Lock lock(mutex);
    pump();
    if (!from->mark || !to->mark) return CUDA_ERROR_INVALID_HANDLE;
    if (!from->mark->done || !to->mark->done) return CUDA_ERROR_NOT_READY;
    *elapsed_ms = std::chrono::duration<float, std::milli>(to->mark->at - from->mark->at).count();
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned) {
    Lock lock(mutex);
    return streams.insert(*stream = new CUstream_st), CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
    Lock lock(mutex);
    resolve(stream, "cuStreamDestroy");
    wait_until(lock, [stream] { return stream->queue.empty(); });
    InHand hand(lock, {stream}, "that another thread is destroying");
    streams.erase(stream);
    // It stays where it is: no later stream gets its handle, so that nobody is taken for another.
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream) {
    Lock lock(mutex);
    CUstream_st *at = resolve(stream, "cuStreamQuery");
    pump();
    return at->queue.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream) {
    Lock lock(mutex);
    CUstream_st *at = resolve(stream, "cuStreamSynchronize");
    if (at->capture) {
        at->capture->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return wait_until(lock, [at] { return at->queue.empty(); });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    Lock lock(mutex);
    CUstream_st *at = resolve(stream, "cuStreamWaitEvent");
    if (event->capture && !event->capture->over) {
        at->capture = event->capture;
        at->capture->streams.insert(at);
        at->ends.insert(event->nodes.begin(), event->nodes.end());
        return CUDA_SUCCESS;
    }
    if (at->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    auto mark = event->mark;
    add(stream, [mark] { return !mark || mark->done; });
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
    Lock lock(mutex);
    CUstream_st *at = resolve(stream, "cuStreamBeginCapture");
    InHand hand(lock, {at}, "that another thread is beginning to capture");
    at->capture = std::make_shared<Capture>();
    at->capture->id = capture_next++;
    at->capture->streams.insert(at);
    at->ends.clear();
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    Lock lock(mutex);
    auto capture = resolve(stream, "cuStreamEndCapture")->capture;
    if (!capture) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    InHand hand(lock, capture->streams, "whose capture another thread is ending");
    capture->over = true;
    for (CUstream_st *at : capture->streams) {
        at->capture = nullptr;
        at->ends.clear();
    }
    *graph = nullptr;
    if (capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    graphs[ *graph = reinterpret_cast<CUgraph>(capture.get())] = capture;
    return CUDA_SUCCESS;
}

CUresult CAPTURE_INFO(
    CUstream stream,
    CUstreamCaptureStatus *status,
    cuuint64_t *id,
    CUgraph *graph,
    const CUgraphNode **nodes,
    EDGES(const CUgraphEdgeData **) size_t *count) {
    Lock lock(mutex);
    CUstream_st *at = resolve(stream, "cuStreamGetCaptureInfo");
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!at->capture) return CUDA_SUCCESS;
    *status = at->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id) *id = at->capture->id;
    if (graph) *graph = reinterpret_cast<CUgraph>(at->capture.get());
    if (!nodes) return CUDA_SUCCESS;
    at->told.clear();
    for (Node *node : at->ends) at->told.push_back(reinterpret_cast<CUgraphNode>(node));
    *nodes = at->told.data();
    if (count) *count = at->told.size();
    return CUDA_SUCCESS;
}

CUresult DEPENDENCIES(CUgraphNode node, CUgraphNode *out, EDGES(CUgraphEdgeData *) size_t *count) {
    Lock lock(mutex);
    auto &before = reinterpret_cast<Node *>(node)->before;
    size_t at = 0;
    for (Node *other : before) {
        if (out && at < *count) out[at] = reinterpret_cast<CUgraphNode>(other);
        ++at;
    }
    *count = at;
    return CUDA_SUCCESS;
}

// An empty node is all that anybody adds by hand; it goes with its capture.
CUresult add_empty_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count) {
    Lock lock(mutex);
    auto node = std::make_shared<Node>();
    for (size_t i = 0; i < count; ++i) node->before.insert(reinterpret_cast<Node *>(before[i]));
    node->work = [] { return true; };
    reinterpret_cast<Capture *>(graph)->nodes.push_back(node);
    *out = reinterpret_cast<CUgraphNode>(node.get());
    return CUDA_SUCCESS;
}

// The ends of a captured stream become these, or these besides.
CUresult UPDATE_DEPENDENCIES(
    CUstream stream,
    CUgraphNode *nodes,
    EDGES(const CUgraphEdgeData *) size_t count,
    unsigned flags) {
    Lock lock(mutex);
    CUstream_st *at = resolve(stream, "cuStreamUpdateCaptureDependencies");
    if (!at->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) at->ends.clear();
    for (size_t i = 0; i < count; ++i) at->ends.insert(reinterpret_cast<Node *>(nodes[i]));
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *out, size_t *count) {
    Lock lock(mutex);
    auto found = graphs.find(graph);
    if (found == graphs.end()) return CUDA_ERROR_INVALID_VALUE;
    auto &nodes = found->second->nodes;
    for (size_t i = 0; out && i < std::min(*count, nodes.size()); ++i)
        out[i] = reinterpret_cast<CUgraphNode>(nodes[i].get());
    *count = nodes.size();
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long) {
    Lock lock(mutex);
    InHand hand(lock, graphs[graph]->streams, "whose graph another thread is instantiating");
    execs[ *exec = reinterpret_cast<CUgraphExec>(graph)] = graphs[graph];
    return CUDA_SUCCESS;
}

// Nodes are in the order in which they were captured, which is one that their dependencies allow.
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    Lock lock(mutex);
    for (auto &node : execs[exec]->nodes) add(stream, node->work);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    Lock lock(mutex);
    return graphs.erase(graph), CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    Lock lock(mutex);
    return execs.erase(exec), CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice) {
    return *pool = reinterpret_cast<CUmemoryPool>(&context_mark), CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *) { return CUDA_SUCCESS; }
CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void *value) {
    Lock lock(mutex);
    *static_cast<cuuint64_t *>(value) = used;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }
CUresult cuMemAllocAsync(CUdeviceptr *addr, size_t size, CUstream) {
    return cuMemAlloc(addr, size);
}
CUresult cuMemFreeAsync(CUdeviceptr addr, CUstream stream) {
    Lock lock(mutex);
    if (!plain.count(addr)) return CUDA_ERROR_INVALID_VALUE;
    add(stream, [addr] {
        auto found = plain.find(addr);
        if (found != plain.end()) {
            displace(addr, found->second.size);
            plain.erase(found);
        }
        return true;
    });
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *) {
    return *module = reinterpret_cast<CUmodule>(&context_mark), CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name) {
    auto found = kernels.find(name);
    if (found == kernels.end()) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(found->second);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(
    CUfunction function,
    unsigned,
    unsigned,
    unsigned,
    unsigned,
    unsigned,
    unsigned,
    unsigned,
    CUstream stream,
    void **arguments,
    void **) {
    Lock lock(mutex);
    add(stream, reinterpret_cast<Maker>(function)(arguments));
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr addr, unsigned char value, size_t count, CUstream stream) {
    Lock lock(mutex);
    add(stream, [=] { return std::memset(reinterpret_cast<void *>(addr), value, count), true; });
    return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr addr, unsigned value, size_t count, CUstream stream) {
    return give_work(stream, [=] {
        return std::fill_n(reinterpret_cast<unsigned *>(addr), count, value), true;
    });
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned) {
    return cuMemsetD32Async(addr, value, 1, stream);
}

CUresult cuMemsetD8(CUdeviceptr addr, unsigned char value, size_t count) {
    std::memset(reinterpret_cast<void *>(addr), value, count);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t count) {
    std::memcpy(to, reinterpret_cast<const void *>(from), count);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream) {
    Lock lock(mutex);
    auto *source = reinterpret_cast<const void *>(from);
    add(stream, [=] { return std::memmove(reinterpret_cast<void *>(to), source, count), true; });
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t count, CUstream stream) {
    return cuMemcpyDtoDAsync(to, reinterpret_cast<CUdeviceptr>(from), count, stream);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t count, CUstream stream) {
    return cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to), from, count, stream);
}

CUresult cuMemHostAlloc(void **out, size_t size, unsigned) {
    Lock lock(mutex);
    return pin(out, size);
}

CUresult cuMemFreeHost(void *memory) {
    Lock lock(mutex);
    return wait_until(lock, all_done), unpin(memory, true);
}

CUresult cuMemHostRegister(void *memory, size_t size, unsigned) {
    Lock lock(mutex);
    return pin_mapped(memory, size);
}

CUresult cuMemHostUnregister(void *memory) {
    Lock lock(mutex);
    return wait_until(lock, all_done), unpin(memory, false);
}

}  // extern "C"

bool is_pinned(CUdeviceptr address) {
    Lock lock(mutex);
    return pinned_at(address);
}

CUresult give_work(CUstream stream, Work work) {
    Lock lock(mutex);
    add(stream, std::move(work));
    return CUDA_SUCCESS;
}
