/* A stand-in for NCCL: what a source of segments calls, on numbers instead of memory. A communicator is a `comm`. */
#include <stddef.h>
#include <stdint.h>

typedef struct comm {
    int registered, deregistered, windows, windows_gone;
    int fails; /* registering fails */
} comm;

#define PIECES 256
static size_t sizes[PIECES];
static const uint64_t BEGIN = (uint64_t)1 << 45;
static size_t held;

int ncclMemAlloc(void **place, size_t size) {
    if (held + size > ((size_t)256 << 20)) return 1; /* an unhandled CUDA error */
    for (int at = 0; at < PIECES; at++) {
        if (sizes[at] == 0) {
            sizes[at] = size;
            held += size;
            *place = (void *)(uintptr_t)(BEGIN + (uint64_t)at * ((uint64_t)1 << 30));
            return 0;
        }
    }
    return 1;
}

int ncclMemFree(void *place) {
    uint64_t at = ((uint64_t)(uintptr_t)place - BEGIN) >> 30;
    if (at >= PIECES || sizes[at] == 0) return 4; /* an invalid argument */
    held -= sizes[at];
    sizes[at] = 0;
    return 0;
}

int ncclCommRegister(comm *comm, void *place, size_t size, void **handle) {
    (void)place, (void)size;
    if (comm->fails == 1) return 5;
    *handle = (void *)(uintptr_t)(1000 + comm->registered++);
    return 0;
}

int ncclCommDeregister(comm *comm, void *handle) {
    (void)handle;
    comm->deregistered++;
    return 0;
}

#ifndef BEFORE_WINDOWS
int ncclCommWindowRegister(comm *comm, void *place, size_t size, void **window, int flags) {
    if ((uintptr_t)place % 4096 != 0 || size == 0 || flags != 1) return 4;
    if (comm->fails == 2) return 5;
    *window = (void *)(uintptr_t)(2000 + comm->windows++);
    return 0;
}

int ncclCommWindowDeregister(comm *comm, void *window) {
    (void)window;
    comm->windows_gone++;
    return 0;
}
#endif

const char *ncclGetErrorString(int code) { return code == 5 ? "invalid usage" : "some error"; }
