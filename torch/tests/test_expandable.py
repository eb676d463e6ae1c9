"""The tests of other files once more, with expandable segments switched on."""

import unittest

import torch

import test_graphs
import test_mem_pool
import test_out_of_memory
import test_statistics
import test_streams
from allocator_case import (
    MIB,
    TORCH_VERSION,
    AllocatorCase,
    block_sizes,
    byte_tensor,
    output_of,
    start_child,
)

EXPANDABLE = ("expandable_segments:True",)


class ExpandableStatisticsCase(test_statistics.StatisticsCase):
    settings = EXPANDABLE


class ExpandableStreamCase(test_streams.StreamCase):
    settings = EXPANDABLE


class ExpandableOutOfMemoryCase(test_out_of_memory.OutOfMemoryCase):
    settings = EXPANDABLE


class ExpandableGraphCase(test_graphs.GraphCase):
    settings = EXPANDABLE


class ExpandableReuseCase(test_graphs.ReuseCase):
    settings = test_graphs.ReuseCase.settings + EXPANDABLE


class ExpandablePoolCase(test_mem_pool.PoolCase):
    settings = EXPANDABLE

    def test_pools_within_pools(self):
        # Each pool has one segment here, however much is in it.
        outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(outer):
            first = byte_tensor(20 * MIB)
            with torch.cuda.use_mem_pool(inner):
                second = byte_tensor(20 * MIB)
            third = byte_tensor(20 * MIB)
        self.assertEqual([block_sizes(s) for s in outer.snapshot()], [[20 * MIB, 20 * MIB]])
        self.assertEqual([block_sizes(s) for s in inner.snapshot()], [[20 * MIB]])
        del first, second, third

    def test_a_pool_that_does_not_split(self):
        pool = torch.cuda.MemPool(no_split=True)
        with torch.cuda.use_mem_pool(pool):
            first, second = byte_tensor(4 * MIB), byte_tensor(4 * MIB)
        sizes = [size for segment in pool.snapshot() for size in block_sizes(segment)]
        self.assertEqual(sizes, [20 * MIB, 20 * MIB])
        del first, second


@unittest.skipUnless(TORCH_VERSION >= (2, 15), "this torch has no expandable_segments_reserve")
class ReserveCase(AllocatorCase):
    # Settled when a process starts: a later change of settings would leave it to the tests that
    # follow.
    SCRIPT = (
        "import torch; tensors = [torch.empty(700 << 20, dtype=torch.uint8, device='cuda') for _ "
        "in range(2)]\n"
        "first, second = (tensor.data_ptr() for tensor in tensors); print(abs(second - first))"
    )

    def apart(self, *settings):
        """How far from each other two tensors of 700 MiB are."""
        child = start_child(self.SCRIPT, PYTORCH_CUDA_ALLOC_CONF=",".join(EXPANDABLE + settings))
        return int(output_of(child))

    def test_a_segment_has_as_many_addresses_as_the_settings_say(self):
        self.assertEqual(self.apart(), 700 * MIB)
        self.assertGreaterEqual(self.apart("expandable_segments_reserve:1G"), 1024 * MIB)
        # Nobody gave a stream the class.
        self.assertEqual(self.apart("expandable_segments_reserve_by_class:[serve:1G]"), 700 * MIB)


if __name__ == "__main__":
    unittest.main()
