"""The snapshot: its shape, and what it shows of segments, blocks and pools."""

import unittest

import torch

from allocator_case import (
    LARGE_SEGMENT_BYTES,
    MIB,
    AllocatorCase,
    block_at,
    byte_tensor,
    segment_at,
)

SEGMENT_KEYS = {
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "frames",
    "blocks",
}
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames"}


class SnapshotCase(AllocatorCase):
    def test_the_shape(self):
        keep = byte_tensor(3 * MIB)
        snapshot = torch.cuda.memory._snapshot()
        self.assertLessEqual(
            {"segments", "device_traces", "allocator_settings", "external_annotations"},
            set(snapshot),
        )
        self.assertEqual(len(snapshot["device_traces"]), torch.cuda.device_count())
        self.assertEqual(snapshot["device_traces"][0], [], "nothing is recorded unless asked for")
        for segment in snapshot["segments"]:
            self.assertLessEqual(SEGMENT_KEYS, set(segment))
            self.assertIsInstance(segment["segment_pool_id"], tuple)
            for block in segment["blocks"]:
                self.assertLessEqual(BLOCK_KEYS, set(block))
        self.assertEqual(snapshot["segments"], torch.cuda.memory_snapshot())
        del keep

    def test_segments_come_in_the_order_of_their_addresses(self):
        held = [byte_tensor(size * MIB) for size in (30, 1, 12, 3, 25, 1, 1)]
        addresses = [s["address"] for s in torch.cuda.memory_snapshot()]
        self.assertEqual(addresses, sorted(addresses))
        del held

    def test_a_block_tells_what_was_asked_for(self):
        tensor = byte_tensor(1000)
        block = block_at(tensor.data_ptr())
        self.assertEqual((block["size"], block["requested_size"]), (1024, 1000))
        self.assertEqual(block["state"], "active_allocated")
        segment = segment_at(tensor.data_ptr())
        self.assertEqual(segment["segment_type"], "small")
        self.assertEqual(segment["segment_pool_id"], (0, 0))
        self.assertEqual(segment["device"], 0)

    def test_a_segment_belongs_to_the_stream_it_was_made_for(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            side = byte_tensor(MIB)
        main = byte_tensor(MIB)
        self.assertEqual(segment_at(side.data_ptr())["stream"], stream.cuda_stream)
        self.assertEqual(segment_at(main.data_ptr())["stream"], 0)

    def test_large_and_small_are_told_apart(self):
        small, large = byte_tensor(MIB), byte_tensor(MIB + 1)
        self.assertEqual(segment_at(small.data_ptr())["segment_type"], "small")
        self.assertEqual(segment_at(large.data_ptr())["segment_type"], "large")
        self.assertEqual(segment_at(large.data_ptr())["total_size"], LARGE_SEGMENT_BYTES)

    def test_one_pool_alone(self):
        pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = byte_tensor(30 * MIB)
        outside = byte_tensor(30 * MIB)
        of_pool = torch.cuda.memory_snapshot(pool.id)
        self.assertEqual([s["address"] for s in of_pool], [inside.data_ptr()])
        self.assertEqual(of_pool[0]["segment_pool_id"], pool.id)
        self.assertEqual(pool.snapshot(), of_pool)
        self.assertEqual(torch.cuda.memory_snapshot(other.id), [])
        everything = {s["address"] for s in torch.cuda.memory_snapshot()}
        self.assertLessEqual({inside.data_ptr(), outside.data_ptr()}, everything)

    def test_traces_can_be_left_out(self):
        torch.cuda.memory._record_memory_history(stacks="python")
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            held = [byte_tensor(4096) for _ in range(50)]
        full = torch._C._cuda_memorySnapshot((0, 0, True))
        lean = torch._C._cuda_memorySnapshot((0, 0, False))
        self.assertGreaterEqual(len(full["device_traces"][0]), 50)
        self.assertEqual(sum(len(trace) for trace in lean["device_traces"]), 0)
        self.assertEqual(full["segments"], lean["segments"])
        self.assertEqual(pool.snapshot(include_traces=False), pool.snapshot())
        self.assertEqual(
            torch.cuda.memory_snapshot(include_traces=False), torch.cuda.memory_snapshot()
        )
        del held


class ExpandableSnapshotCase(AllocatorCase):
    settings = ("expandable_segments:True",)

    def test_each_mapped_run_is_a_segment(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            first, second, third = (byte_tensor(20 * MIB) for _ in range(3))
            base = first.data_ptr()
            self.assertEqual(segment_at(base)["total_size"], 60 * MIB)
            del second
            torch.cuda.empty_cache()
            left, right = segment_at(base), segment_at(third.data_ptr())
            self.assertEqual((left["address"], left["total_size"]), (base, 20 * MIB))
            self.assertEqual((right["address"], right["total_size"]), (base + 40 * MIB, 20 * MIB))
            self.assertTrue(left["is_expandable"] and right["is_expandable"])
            self.assert_snapshot_agrees("with a hole")


if __name__ == "__main__":
    unittest.main()
