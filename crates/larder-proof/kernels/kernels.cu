// The kernels of the proof. `cargo xtask gpu` compiles them to kernels.ptx, which is kept beside
// this file, so that the proof needs no compiler where it runs.

typedef unsigned int u32;
typedef unsigned long long u64;

// A word of a block's own pattern: every block has its seed, every word its place.
static __device__ __forceinline__ u32 word(u32 seed, u64 place) {
    u32 x = seed ^ (u32)place ^ (u32)(place >> 32) * 0x9e3779b9u;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

static __device__ __forceinline__ u64 first() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ u64 stride() {
    return (u64)gridDim.x * blockDim.x;
}

extern "C" __global__ void fill(u32 *words, u64 count, u32 seed) {
    for (u64 i = first(); i < count; i += stride()) {
        words[i] = word(seed, i);
    }
}

// Counts the words that are not of the pattern.
extern "C" __global__ void verify(const u32 *words, u64 count, u32 seed, u64 *wrong) {
    u64 found = 0;
    for (u64 i = first(); i < count; i += stride()) {
        if (words[i] != word(seed, i)) {
            found += 1;
        }
    }
    if (found != 0) {
        atomicAdd(wrong, found);
    }
}

// A block with its pattern, and as many as go into one launch; a row of the grid for each.
struct Span {
    u32 *words;
    u32 count;
    u32 seed;
};
struct Spans {
    Span spans[64];
};

extern "C" __global__ void fill_many(const __grid_constant__ Spans all) {
    const Span &span = all.spans[blockIdx.y];
    for (u64 i = first(); i < span.count; i += stride()) {
        span.words[i] = word(span.seed, i);
    }
}

extern "C" __global__ void verify_many(const __grid_constant__ Spans all, u64 *wrong) {
    const Span &span = all.spans[blockIdx.y];
    u64 found = 0;
    for (u64 i = first(); i < span.count; i += stride()) {
        if (span.words[i] != word(span.seed, i)) {
            found += 1;
        }
    }
    if (found != 0) {
        atomicAdd(wrong, found);
    }
}

// Keeps its stream busy for about that long.
extern "C" __global__ void delay(u64 duration_ns) {
    u64 begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < duration_ns);
}

// Holds its stream until the host writes that value.
extern "C" __global__ void spin(const volatile u32 *flag, u32 value) {
    while (*flag < value) {
        __nanosleep(1000);
    }
}

// Adds one to every word: what a replayed graph does to its own memory.
extern "C" __global__ void increment(u32 *words, u64 count) {
    for (u64 i = first(); i < count; i += stride()) {
        words[i] += 1;
    }
}

// Counts the words that are not this one.
extern "C" __global__ void expect(const u32 *words, u64 count, u32 value, u64 *wrong) {
    u64 found = 0;
    for (u64 i = first(); i < count; i += stride()) {
        if (words[i] != value) {
            found += 1;
        }
    }
    if (found != 0) {
        atomicAdd(wrong, found);
    }
}

// For the training loop.

extern "C" __global__ void uniform(float *values, u64 count, u32 seed, float scale) {
    for (u64 i = first(); i < count; i += stride()) {
        values[i] = ((float)(word(seed, i) >> 8) / 8388608.0f - 1.0f) * scale;
    }
}

extern "C" __global__ void relu(const float *in, float *out, u64 count) {
    for (u64 i = first(); i < count; i += stride()) {
        out[i] = in[i] > 0.0f ? in[i] : 0.0f;
    }
}

extern "C" __global__ void relu_backward(const float *out, const float *grad, float *into, u64 count) {
    for (u64 i = first(); i < count; i += stride()) {
        into[i] = out[i] > 0.0f ? grad[i] : 0.0f;
    }
}

extern "C" __global__ void loss_gradient(const float *out, const float *target, float *grad, u64 count,
                                         float scale) {
    for (u64 i = first(); i < count; i += stride()) {
        grad[i] = (out[i] - target[i]) * scale;
    }
}

extern "C" __global__ void descend(float *weights, const float *grad, u64 count, float rate) {
    for (u64 i = first(); i < count; i += stride()) {
        weights[i] -= rate * grad[i];
    }
}
