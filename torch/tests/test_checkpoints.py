"""Checkpoints of a pool: its blocks are written down, and later put back as they were.

This is what compiled programs do when they go from one recorded graph to another.
"""

import gc
import importlib.util
import unittest

import torch

from allocator_case import (
    LARGE_SEGMENT_BYTES,
    MIB,
    SMALL_SEGMENT_BYTES,
    AllocatorCase,
    block_sizes,
    live_blocks,
    private_segments,
    run_in_threads,
    segments_of,
)

DEVICE = 0


def ones(size_bytes):
    return torch.ones([size_bytes], dtype=torch.uint8, device="cuda")


def capture(function, *inputs, pool=None, stream=None):
    """Runs a function once to warm up and once into a graph; gives the graph and its outputs."""
    stream = torch.cuda.Stream() if stream is None else stream
    torch.cuda.synchronize()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        outputs = function(*inputs)
    return graph, outputs


def checkpoint(pool_id):
    return torch._C._cuda_getCheckpointState(DEVICE, pool_id)


def restore(state, stale=(), owned=()):
    """Puts a pool back. `stale` are tensors whose memory goes by it, `owned` those that take
    theirs.
    """
    torch._C._cuda_setCheckpointPoolState(
        DEVICE,
        state,
        [tensor.untyped_storage()._cdata for tensor in stale],
        [tensor.untyped_storage()._cdata for tensor in owned],
    )


def layout(pool_id):
    """What a checkpoint must bring back of each segment, by address."""
    return {
        segment["address"]: (
            segment["device"],
            segment["total_size"],
            segment["allocated_size"],
            segment["active_size"],
            segment["segment_type"],
            [(block["size"], block["state"]) for block in segment["blocks"]],
        )
        for segment in segments_of(pool_id)
    }


def describe(tensor):
    storage = tensor.untyped_storage()
    return (
        storage.data_ptr(),
        storage.nbytes(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
    )


def rebuild(description):
    """A tensor over memory that it does not own."""
    pointer, size_bytes, shape, stride, dtype, device = description
    storage = torch._C._construct_storage_from_data_pointer(pointer, device, size_bytes)
    return torch.empty([0], dtype=dtype, device=device).set_(
        source=storage, storage_offset=0, size=shape, stride=stride
    )


class CheckpointCase(AllocatorCase):
    def setUp(self):
        super().setUp()
        self.there_before = len(private_segments())

    def tearDown(self):
        super().tearDown()
        self.assertEqual(len(private_segments()), self.there_before, "no pool is left behind")

    def assert_comes_back(self, before, pool_id):
        """All that was there is there again; segments made since may be there as well."""
        after = layout(pool_id)
        for address, described in before.items():
            self.assertEqual(after.get(address), described, hex(address))

    def assert_a_checkpoint_changes_nothing(self, function, *inputs):
        graph, outputs = capture(function, *inputs)
        before = layout(graph.pool())
        self.assertTrue(before)
        restore(checkpoint(graph.pool()))
        self.assert_comes_back(before, graph.pool())
        del outputs, graph

    def test_large_and_small_blocks(self):
        def function():
            wide = torch.zeros([8 * MIB], dtype=torch.uint8, device="cuda")
            wide = wide + wide
            total = ones(MIB) + ones(MIB) + ones(MIB)
            return wide, ones(MIB) + total, ones(MIB)

        self.assert_a_checkpoint_changes_nothing(function)

    def test_one_block_in_the_middle_of_a_segment(self):
        def function():
            return [ones(512) for _ in range(11)][5].add_(2)

        self.assert_a_checkpoint_changes_nothing(function)

    def test_several_blocks_in_the_middle(self):
        def function():
            blocks = [ones(512) for _ in range(11)]
            return blocks[5], blocks[8]

        self.assert_a_checkpoint_changes_nothing(function)

    def test_neighbours_in_the_middle(self):
        def function():
            blocks = [ones(512) for _ in range(11)]
            return blocks[5], blocks[6]

        self.assert_a_checkpoint_changes_nothing(function)

    def test_a_real_network(self):
        if importlib.util.find_spec("torchvision") is None:
            self.skipTest("no torchvision")
        from torchvision.models import resnet18

        network = resnet18().eval().cuda()
        image = torch.rand([1, 3, 128, 128], device="cuda")
        with torch.no_grad():
            self.assert_a_checkpoint_changes_nothing(network, image)

    def test_what_came_after_is_freed(self):
        graph, outputs = capture(lambda: (ones(512),))
        pool_id = graph.pool()
        before = layout(pool_id)
        state = checkpoint(pool_id)
        later_graph, later_outputs = capture(lambda: (ones(512),), pool=pool_id)
        self.assertEqual(live_blocks(pool_id), 2)
        restore(state, stale=later_outputs)
        del later_outputs
        self.assert_comes_back(before, pool_id)
        self.assertEqual(live_blocks(pool_id), 1)
        del outputs, graph, later_graph

    def test_what_died_meanwhile_is_alive_again(self):
        graph, outputs = capture(lambda: (ones(512), ones(512)))
        pool_id = graph.pool()
        state = checkpoint(pool_id)
        pointers = [tensor.data_ptr() for tensor in outputs]
        del outputs
        self.assertEqual(live_blocks(pool_id), 0)
        restore(state)
        self.assertEqual(live_blocks(pool_id), 2)
        # Nobody owns the blocks now, so they are given back by hand.
        for left, pointer in zip((1, 0), pointers):
            torch._C._cuda_cudaCachingAllocator_raw_delete(pointer)
            self.assertEqual(live_blocks(pool_id), left)
        del graph

    def test_tensors_take_their_blocks_back(self):
        def function(addend):
            return (
                ones(SMALL_SEGMENT_BYTES) + addend,
                ones(SMALL_SEGMENT_BYTES) + addend,
                ones(LARGE_SEGMENT_BYTES) + addend,
            )

        addend = torch.tensor([1], device="cuda")
        graph, outputs = capture(function, addend)
        pool_id = graph.pool()
        graph.replay()
        for tensor in outputs:
            self.assertEqual(tensor.cpu().mean(dtype=torch.float).item(), 2.0)
        state = checkpoint(pool_id)
        descriptions = [describe(tensor) for tensor in outputs]
        self.assertEqual(live_blocks(pool_id), 3)
        del outputs, tensor
        self.assertEqual(live_blocks(pool_id), 0)
        again = [rebuild(description) for description in descriptions]
        addend.add_(1)
        graph.replay()
        for tensor in again:
            self.assertEqual(tensor.cpu().mean(dtype=torch.float).item(), 3.0)
        restore(state, owned=again[:2])
        del tensor
        self.assertEqual(live_blocks(pool_id), 3)
        again[0] = None
        self.assertEqual(live_blocks(pool_id), 2)
        again[1] = None
        self.assertEqual(live_blocks(pool_id), 1)
        again[2] = None
        self.assertEqual(live_blocks(pool_id), 1, "the third was not given its block")
        torch._C._cuda_cudaCachingAllocator_raw_delete(descriptions[2][0])
        self.assertEqual(live_blocks(pool_id), 0)
        del graph

    def test_a_deleter_can_be_recognised_and_taken_away(self):
        graph, outputs = capture(lambda: (ones(512),))
        pool_id = graph.pool()
        storage = outputs[0].untyped_storage()._cdata
        self.assertTrue(torch._C._has_Standard_Deleter(storage))
        torch._C._free_And_Remove_DeleterFn(storage)
        self.assertFalse(torch._C._has_Standard_Deleter(storage))
        self.assertEqual(live_blocks(pool_id), 0)
        del outputs, graph

    def test_going_back_and_forth(self):
        # Two ways on from one beginning, as a program with a branch takes them.
        stream = torch.cuda.Stream()
        source = torch.zeros([1000], device="cuda")
        root, (stem,) = capture(lambda: (source + 1,), stream=stream)
        pool_id = root.pool()
        state = checkpoint(pool_id)
        left, (left_out,) = capture(lambda: (stem + 10,), pool=pool_id, stream=stream)
        left_address = left_out.data_ptr()
        restore(state, stale=[left_out])
        right, (right_out,) = capture(lambda: (stem + 100,), pool=pool_id, stream=stream)
        self.assertEqual(right_out.data_ptr(), left_address, "both ways use the same memory")
        for value in range(3):
            source.fill_(value)
            root.replay()
            right.replay()
            self.assertEqual(right_out[0].item(), value + 101)
            root.replay()
            left.replay()
            self.assertEqual(right_out[0].item(), value + 11)

    def test_which_blocks_live(self):
        pool_id = torch.cuda.graph_pool_handle()
        graph, outputs = capture(lambda: torch.ones([4], device="cuda"), pool=pool_id)

        def lives(*pointers):
            return torch._C._cuda_checkPoolLiveAllocations(DEVICE, pool_id, set(pointers))

        self.assertTrue(lives(outputs.data_ptr()))
        self.assertFalse(lives(outputs.data_ptr(), 0))
        self.assertFalse(lives())
        del outputs
        self.assertTrue(lives())
        del graph

    def test_a_thread_allocates_into_the_pool_of_a_graph(self):
        pool_id = torch.cuda.graph_pool_handle()
        graph, outputs = capture(lambda: torch.rand([4], device="cuda"), pool=pool_id)
        del outputs
        self.assertEqual(len(segments_of(pool_id)), 1)

        def three():
            left, right = ones(LARGE_SEGMENT_BYTES), ones(LARGE_SEGMENT_BYTES)
            return left + right

        def inside():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch._C._cuda_beginAllocateCurrentThreadToPool(DEVICE, pool_id)
                try:
                    for _ in range(10):
                        three()
                finally:
                    torch._C._cuda_endAllocateToPool(DEVICE, pool_id)
                    torch._C._cuda_releasePool(DEVICE, pool_id)
            torch.cuda.current_stream().wait_stream(stream)
            three()

        def outside():
            for _ in range(10):
                ones(LARGE_SEGMENT_BYTES)

        run_in_threads(inside, outside)
        self.assertEqual(len(segments_of(pool_id)), 2 if self.expandable else 4)
        del graph
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertEqual(segments_of(pool_id), [])


class ExpandableCheckpointCase(CheckpointCase):
    settings = ("expandable_segments:True",)

    def test_a_segment_that_has_grown_since(self):
        stream = torch.cuda.Stream()

        def mebibytes(count):
            return lambda: torch.zeros([count * MIB], dtype=torch.uint8, device="cuda")

        def sizes(pool_id):
            (segment,) = segments_of(pool_id)
            return [size // MIB for size in block_sizes(segment)]

        graph, tensor = capture(mebibytes(2), stream=stream)
        pool_id = graph.pool()
        pointer = tensor.data_ptr()
        self.assertEqual(sizes(pool_id), [2, 18])
        state = checkpoint(pool_id)
        del tensor
        larger_graph, larger = capture(mebibytes(32), pool=pool_id, stream=stream)
        self.assertEqual(larger.data_ptr(), pointer)
        self.assertEqual(sizes(pool_id), [32, 8])
        restore(state, stale=[larger])
        del larger
        self.assertEqual(sizes(pool_id), [2, 38])
        self.assertEqual(live_blocks(pool_id), 1)
        torch._C._cuda_cudaCachingAllocator_raw_delete(pointer)
        del graph, larger_graph


if __name__ == "__main__":
    unittest.main()
