// The driver's calls about pages, ranges of addresses and memory shared with other processes.

#pragma once

#include <cuda.h>

#include <cstring>
#include <string>

#include "hands.h"
#include "memory.h"
#include "work.h"

namespace {

struct IpcHandle {
    char mark[8];
    pid_t pid;
    int file;
    size_t size;
};

}  // namespace

extern "C" {

CUresult cuMemAddressReserve(
    CUdeviceptr *addr, size_t size, size_t alignment, CUdeviceptr, unsigned long long) {
    Lock lock(mutex);
    size_t room = size + alignment;
    void *base = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    auto start = reinterpret_cast<CUdeviceptr>(base);
    *addr = alignment ? (start + alignment - 1) / alignment * alignment : start;
    if (*addr > start) munmap(base, *addr - start);
    if (*addr + size < start + room)
        munmap(reinterpret_cast<void *>(*addr + size), start + room - *addr - size);
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

CUresult cuMemGetAllocationGranularity(
    size_t *size, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
    return *size = UNIT, CUDA_SUCCESS;
}

CUresult cuMemCreate(
    CUmemGenericAllocationHandle *page,
    size_t size,
    const CUmemAllocationProp *kind,
    unsigned long long) {
    Lock lock(mutex);
    if (kind->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        kind->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (kind->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
    Shared memory;
    if (CUresult result = create(size, memory); result != CUDA_SUCCESS) return result;
    pages[ *page = page_next++] = memory;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle page) {
    Lock lock(mutex);
    return pages.erase(page) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(
    CUdeviceptr addr,
    size_t size,
    size_t offset,
    CUmemGenericAllocationHandle page,
    unsigned long long) {
    Lock lock(mutex);
    auto found = pages.find(page);
    if (found == pages.end() || found->second->size != size || offset)
        return CUDA_ERROR_INVALID_VALUE;
    // No access yet: that is what cuMemSetAccess gives.
    void *at = mmap(
        reinterpret_cast<void *>(addr), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
        found->second->file, 0);
    return at == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr addr, size_t size) {
    Lock lock(mutex);
    return displace(addr, size) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult cuMemSetAccess(
    CUdeviceptr addr, size_t size, const CUmemAccessDesc *access, size_t count) {
    Lock lock(mutex);
    if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    int result = mprotect(reinterpret_cast<void *>(addr), size, PROT_READ | PROT_WRITE);
    return result == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr addr) {
    Lock lock(mutex);
    auto [start, found] = plain_at(addr);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = start;
    if (size) *size = found->size;
    return CUDA_SUCCESS;
}

// Which page is mapped where is not remembered.
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *, void *) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp *, CUmemGenericAllocationHandle) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemExportToShareableHandle(
    void *out,
    CUmemGenericAllocationHandle page,
    CUmemAllocationHandleType kind,
    unsigned long long) {
    Lock lock(mutex);
    auto found = pages.find(page);
    if (found == pages.end() || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    *static_cast<int *>(out) = fcntl(found->second->file, F_DUPFD_CLOEXEC, 0);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle *page, void *handle, CUmemAllocationHandleType kind) {
    Lock lock(mutex);
    int file = static_cast<int>(reinterpret_cast<intptr_t>(handle));
    struct stat info{};
    if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(file, &info) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!S_ISREG(info.st_mode)) return CUDA_ERROR_INVALID_VALUE;
    Shared memory = known[info.st_ino].lock();
    if (!memory) {
        memory = std::make_shared<Physical>();
        memory->file = fcntl(file, F_DUPFD_CLOEXEC, 0);
        memory->size = static_cast<size_t>(info.st_size);
    }
    pages[ *page = page_next++] = memory;
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
    *addr = place(memory, 0);
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

}  // extern "C"

bool is_on_card(CUdeviceptr addr) {
    Lock lock(mutex);
    return plain_at(addr).second || is_in_range(addr);
}
