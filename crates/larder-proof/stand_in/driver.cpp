// A stand-in for the CUDA driver on the host's memory, so that the proof program and everything
// below it runs where there is no GPU. It shows that the calls are made as CUDA's own header
// declares them and that the proof can pass; it shows nothing about a GPU.
//
// Memory is memory files, so that pages can be mapped, shared and outlive those who made them.
// Streams are queues of work that is done whenever somebody asks; the proof's kernels are functions
// of the same names below. It knows no more than the proof needs.
// It is strict about whose a stream is: see hands.h.

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "age.h"
#include "hands.h"
#include "kernels.h"

namespace {

constexpr size_t UNIT = 2 << 20;
constexpr size_t TOTAL = size_t{2} << 30;

std::mutex mutex;

// Memory.

size_t used = 0;

size_t whole(size_t size) { return (size + UNIT - 1) / UNIT * UNIT; }

// Memory of the card, which goes with the last who has it.
struct Physical {
    int file = -1;
    size_t size = 0;
    bool counted = false;
    ~Physical() {
        if (counted) used -= whole(size);
        if (file >= 0) close(file);
    }
};
using Shared = std::shared_ptr<Physical>;

std::map<ino_t, std::weak_ptr<Physical>> known;

CUresult create(size_t size, Shared &out) {
    if (size > TOTAL || used + whole(size) > TOTAL) return CUDA_ERROR_OUT_OF_MEMORY;
    out = std::make_shared<Physical>();
    out->file = memfd_create("card", MFD_CLOEXEC);
    out->size = size;
    if (out->file < 0 || ftruncate(out->file, static_cast<off_t>(size)) != 0) return CUDA_ERROR_UNKNOWN;
    out->counted = true;
    used += whole(size);
    struct stat info {};
    fstat(out->file, &info);
    known[info.st_ino] = out;
    return CUDA_SUCCESS;
}

struct Plain {
    Shared memory;
    size_t size;
};
std::map<CUdeviceptr, Plain> plain, opened;
std::map<CUdeviceptr, size_t> ranges;
std::map<CUmemGenericAllocationHandle, Shared> pages;
CUmemGenericAllocationHandle page_next = 1;

CUdeviceptr place(const Shared &memory, void *at, int flags) {
    void *addr = mmap(at, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED | flags, memory->file, 0);
    return addr == MAP_FAILED ? 0 : reinterpret_cast<CUdeviceptr>(addr);
}

// Streams, events, captures.

struct Node {
    std::set<Node *> before;
    Work work;
};

struct Capture {
    cuuint64_t id = 0;
    bool broken = false;
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

struct CUevent_st {
    std::shared_ptr<bool> done;
    std::shared_ptr<Capture> capture;
    std::set<Node *> nodes;
};

namespace {

CUstream_st legacy;
std::set<CUstream_st *> streams{&legacy};
std::set<CUevent_st *> events;

// The stream of a handle that a call is about. The handle may be one that is gone: it is looked up, not
// followed.
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

struct IpcHandle {
    char mark[8];
    pid_t pid;
    int file;
    size_t size;
};

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute, CUdevice) { return *value = 1, CUDA_SUCCESS; }
CUresult cuDeviceGetPCIBusId(char *name, int length, CUdevice) {
    std::strncpy(name, "0000:00:00.0", static_cast<size_t>(length));
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice) { return *bytes = TOTAL, CUDA_SUCCESS; }
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
    *free = TOTAL - used;
    *total = TOTAL;
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
    *addr = place(memory, nullptr, 0);
    plain[*addr] = {memory, size};
    return CUDA_SUCCESS;
}

// Unlike unmapping, freeing waits for all work.
CUresult cuMemFree(CUdeviceptr addr) {
    Lock lock(mutex);
    wait_until(lock, all_done);
    auto found = plain.find(addr);
    if (found == plain.end()) return CUDA_ERROR_INVALID_VALUE;
    munmap(reinterpret_cast<void *>(addr), found->second.size);
    plain.erase(found);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *addr, size_t size, size_t alignment, CUdeviceptr, unsigned long long) {
    Lock lock(mutex);
    size_t room = size + alignment;
    void *base = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    auto start = reinterpret_cast<CUdeviceptr>(base);
    *addr = alignment ? (start + alignment - 1) / alignment * alignment : start;
    if (*addr > start) munmap(base, *addr - start);
    if (*addr + size < start + room) munmap(reinterpret_cast<void *>(*addr + size), start + room - *addr - size);
    ranges[*addr] = size;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr addr, size_t size) {
    Lock lock(mutex);
    auto found = ranges.find(addr);
    if (found == ranges.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
    munmap(reinterpret_cast<void *>(addr), size);
    ranges.erase(found);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
    return *size = UNIT, CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *page, size_t size, const CUmemAllocationProp *kind, unsigned long long) {
    Lock lock(mutex);
    if (kind->type != CU_MEM_ALLOCATION_TYPE_PINNED || kind->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (kind->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
    Shared memory;
    if (CUresult result = create(size, memory); result != CUDA_SUCCESS) return result;
    pages[*page = page_next++] = memory;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle page) {
    Lock lock(mutex);
    return pages.erase(page) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr addr, size_t size, size_t offset, CUmemGenericAllocationHandle page, unsigned long long) {
    Lock lock(mutex);
    auto found = pages.find(page);
    if (found == pages.end() || found->second->size != size || offset) return CUDA_ERROR_INVALID_VALUE;
    // No access yet: that is what cuMemSetAccess gives.
    void *at = mmap(reinterpret_cast<void *>(addr), size, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second->file, 0);
    return at == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr addr, size_t size) {
    Lock lock(mutex);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void *at = mmap(reinterpret_cast<void *>(addr), size, PROT_NONE, flags, -1, 0);
    return at == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr addr, size_t size, const CUmemAccessDesc *access, size_t count) {
    Lock lock(mutex);
    if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
    int result = mprotect(reinterpret_cast<void *>(addr), size, PROT_READ | PROT_WRITE);
    return result == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle page, CUmemAllocationHandleType kind, unsigned long long) {
    Lock lock(mutex);
    auto found = pages.find(page);
    if (found == pages.end() || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<int *>(out) = fcntl(found->second->file, F_DUPFD_CLOEXEC, 0);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *page, void *handle, CUmemAllocationHandleType kind) {
    Lock lock(mutex);
    int file = static_cast<int>(reinterpret_cast<intptr_t>(handle));
    struct stat info {};
    if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(file, &info) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!S_ISREG(info.st_mode)) return CUDA_ERROR_INVALID_VALUE;
    Shared memory = known[info.st_ino].lock();
    if (!memory) {
        memory = std::make_shared<Physical>();
        memory->file = fcntl(file, F_DUPFD_CLOEXEC, 0);
        memory->size = static_cast<size_t>(info.st_size);
    }
    pages[*page = page_next++] = memory;
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr addr) {
    Lock lock(mutex);
    auto found = plain.find(addr);
    if (found == plain.end()) return CUDA_ERROR_INVALID_VALUE;
    IpcHandle inner{"standin", getpid(), found->second.memory->file, found->second.size};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &inner, sizeof inner);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *addr, CUipcMemHandle handle, unsigned) {
    Lock lock(mutex);
    IpcHandle inner;
    std::memcpy(&inner, &handle, sizeof inner);
    if (std::strcmp(inner.mark, "standin") != 0) return CUDA_ERROR_INVALID_VALUE;
    if (inner.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    auto memory = std::make_shared<Physical>();
    std::string path = "/proc/" + std::to_string(inner.pid) + "/fd/" + std::to_string(inner.file);
    memory->file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    memory->size = inner.size;
    if (memory->file < 0) return CUDA_ERROR_INVALID_VALUE;
    *addr = place(memory, nullptr, 0);
    opened[*addr] = {memory, inner.size};
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr addr) {
    Lock lock(mutex);
    auto found = opened.find(addr);
    if (found == opened.end()) return CUDA_ERROR_INVALID_VALUE;
    munmap(reinterpret_cast<void *>(addr), found->second.size);
    opened.erase(found);
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
    auto done = event->done = std::make_shared<bool>(false);
    add(stream, [done] { return *done = true; });
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
    Lock lock(mutex);
    pump();
    return !event->done || *event->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    Lock lock(mutex);
    auto done = event->done;
    return wait_until(lock, [done] { return !done || *done; });
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
    if (event->capture) {
        at->capture = event->capture;
        at->capture->streams.insert(at);
        at->ends.insert(event->nodes.begin(), event->nodes.end());
        return CUDA_SUCCESS;
    }
    if (at->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    auto done = event->done;
    add(stream, [done] { return !done || *done; });
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
    for (CUstream_st *at : capture->streams) {
        at->capture = nullptr;
        at->ends.clear();
    }
    *graph = nullptr;
    if (capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    graphs[*graph = reinterpret_cast<CUgraph>(capture.get())] = capture;
    return CUDA_SUCCESS;
}

CUresult CAPTURE_INFO(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *,
                      const CUgraphNode **nodes, EDGES(const CUgraphEdgeData **) size_t *count) {
    Lock lock(mutex);
    CUstream_st *at = resolve(stream, "cuStreamGetCaptureInfo");
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!at->capture) return CUDA_SUCCESS;
    *status = at->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id) *id = at->capture->id;
    if (!nodes) return CUDA_SUCCESS;
    at->told.clear();
    for (Node *node : at->ends) at->told.push_back(reinterpret_cast<CUgraphNode>(node));
    *nodes = at->told.data();
    *count = at->told.size();
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

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long) {
    Lock lock(mutex);
    InHand hand(lock, graphs[graph]->streams, "whose graph another thread is instantiating");
    execs[*exec = reinterpret_cast<CUgraphExec>(graph)] = graphs[graph];
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
CUresult cuMemAllocAsync(CUdeviceptr *addr, size_t size, CUstream) { return cuMemAlloc(addr, size); }
CUresult cuMemFreeAsync(CUdeviceptr addr, CUstream stream) {
    Lock lock(mutex);
    auto found = plain.find(addr);
    if (found == plain.end()) return CUDA_ERROR_INVALID_VALUE;
    Plain gone = found->second;
    plain.erase(found);
    add(stream, [addr, gone] { return munmap(reinterpret_cast<void *>(addr), gone.size), true; });
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

CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        CUstream stream, void **arguments, void **) {
    Lock lock(mutex);
    add(stream, reinterpret_cast<Maker>(function)(arguments));
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr addr, unsigned char value, size_t count, CUstream stream) {
    Lock lock(mutex);
    add(stream, [=] { return std::memset(reinterpret_cast<void *>(addr), value, count), true; });
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8(CUdeviceptr addr, unsigned char value, size_t count) {
    std::memset(reinterpret_cast<void *>(addr), value, count);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t count) {
    std::memcpy(to, reinterpret_cast<const void *>(from), count);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **out, size_t size, unsigned) {
    *out = std::calloc(1, size);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *memory) {
    std::free(memory);
    return CUDA_SUCCESS;
}

}  // extern "C"
