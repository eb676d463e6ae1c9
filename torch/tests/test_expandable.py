"""The tests of other files once more, with expandable segments switched on."""

import unittest

import torch

import test_graphs
import test_mem_pool
import test_out_of_memory
import test_statistics
import test_streams
from allocator_case import MIB, block_sizes, byte_tensor

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


if __name__ == "__main__":
    unittest.main()
