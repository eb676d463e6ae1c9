"""A library that stands in front of cudaMalloc, as torch_memory_saver's does, sees the segments of
pools and graphs.
"""

import os
import tempfile
import unittest

from allocator_case import AllocatorCase, build_library, output_of, start_child

# It counts what goes through it, and passes it on.
SOURCE = """
#include <dlfcn.h>
#include <atomic>
#include <cstddef>

static std::atomic<long> made, freed;

extern "C" {
int cudaMalloc(void** address, size_t size) {
  static auto next = reinterpret_cast<int (*)(void**, size_t)>(dlsym(RTLD_NEXT, "cudaMalloc"));
  int code = next(address, size);
  made += code == 0 ? 1 : 0;
  return code;
}
int cudaFree(void* address) {
  static auto next = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_NEXT, "cudaFree"));
  freed += address != nullptr ? 1 : 0;
  return next(address);
}
long segments_made() { return made; }
long segments_freed() { return freed; }
}
"""

CHILD = """
import ctypes, gc, os, torch
seen = ctypes.CDLL(os.environ["IN_FRONT"])
torch.cuda.init()
torch.zeros(1, device="cuda")

def use(pool):
    with torch.cuda.use_mem_pool(pool):
        return torch.full((1 << 20,), 7.0, device="cuda")

def capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.ones(3 << 20, device="cuda") * 2
    graph.replay()
    return graph, out

before = seen.segments_made()
pool = torch.cuda.MemPool()
tensor = use(pool)
print("pool", seen.segments_made() - before, float(tensor[-1]), len(pool.snapshot()))
before = seen.segments_made()
graph, out = capture()
print("graph", seen.segments_made() - before >= 1)
before = seen.segments_freed()
del tensor, pool, graph, out
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
print("given back", seen.segments_freed() - before >= 2)
"""


class InterposedTest(AllocatorCase):
    def test_segments_of_pools_and_graphs_go_through_whoever_stands_in_front(self):
        with tempfile.TemporaryDirectory() as folder:
            library = build_library(folder, "front", SOURCE, "-ldl")
            front = " ".join(filter(None, [library, os.environ.get("LD_PRELOAD")]))
            child = start_child(
                CHILD,
                LD_PRELOAD=front,
                IN_FRONT=library,
                PYTORCH_CUDA_ALLOC_CONF=None,
                PYTORCH_ALLOC_CONF=None,
            )
            said = output_of(child).splitlines()
        self.assertEqual(said, ["pool 1 7.0 1", "graph True", "given back True"])


if __name__ == "__main__":
    unittest.main()
