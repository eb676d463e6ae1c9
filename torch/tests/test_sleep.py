"""Sleep and wake, which PyTorch's own allocator does not have: each story runs in a child on
Larder, and is left out where the suite runs on another allocator.
"""

import sys
import unittest

from allocator_case import AllocatorCase, output_of, start_child

BEGIN = """
import torch, larder
MIB = 1 << 20
def filled(mib, value):
    return torch.full((mib * MIB,), value, dtype=torch.uint8, device="cuda")
def holds(tensor, value):
    return bool((tensor.cpu() == value).all())
def free_bytes():
    return torch.cuda.mem_get_info()[0]
torch.cuda.init()
sleep, wake, region, stats = (
    larder.torch.sleep, larder.torch.wake, larder.torch.region, larder.torch.sleep_stats)
"""


def is_larder():
    larder = sys.modules.get("larder")
    return larder is not None and larder.torch.is_installed()


@unittest.skipUnless(is_larder(), "sleep is Larder's alone")
class SleepTest(AllocatorCase):
    def run_on(self, story, **environment):
        settings = {"PYTORCH_CUDA_ALLOC_CONF": None, "PYTORCH_ALLOC_CONF": None, **environment}
        child = start_child(BEGIN + story + "\nprint('done')", **settings)
        self.assertEqual(output_of(child), "done")

    def test_tags_sleep_and_wake_one_by_one(self):
        story = """
with region("weights"):
    weights = filled(40, 3)
with region("kv_cache", keep="drop"):
    cache = filled(60, 5)
with region("zeros", keep="zero"):
    zeros = filled(4, 7)
other = filled(3, 9)
addresses = weights.data_ptr(), cache.data_ptr()
before = free_bytes()
slept = sleep(["weights", "kv_cache", "zeros"])
assert slept.asleep_bytes >= 104 * MIB and slept.kept_bytes == 40 * MIB, slept
assert free_bytes() >= before + 104 * MIB
assert holds(other, 9)
assert torch.cuda.memory_allocated() >= 107 * MIB, "they are allocated"
assert stats().used_bytes == 104 * MIB and stats().generation == 0, stats()
wake("weights")
assert holds(weights, 3)
wake()
cache.fill_(6)
assert holds(cache, 6) and holds(zeros, 0)
assert (weights.data_ptr(), cache.data_ptr()) == addresses
assert stats().asleep_bytes == 0 and stats().generation == 2, stats()
larder.torch.set_keep_limit(0)
assert stats().spare_bytes == 0
"""
        for conf in ("", "policy:tight", "policy:torch"):
            with self.subTest(conf=conf):
                self.run_on(story, LARDER_CONF=conf or None)
        # Tags sleep even where nothing else is expandable.
        self.run_on(story, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")

    def test_all_memory_sleeps_and_the_card_is_free(self):
        story = """
tensors = [filled(size, at + 1) for at, size in enumerate((30, 1, 7, 90))]
tensors.append(torch.full((100,), 5, dtype=torch.uint8, device="cuda"))
del tensors[2]
slept = sleep()
assert slept.plain_bytes == 0, slept
assert torch.cuda.memory_reserved() == 0
meanwhile = filled(20, 77)
wake()
assert [holds(t, v) for t, v in zip(tensors, (1, 2, 4, 5))] == [True] * 4
assert holds(meanwhile, 77)
"""
        for conf in ("", "policy:tight"):
            with self.subTest(conf=conf):
                self.run_on(story, LARDER_CONF=conf or None)

    def test_a_graph_in_a_region_sleeps_and_is_replayed_after_each_waking(self):
        story = """
graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with region("weights"):
    weights = filled(8, 2)
with region("graphs"), torch.cuda.stream(side):
    graph.capture_begin()
    scratch = weights + 1
    result = scratch * 2
    del scratch
    graph.capture_end()
torch.cuda.synchronize()
for turn in range(5):
    slept = sleep(["weights", "graphs"])
    assert slept.plain_bytes == 0 and slept.asleep_bytes >= 16 * MIB, slept
    filler = filled(30, turn)
    wake()
    weights.fill_(turn)
    graph.replay()
    torch.cuda.synchronize()
    assert holds(result, 2 * (turn + 1)), (turn, result[:4])
    assert holds(filler, turn)
"""
        self.run_on(story)

    def test_what_is_freed_in_its_sleep_is_not_made_again(self):
        self.run_on(
            """
with region("t"):
    one, two = filled(40, 1), filled(40, 2)
sleep("t")
del one
import gc; gc.collect()
assert stats().used_bytes == 40 * MIB
wake("t")
assert holds(two, 2)
assert torch.cuda.memory_reserved() < 80 * MIB, torch.cuda.memory_reserved()
"""
        )

    def test_regions_nest_and_can_be_left(self):
        self.run_on(
            """
with region("a"):
    with region("b", keep="drop"):
        inner = filled(10, 1)
        with larder.torch.no_region():
            outside = filled(10, 2)
    outer = filled(10, 3)
assert sleep("b").kept_bytes == 0
assert holds(outside, 2) and holds(outer, 3)
assert sleep("a").kept_bytes == 10 * MIB
assert holds(outside, 2)
wake()
"""
        )

    def test_a_card_that_is_full_says_what_is_missing(self):
        self.run_on(
            """
with region("t"):
    kept = filled(100, 1)
sleep("t")
torch.cuda.set_per_process_memory_fraction(0.0001)
try:
    wake("t")
    raise SystemExit("it woke")
except RuntimeError as error:
    assert "all sleeps on" in str(error), error
torch.cuda.set_per_process_memory_fraction(1.0)
wake("t")
assert holds(kept, 1)
"""
        )

    def test_mistakes_are_told(self):
        self.run_on(
            """
def refused(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert words in str(error), error
        return
    raise SystemExit(f"{words}: nothing was refused")
refused(RuntimeError, "the tag", sleep, "never")
refused(ValueError, "without a comma", sleep, "a,b")
refused(ValueError, "no tag is named", wake, [])
refused(ValueError, "keep is", sleep, keep="disk")
"""
        )


if __name__ == "__main__":
    unittest.main()
