"""What the statistics say: which keys there are, and how each step of a program moves them."""

import random
import unittest

import torch

from allocator_case import (
    CORE_FAMILIES,
    KIB,
    LARGE_SEGMENT_BYTES,
    METRICS,
    MIB,
    POOLS,
    SMALL_SEGMENT_BYTES,
    TORCH_VERSION,
    AllocatorCase,
    Change,
    alone_on_the_card,
    block_at,
    block_sizes,
    byte_tensor,
    segment_at,
)


class StatisticsCase(AllocatorCase):
    def test_a_kilobyte_is_counted_when_it_comes_and_when_it_goes(self):
        change = Change()
        tensor = torch.empty(256, dtype=torch.float32, device="cuda")
        self.assertEqual(change["active_bytes.all.current"], 1024)
        self.assertEqual(change["active_bytes.small_pool.current"], 1024)
        self.assertEqual(change["allocated_bytes.all.current"], 1024)
        self.assertEqual(change["allocation.all.current"], 1)
        self.assertEqual(change["active_bytes.all.freed"], 0)
        del tensor
        self.assertEqual(change["active_bytes.all.current"], 0)
        self.assertEqual(change["active_bytes.all.freed"], 1024)
        self.assertEqual(change["allocation.all.freed"], 1)

    def test_every_key_is_there(self):
        core = {f"{f}.{p}.{m}" for f in CORE_FAMILIES for p in POOLS for m in METRICS}
        oversize = {
            f"{f}.{m}" for f in ("oversize_allocations", "oversize_segments") for m in METRICS
        }
        plain = {
            "num_alloc_retries",
            "num_ooms",
            "max_split_size",
            "num_sync_all_streams",
            "num_device_alloc",
            "num_device_free",
        }
        self.assertEqual((len(core), len(oversize)), (108, 8))
        keys = set(torch.cuda.memory_stats())
        self.assertEqual(core | oversize | plain, keys & (core | oversize | plain))
        if TORCH_VERSION == (2, 11):
            self.assertEqual(keys - (core | oversize | plain), set())

    def test_the_flat_form_is_the_nested_one_spelt_out(self):
        keep = byte_tensor(3 * MIB)
        nested = torch.cuda.memory_stats_as_nested_dict()
        flat = torch.cuda.memory_stats()
        self.assertEqual(nested["active_bytes"]["all"]["current"], flat["active_bytes.all.current"])
        self.assertEqual(nested["num_ooms"], flat["num_ooms"])
        self.assertEqual(list(flat), sorted(flat))
        self.assertEqual(torch.cuda.memory_allocated(), flat["allocated_bytes.all.current"])
        self.assertEqual(torch.cuda.max_memory_allocated(), flat["allocated_bytes.all.peak"])
        self.assertEqual(torch.cuda.memory_reserved(), flat["reserved_bytes.all.current"])
        self.assertEqual(torch.cuda.max_memory_reserved(), flat["reserved_bytes.all.peak"])
        del keep

    def test_the_accelerator_functions_say_the_same(self):
        keep = byte_tensor(5 * MIB)
        ours, general = torch.cuda.memory_stats(), torch.accelerator.memory_stats()
        for family in CORE_FAMILIES:
            key = f"{family}.all.current"
            self.assertEqual(general[key], ours[key], key)
        self.assertEqual(torch.accelerator.memory_allocated(), torch.cuda.memory_allocated())
        self.assertEqual(torch.accelerator.memory_reserved(), torch.cuda.memory_reserved())
        self.assertEqual(
            torch.accelerator.max_memory_allocated(), torch.cuda.max_memory_allocated()
        )
        self.assertEqual(torch.accelerator.max_memory_reserved(), torch.cuda.max_memory_reserved())
        del keep
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
        torch.accelerator.reset_accumulated_memory_stats()
        self.assertEqual(
            torch.accelerator.max_memory_allocated(), torch.accelerator.memory_allocated()
        )
        self.assertEqual(torch.accelerator.memory_stats()["active_bytes.all.allocated"], 0)
        free_bytes, total_bytes = torch.accelerator.get_memory_info()
        self.assertLessEqual(free_bytes, total_bytes)

    def test_raw_memory_comes_and_goes(self):
        before = torch.cuda.memory_allocated()
        pointer = torch.cuda.caching_allocator_alloc(1)
        self.assertEqual(torch.cuda.memory_allocated(), before + 512)
        self.assertEqual(pointer % 512, 0)
        torch.cuda.caching_allocator_delete(pointer)
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_nothing_is_nothing(self):
        change = Change()
        empty = torch.empty(0, device="cuda")
        self.assertEqual(empty.data_ptr(), 0)
        self.assertEqual(change["allocation.all.allocated"], 0)

    def test_emptying_the_cache_synchronises_once(self):
        keep = byte_tensor(MIB)
        change = Change()
        torch.cuda.empty_cache()
        self.assertEqual(change["num_sync_all_streams"], 1)
        self.assertEqual(change["allocation.all.current"], 0)
        del keep

    def test_a_peak_stays_until_it_is_reset(self):
        low = torch.cuda.memory_allocated()
        tensor = byte_tensor(64 * MIB)
        high = torch.cuda.memory_allocated()
        del tensor
        self.assertEqual(torch.cuda.max_memory_allocated(), high)
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), low)
        stats = torch.cuda.memory_stats()
        for family in CORE_FAMILIES:
            for pool in POOLS:
                key = f"{family}.{pool}"
                self.assertEqual(stats[key + ".peak"], stats[key + ".current"], key)

    def test_accumulated_figures_start_again_at_zero(self):
        del_me = byte_tensor(4 * MIB)
        del del_me
        torch.cuda.empty_cache()
        torch.cuda.reset_accumulated_memory_stats()
        stats = torch.cuda.memory_stats()
        for key, value in stats.items():
            if key.endswith((".allocated", ".freed")) or key.startswith("num_"):
                self.assertEqual(value, 0, key)

    def test_a_free_block_is_taken_again(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            first = byte_tensor(6 * MIB)
            address = first.data_ptr()
            del first
            change = Change()
            second = byte_tensor(6 * MIB)
            self.assertEqual(second.data_ptr(), address)
            self.assertEqual(change["num_device_alloc"], 0)

    def test_neighbours_grow_together_again(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            left, middle, right = (byte_tensor(512) for _ in range(3))
            address = left.data_ptr()
            self.assertEqual(block_sizes(segment_at(address))[:3], [512, 512, 512])
            del middle
            self.assertEqual(block_at(address + 512)["state"], "inactive")
            del left, right
            segment = segment_at(address)
            self.assertEqual(block_sizes(segment), [SMALL_SEGMENT_BYTES])
            self.assertEqual(segment["blocks"][0]["state"], "inactive")

    def test_streams_do_not_share_free_memory(self):
        one, other = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(one):
            tensor = byte_tensor(30 * MIB)
            address = tensor.data_ptr()
            del tensor
        with torch.cuda.stream(other):
            tensor = byte_tensor(30 * MIB)
        self.assertNotEqual(tensor.data_ptr(), address)
        self.assertNotEqual(segment_at(address)["stream"], segment_at(tensor.data_ptr())["stream"])

    def test_the_summary_is_readable(self):
        keep = byte_tensor(7 * MIB)
        for abbreviated in (False, True):
            text = torch.cuda.memory_summary(abbreviated=abbreviated)
            self.assertIn("PyTorch CUDA memory summary", text)
            for metric in ("Allocated memory", "Active memory", "GPU reserved memory", "CUDA OOMs"):
                self.assertIn(metric, text)
        self.assertIn("from large pool", torch.cuda.memory_summary())
        del keep

    @alone_on_the_card
    def test_the_device_sees_what_is_taken_and_given_back(self):
        free_before, total_bytes = torch.cuda.mem_get_info()
        self.assertEqual(total_bytes, torch.cuda.get_device_properties(0).total_memory)
        tensor = byte_tensor(512 * MIB)
        free_with, _ = torch.cuda.mem_get_info()
        self.assertGreaterEqual(free_before - free_with, 512 * MIB)
        del tensor
        self.assertLess(
            torch.cuda.mem_get_info()[0], free_before - 256 * MIB, "it is kept for reuse"
        )
        torch.cuda.empty_cache()
        self.assertAlmostEqual(torch.cuda.mem_get_info()[0], free_before, delta=64 * MIB)

    def test_a_broadcast_product_needs_no_more_than_a_plain_one(self):
        def peak_of(function):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            function()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated()

        left = torch.rand(1, 32, 32, device="cuda")
        right = torch.rand(24, 32, 1, device="cuda")
        torch.matmul(left, right)
        wide = left.expand(24, 32, 32)
        torch.bmm(wide, right)
        plain = peak_of(lambda: torch.matmul(left, right))
        self.assertEqual(peak_of(lambda: torch.matmul(wide, right)), plain)
        self.assertEqual(peak_of(lambda: torch.bmm(wide, right)), plain)

    def test_a_leak_shows(self):
        held = []
        before = torch.cuda.memory_allocated()
        for count in range(1, 6):
            held.append(byte_tensor(MIB))
            torch.cuda.empty_cache()
            self.assertEqual(torch.cuda.memory_allocated() - before, count * MIB)

    def test_the_snapshot_agrees_after_every_step_of_a_random_run(self):
        seed = 20_111
        rng = random.Random(seed)
        streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(3)]
        held = []
        for step in range(400):
            where = f"at step {step} with seed {seed}"
            choice = rng.random()
            if choice < 0.55 or not held:
                size = rng.choice((1, 513, 300 * KIB, MIB, MIB + 1, 5 * MIB, 11 * MIB, 33 * MIB))
                with torch.cuda.stream(rng.choice(streams)):
                    held.append(byte_tensor(size + rng.randrange(4096)))
            elif choice < 0.65:
                rng.choice(held).record_stream(rng.choice(streams))
            elif choice < 0.96:
                held.pop(rng.randrange(len(held)))
            else:
                torch.cuda.empty_cache()
            self.assert_snapshot_agrees(where)
        del held
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assert_snapshot_agrees("at the end")


class SegmentSizeCase(AllocatorCase):
    """Which sizes the driver is asked for, and how a segment is cut."""

    # request, segment, blocks
    ROWS = (
        (1, SMALL_SEGMENT_BYTES, [512, SMALL_SEGMENT_BYTES - 512]),
        (MIB, SMALL_SEGMENT_BYTES, [MIB, MIB]),
        (MIB + 1, LARGE_SEGMENT_BYTES, [MIB + 512, 19 * MIB - 512]),
        (10 * MIB - 512, LARGE_SEGMENT_BYTES, [10 * MIB - 512, 10 * MIB + 512]),
        (10 * MIB, 10 * MIB, [10 * MIB]),
        (10 * MIB + 512, 12 * MIB, [10 * MIB + 512, 2 * MIB - 512]),
        (11 * MIB + 512 * KIB, 12 * MIB, [12 * MIB]),
        (32 * MIB, 32 * MIB, [32 * MIB]),
    )

    def test_each_request_gets_the_segment_of_its_size(self):
        for request, segment_bytes, blocks in self.ROWS:
            with self.subTest(request=request), torch.cuda.stream(torch.cuda.Stream()):
                change = Change()
                pointer = torch.cuda.caching_allocator_alloc(request)
                segment = segment_at(pointer)
                self.assertEqual(segment["address"], pointer)
                self.assertEqual(segment["total_size"], segment_bytes)
                self.assertEqual(block_sizes(segment), blocks)
                self.assertEqual(change["segment.all.current"], 1)
                self.assertEqual(change["reserved_bytes.all.current"], segment_bytes)
                self.assertEqual(change["allocated_bytes.all.current"], blocks[0])
                self.assertEqual(change["requested_bytes.all.current"], request)
                self.assertEqual(change["inactive_split.all.current"], len(blocks) - 1)
                torch.cuda.caching_allocator_delete(pointer)
                torch.cuda.empty_cache()
                self.assertEqual(change["reserved_bytes.all.current"], 0)

    def test_a_third_megabyte_needs_a_second_segment(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            change = Change()
            held = [byte_tensor(MIB)]
            self.assertEqual(change["segment.small_pool.current"], 1)
            held.append(byte_tensor(MIB))
            self.assertEqual(change["segment.small_pool.current"], 1)
            held.append(byte_tensor(MIB))
            self.assertEqual(change["segment.small_pool.current"], 2)


class ExpandableSegmentSizeCase(AllocatorCase):
    """With expandable segments, memory is mapped by the page and no segment is counted."""

    settings = ("expandable_segments:True",)

    def test_pages_of_twenty_megabytes_are_mapped(self):
        for request, blocks in ((2 * MIB, [2 * MIB, 18 * MIB]), (32 * MIB, [32 * MIB, 8 * MIB])):
            with self.subTest(request=request), torch.cuda.stream(torch.cuda.Stream()):
                change = Change()
                tensor = byte_tensor(request)
                segment = segment_at(tensor.data_ptr())
                self.assertTrue(segment["is_expandable"])
                self.assertEqual(block_sizes(segment), blocks)
                self.assertEqual(change["segment.all.current"], 0)
                self.assertEqual(change["inactive_split.all.current"], 0)
                self.assertEqual(change["reserved_bytes.all.current"], sum(blocks))
                del tensor
                torch.cuda.empty_cache()
                self.assertEqual(change["reserved_bytes.all.current"], 0)

    def test_a_segment_grows_instead_of_a_second_one(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            first, second = byte_tensor(20 * MIB), byte_tensor(60 * MIB)
            self.assertEqual(second.data_ptr(), first.data_ptr() + 20 * MIB)
            segment = segment_at(first.data_ptr())
            self.assertEqual(block_sizes(segment), [20 * MIB, 60 * MIB])
            del first
            # The hole at the front is unmapped, and the rest stays where it is.
            torch.cuda.empty_cache()
            segment = segment_at(second.data_ptr())
            self.assertEqual(segment["address"], second.data_ptr())
            self.assertEqual(segment["total_size"], 60 * MIB)
            refill = byte_tensor(20 * MIB)
            self.assertEqual(refill.data_ptr(), second.data_ptr() - 20 * MIB)


if __name__ == "__main__":
    unittest.main()
