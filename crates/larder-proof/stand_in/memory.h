// The memory of the card: memory files, so that pages can be mapped, shared and outlive those who
// made them. LARDER_STAND_IN_MEMORY says how many bytes there are; only what is written to costs
// memory of the host.

#pragma once

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

namespace {

constexpr size_t UNIT = 2 << 20;

size_t capacity_from_environment() {
    const char *said = std::getenv("LARDER_STAND_IN_MEMORY");
    return said ? std::strtoull(said, nullptr, 10) : size_t{2} << 30;
}
const size_t capacity = capacity_from_environment();

std::mutex mutex;

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
    if (size > capacity || used + whole(size) > capacity) return CUDA_ERROR_OUT_OF_MEMORY;
    out = std::make_shared<Physical>();
    out->file = memfd_create("card", MFD_CLOEXEC);
    out->size = size;
    if (out->file < 0 || ftruncate(out->file, static_cast<off_t>(size)) != 0)
        return CUDA_ERROR_UNKNOWN;
    out->counted = true;
    used += whole(size);
    struct stat info{};
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

// Where plain memory is put: the lowest room that is large enough, as a card that nobody else uses
// does it.
constexpr size_t ROOM = size_t{1} << 40;

CUdeviceptr lowest_room(size_t size) {
    static const CUdeviceptr start = [] {
        void *base = mmap(
            nullptr, ROOM + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return base == MAP_FAILED ? 0 : whole(reinterpret_cast<CUdeviceptr>(base));
    }();
    CUdeviceptr at = start;
    for (const auto &[addr, taken] : plain) {
        if (addr < start || addr >= start + ROOM) continue;
        if (addr - at >= size) break;
        at = addr + whole(taken.size);
    }
    return start && at + size <= start + ROOM ? at : 0;
}

CUdeviceptr place(const Shared &memory, CUdeviceptr room) {
    int flags = MAP_SHARED | (room ? MAP_FIXED : 0);
    void *addr = mmap(
        reinterpret_cast<void *>(room), memory->size, PROT_READ | PROT_WRITE, flags, memory->file,
        0);
    return addr == MAP_FAILED ? 0 : reinterpret_cast<CUdeviceptr>(addr);
}

// Takes memory away from where it was put; the addresses stay ours.
bool displace(CUdeviceptr addr, size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(reinterpret_cast<void *>(addr), size, PROT_NONE, flags, -1, 0) != MAP_FAILED;
}

// The plain memory in which an address lies, and where it begins; none where there is none.
std::pair<CUdeviceptr, const Plain *> plain_at(CUdeviceptr addr) {
    auto after = plain.upper_bound(addr);
    if (after == plain.begin()) return {0, nullptr};
    auto found = std::prev(after);
    if (addr >= found->first + found->second.size) return {0, nullptr};
    return {found->first, &found->second};
}

// Pinned memory of the host: where it begins, how much it is, and whether the driver gave it.
struct Pinned {
    size_t size;
    bool given;
};
std::map<CUdeviceptr, Pinned> pinned;

bool pinned_at(CUdeviceptr addr) {
    auto after = pinned.upper_bound(addr);
    if (after == pinned.begin()) return false;
    auto found = std::prev(after);
    return addr < found->first + found->second.size;
}

// Only what is written to costs memory of the host.
CUresult pin(void **out, size_t size) {
    void *addr = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (size == 0 || addr == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = addr;
    pinned[reinterpret_cast<CUdeviceptr>(addr)] = {size, true};
    return CUDA_SUCCESS;
}

CUresult pin_mapped(void *memory, size_t size) {
    auto addr = reinterpret_cast<CUdeviceptr>(memory);
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    auto next = pinned.lower_bound(addr);
    if (pinned_at(addr) || (next != pinned.end() && next->first < addr + size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pinned[addr] = {size, false};
    return CUDA_SUCCESS;
}

CUresult unpin(void *memory, bool given) {
    auto found = pinned.find(reinterpret_cast<CUdeviceptr>(memory));
    if (found == pinned.end() || found->second.given != given)
        return given ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (given) munmap(memory, found->second.size);
    pinned.erase(found);
    return CUDA_SUCCESS;
}

// The range of addresses in which one lies.
bool is_in_range(CUdeviceptr addr) {
    auto after = ranges.upper_bound(addr);
    if (after == ranges.begin()) return false;
    auto found = std::prev(after);
    return addr < found->first + found->second;
}

}  // namespace
