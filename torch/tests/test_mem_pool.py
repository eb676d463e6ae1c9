"""Pools that a program makes for itself: what goes into them, and when their memory goes back."""

import ctypes
import tempfile
import threading
import unittest

import torch

from allocator_case import (
    MIB,
    AllocatorCase,
    Change,
    block_sizes,
    build_library,
    byte_tensor,
    filled,
    holds,
    live_blocks,
    output_of,
    private_segments,
    run_in_threads,
    segment_at,
    segments_of,
    start_child,
)

# An allocator that asks the driver itself and counts. It needs no header of CUDA.
COUNTING_SOURCE = """
#include <dlfcn.h>
#include <stddef.h>
extern "C" {
int allocations = 0;
int releases = 0;
static void* driver(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return dlsym(library, name);
}
void* counting_alloc(size_t size, int, void*) {
  unsigned long long address = 0;
  auto allocate = reinterpret_cast<int (*)(unsigned long long*, size_t)>(driver("cuMemAlloc_v2"));
  if (allocate(&address, size) != 0) return nullptr;
  allocations += 1;
  return reinterpret_cast<void*>(address);
}
void counting_free(void* pointer, size_t, int, void*) {
  auto release = reinterpret_cast<int (*)(unsigned long long)>(driver("cuMemFree_v2"));
  release(reinterpret_cast<unsigned long long>(pointer));
  releases += 1;
}
}
"""


class PoolCase(AllocatorCase):
    def setUp(self):
        super().setUp()
        self.there_before = [segment["address"] for segment in private_segments()]

    def tearDown(self):
        super().tearDown()
        there_now = [segment["address"] for segment in private_segments()]
        self.assertEqual(there_now, self.there_before, "every pool is gone when the test is over")

    def test_identifiers_are_new_each_time(self):
        handles = [
            torch.cuda.graph_pool_handle(),
            torch.cuda.MemPool().id,
            torch.cuda.graph_pool_handle(),
        ]
        if hasattr(torch.accelerator, "generate_graph_pool_handle"):
            handles.append(torch.accelerator.generate_graph_pool_handle())
        self.assertEqual({first for first, _ in handles}, {0})
        seconds = [second for _, second in handles]
        self.assertEqual(seconds, sorted(set(seconds)))

    def test_threads_get_pools_of_their_own(self):
        identifiers = []
        run_in_threads(*[lambda: identifiers.append(torch.cuda.MemPool().id)] * 4)
        self.assertEqual(len(set(identifiers)), 4)

    def test_the_count_of_users(self):
        pool = torch.cuda.MemPool()
        self.assertEqual(pool.use_count(), 1)
        with torch.cuda.use_mem_pool(pool):
            self.assertEqual(pool.use_count(), 2)
        self.assertEqual(pool.use_count(), 1)

    def test_what_is_made_inside_lies_inside(self):
        pool = torch.cuda.MemPool()
        before = byte_tensor(4096)
        with torch.cuda.use_mem_pool(pool):
            inside = byte_tensor(4096)
        after = byte_tensor(4096)
        self.assertEqual(segment_at(inside.data_ptr())["segment_pool_id"], pool.id)
        for tensor in (before, after):
            self.assertEqual(segment_at(tensor.data_ptr())["segment_pool_id"], (0, 0))

    def test_a_pool_keeps_its_free_memory_for_itself(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = byte_tensor(30 * MIB)
        address = inside.data_ptr()
        del inside
        outside = byte_tensor(30 * MIB)
        self.assertNotEqual(outside.data_ptr(), address)
        torch.cuda.empty_cache()
        self.assertEqual(len(pool.snapshot()), 1, "a pool in use is not emptied")
        with torch.cuda.use_mem_pool(pool):
            self.assertEqual(byte_tensor(30 * MIB).data_ptr(), address)

    def test_a_pool_that_goes_takes_its_memory_along(self):
        change = Change()
        pool = torch.cuda.MemPool()
        outside = byte_tensor(4 * MIB)
        with torch.cuda.use_mem_pool(pool):
            inside = byte_tensor(40 * MIB)
        reserved = change["reserved_bytes.all.current"]
        del inside
        self.assertEqual(change["reserved_bytes.all.current"], reserved)
        identifier = pool.id
        del pool
        self.assertEqual(change["reserved_bytes.all.current"], reserved - 40 * MIB)
        self.assertEqual(segments_of(identifier), [])
        self.assertEqual(segment_at(outside.data_ptr())["segment_pool_id"], (0, 0))

    def test_pools_within_pools(self):
        outer, middle, inner = (torch.cuda.MemPool() for _ in range(3))
        held = []
        with torch.cuda.use_mem_pool(outer):
            held.append(byte_tensor(20 * MIB))
            with torch.cuda.use_mem_pool(middle):
                held.append(byte_tensor(20 * MIB))
                with torch.cuda.use_mem_pool(inner):
                    held.append(byte_tensor(20 * MIB))
                held.append(byte_tensor(20 * MIB))
            held.append(byte_tensor(20 * MIB))
        counts = [len(torch.cuda.memory_snapshot(pool.id)) for pool in (outer, middle, inner)]
        self.assertEqual(counts, [2, 2, 1])
        del held

    def test_a_pool_that_does_not_split(self):
        splitting, whole = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
        held = []
        for pool in (splitting, whole):
            with torch.cuda.use_mem_pool(pool):
                held += [byte_tensor(4 * MIB), byte_tensor(4 * MIB)]
        self.assertEqual(
            [block_sizes(segment) for segment in splitting.snapshot()],
            [[4 * MIB, 4 * MIB, 12 * MIB]],
        )
        self.assertEqual([block_sizes(segment) for segment in whole.snapshot()], [[20 * MIB]] * 2)
        del held

    def test_only_the_thread_that_asked_is_diverted(self):
        pool = torch.cuda.MemPool()
        entered, made = threading.Event(), threading.Event()
        pools = []

        def inside():
            with torch.cuda.use_mem_pool(pool):
                tensor = byte_tensor(MIB)
                entered.set()
                made.wait(60)
                pools.append(segment_at(tensor.data_ptr())["segment_pool_id"])

        def outside():
            entered.wait(60)
            tensor = byte_tensor(MIB)
            pools.append(segment_at(tensor.data_ptr())["segment_pool_id"])
            made.set()

        run_in_threads(inside, outside)
        self.assertEqual(pools, [(0, 0), pool.id])

    def test_emptying_the_cache_inside_a_pool_leaves_the_pool_alone(self):
        pools = [torch.cuda.MemPool() for _ in range(4)]

        def worker(pool):
            def run():
                with torch.cuda.use_mem_pool(pool):
                    byte_tensor(16)
                    torch.cuda.empty_cache()

            return run

        run_in_threads(*map(worker, pools))
        self.assertEqual([len(pool.snapshot()) for pool in pools], [1] * 4)

    def test_a_tensor_outlives_its_pool(self):
        pool = torch.cuda.MemPool()
        identifier = pool.id
        with torch.cuda.use_mem_pool(pool):
            tensor = filled(5 * MIB, 9)
        del pool
        torch.cuda.empty_cache()
        self.assertTrue(holds(tensor, 9))
        self.assertEqual(live_blocks(identifier), 1)
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(segments_of(identifier), [])

    def test_a_model_may_live_in_a_pool(self):
        torch.manual_seed(1)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            model = torch.nn.Linear(100, 100).cuda()
        data = torch.randn(10, 100, device="cuda")
        loss = model(data).square().sum()
        loss.backward()
        self.assertEqual(segment_at(model.weight.data_ptr())["segment_pool_id"], pool.id)
        self.assertEqual(segment_at(model.weight.grad.data_ptr())["segment_pool_id"], (0, 0))
        self.assertTrue(bool(torch.isfinite(model.weight.grad).all()))

    def test_the_calls_below(self):
        pool_id = torch.cuda.graph_pool_handle()
        device = torch.cuda.current_device()
        made = []
        torch._C._cuda_beginAllocateToPool(device, pool_id)
        try:
            # All streams and all threads are diverted here.
            made.append(byte_tensor(MIB))
            with torch.cuda.stream(torch.cuda.Stream()):
                made.append(byte_tensor(MIB))
            run_in_threads(lambda: made.append(byte_tensor(MIB)))
        finally:
            torch._C._cuda_endAllocateToPool(device, pool_id)
            torch._C._cuda_releasePool(device, pool_id)
        for tensor in made:
            self.assertEqual(segment_at(tensor.data_ptr())["segment_pool_id"], pool_id)
        with self.assertRaises(RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool_id)


class PressureCase(AllocatorCase):
    """Pools that may be lent from when nothing else is left."""

    def test_one_pool_lends_and_the_other_does_not(self):
        closed = torch.cuda.MemPool()
        open_handed = torch.cuda.MemPool(use_on_oom=True)
        with self.limit(80 * MIB):
            with torch.cuda.use_mem_pool(closed):
                in_closed = byte_tensor(40 * MIB)
            with torch.cuda.use_mem_pool(open_handed):
                in_open = byte_tensor(40 * MIB)
            lent_address = in_open.data_ptr()
            with self.assertRaises(torch.OutOfMemoryError):
                byte_tensor(40 * MIB)
            del in_closed, in_open
            borrowed = byte_tensor(30 * MIB)
            self.assertEqual(borrowed.data_ptr(), lent_address)
            self.assertEqual(segment_at(lent_address)["segment_pool_id"], open_handed.id)
            with self.assertRaises(torch.OutOfMemoryError):
                byte_tensor(30 * MIB)
            del borrowed
            with torch.cuda.use_mem_pool(open_handed):
                self.assertEqual(byte_tensor(20 * MIB).data_ptr(), lent_address)
            del closed, open_handed

    def test_pools_that_are_gone_lend_nothing(self):
        with self.limit(40 * MIB):
            for _ in range(10):
                pool = torch.cuda.MemPool(use_on_oom=True)
                with torch.cuda.use_mem_pool(pool):
                    tensor = byte_tensor(40 * MIB)
                del tensor, pool
            pool = torch.cuda.MemPool(use_on_oom=True)
            with torch.cuda.use_mem_pool(pool):
                tensor = byte_tensor(40 * MIB)
            del tensor
            first, second = byte_tensor(20 * MIB), byte_tensor(20 * MIB)
            self.assertEqual(second.data_ptr(), first.data_ptr() + 20 * MIB)
            with self.assertRaises(torch.OutOfMemoryError):
                byte_tensor(20 * MIB)
            del first, second, pool


class CustomAllocatorCase(AllocatorCase):
    """Pools whose memory comes from an allocator of the program's own."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = build_library(cls.folder.name, "counting", COUNTING_SOURCE, "-ldl")
        library = ctypes.CDLL(cls.path)
        cls.allocations = ctypes.c_int.in_dll(library, "allocations")
        cls.releases = ctypes.c_int.in_dll(library, "releases")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        super().tearDownClass()

    def setUp(self):
        super().setUp()
        self.allocations.value = 0
        self.releases.value = 0

    def allocator(self):
        return torch.cuda.memory.CUDAPluggableAllocator(
            self.path, "counting_alloc", "counting_free"
        )

    def counts(self):
        return self.allocations.value, self.releases.value

    def test_an_allocator_is_asked_only_when_it_is_needed(self):
        pool = torch.cuda.MemPool(self.allocator().allocator())
        self.assertEqual(pool.use_count(), 1)
        with torch.cuda.use_mem_pool(pool):
            torch.empty(0, device="cuda")
        outside = byte_tensor(MIB)
        self.assertEqual(self.counts(), (0, 0))
        del outside

    def test_segments_come_from_it_and_are_shared_out_as_ever(self):
        pool = torch.cuda.MemPool(self.allocator().allocator())
        change = Change()
        with torch.cuda.use_mem_pool(pool):
            self.assertEqual(pool.use_count(), 2)
            first = filled(MIB, 1)
            self.assertEqual((self.counts(), len(pool.snapshot())), ((1, 0), 1))
        outside = byte_tensor(MIB)
        self.assertEqual(pool.use_count(), 1)
        with torch.cuda.use_mem_pool(pool):
            second = filled(MIB, 2)
            self.assertEqual((self.counts(), len(pool.snapshot())), ((1, 0), 1))
            third = filled(MIB, 3)
            self.assertEqual((self.counts(), len(pool.snapshot())), ((2, 0), 2))
        self.assertEqual(len(pool.snapshot()), 2)
        # Two of the pool, and one for the tensor outside.
        self.assertEqual(change["segment.all.current"], 3)
        for value, tensor in enumerate((first, second, third), 1):
            self.assertTrue(holds(tensor, value))
        del first, second, third, tensor, outside
        self.assertEqual(self.counts(), (2, 0))
        del pool
        self.assertEqual(self.counts(), (2, 2))

    def test_memory_goes_back_by_the_function_it_came_with(self):
        def make():
            pool = torch.cuda.MemPool(self.allocator().allocator())
            with torch.cuda.use_mem_pool(pool):
                return filled(16 * MIB, 4)

        tensor = make()
        self.assertEqual(self.counts(), (1, 0))
        self.assertTrue(holds(tensor, 4), "the tensor outlives pool and allocator")
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (1, 1))

    def test_a_tensor_outlives_the_allocator(self):
        allocator = self.allocator()
        pool = torch.cuda.MemPool(allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = byte_tensor(16)
        del pool, allocator
        self.assertEqual(self.counts(), (1, 0))
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (1, 1))

    def test_it_is_never_expandable(self):
        self.configure("expandable_segments:True")
        pool = torch.cuda.MemPool(self.allocator().allocator())
        with torch.cuda.use_mem_pool(pool):
            inside = byte_tensor(MIB)
        with torch.cuda.stream(torch.cuda.Stream()):
            outside = byte_tensor(MIB)
        self.assertFalse(segment_at(inside.data_ptr())["is_expandable"])
        self.assertTrue(segment_at(outside.data_ptr())["is_expandable"])
        plain = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(plain):
            in_plain = byte_tensor(MIB)
        self.assertTrue(segment_at(in_plain.data_ptr())["is_expandable"])
        del inside, outside, in_plain

    def test_it_may_be_lent_from_and_counts_against_the_cap(self):
        allocator = self.allocator()
        closed = torch.cuda.MemPool(allocator.allocator())
        open_handed = torch.cuda.MemPool(allocator.allocator(), use_on_oom=True)
        with self.limit(80 * MIB):
            with torch.cuda.use_mem_pool(closed):
                one = byte_tensor(40 * MIB)
            with torch.cuda.use_mem_pool(open_handed):
                two = byte_tensor(40 * MIB)
            address = two.data_ptr()
            with self.assertRaises(torch.OutOfMemoryError):
                byte_tensor(40 * MIB)
            del one, two
            borrowed = byte_tensor(30 * MIB)
            self.assertEqual(borrowed.data_ptr(), address)
            del borrowed, closed, open_handed
        self.assertEqual(self.counts(), (2, 2))

    def test_a_graph_may_use_the_pool(self):
        pool = torch.cuda.MemPool(self.allocator().allocator())
        source = torch.ones(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        # The allocator calls the driver in the midst of the capture, which only this mode allows.
        with torch.cuda.graph(graph, pool=pool.id, capture_error_mode="relaxed"):
            result = source + 1
        graph.replay()
        self.assertEqual(result.cpu().sum().item(), 2000.0)
        self.assertEqual(self.allocations.value, 1)
        del graph, result
        del pool
        torch.cuda.empty_cache()
        self.assertEqual(self.counts(), (1, 1))


class NcclPoolCase(AllocatorCase):
    def test_the_allocator_of_nccl(self):
        if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
            self.skipTest("no NCCL in this build")
        # In a child: what NCCL attaches to the allocator stays attached.
        child = start_child(
            """
import torch
import torch.distributed as distributed
device = torch.device("cuda:0")
try:
    distributed.init_process_group(
        "nccl", store=distributed.HashStore(), rank=0, world_size=1, device_id=device)
    backend = distributed.group.WORLD._get_backend(device)
    allocator = backend.mem_allocator
except RuntimeError as reason:
    print("skipped:", str(reason).splitlines()[0])
    raise SystemExit
pool = torch.cuda.MemPool(allocator)
with torch.cuda.use_mem_pool(pool):
    tensor = torch.arange(1024 * 1024, device=device, dtype=torch.float32)
backend.register_mem_pool(pool)
distributed.all_reduce(tensor)
torch.cuda.synchronize()
print(tensor[1000].item(), len(pool.snapshot()))
backend.deregister_mem_pool(pool)
del tensor, pool
torch.cuda.empty_cache()
distributed.destroy_process_group()
"""
        )
        printed = output_of(child)
        if printed.startswith("skipped:"):
            self.skipTest(printed)
        self.assertEqual(printed, "1000.0 1")


if __name__ == "__main__":
    unittest.main()
