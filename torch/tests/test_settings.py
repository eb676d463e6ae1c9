"""Settings that are changed while the program runs."""

import contextlib
import unittest
import warnings

import torch

from allocator_case import (
    MIB,
    TORCH_VERSION,
    AllocatorCase,
    Change,
    block_sizes,
    byte_tensor,
    configure,
    run_in_threads,
    segment_at,
)


# A value of each key, the one that it has by default, and the first PyTorch that knows it.
KEYS = {
    "backend": ("native", "native", (2, 11)),
    "large_segment_size_mb": ("32", "20", (2, 11)),
    "max_split_size_mb": ("64", "17592186044415", (2, 11)),
    "max_non_split_rounding_mb": ("64", "20", (2, 11)),
    "garbage_collection_threshold": ("0.5", "0.99999", (2, 11)),
    "roundup_power2_divisions": ("[256:1,512:2,>:4]", "[>:0]", (2, 11)),
    "expandable_segments": ("True", "False", (2, 11)),
    "release_lock_on_cudamalloc": ("True", "False", (2, 11)),
    "release_lock_on_hipmalloc": ("True", "False", (2, 11)),
    "graph_capture_record_stream_reuse": ("True", "False", (2, 11)),
    "per_process_memory_fraction": ("0.5", "1.0", (2, 11)),
    "pinned_use_cuda_host_register": ("True", "False", (2, 11)),
    "pinned_use_hip_host_register": ("True", "False", (2, 11)),
    "pinned_num_register_threads": ("8", "1", (2, 11)),
    "pinned_use_background_threads": ("False", "False", (2, 11)),
    "throw_on_cudamalloc_oom": ("True", "False", (2, 12)),
    "pinned_free_catch_all": ("True", "False", (2, 12)),
    "pinned_max_round_threshold_mb": ("64", "17592186044415", (2, 13)),
    "pinned_max_cached_size_mb": ("64", "17592186044415", (2, 13)),
    "expandable_segments_reserve": ("40G", "1.125", (2, 15)),
    "expandable_segments_reserve_by_class": ("[serve:40G]", "[]", (2, 15)),
}


class SettingsCase(AllocatorCase):
    @contextlib.contextmanager
    def allocation(self, size_bytes):
        """Allocates on a stream of its own and yields the change, and the pointer."""
        with torch.cuda.stream(torch.cuda.Stream()):
            change = Change()
            pointer = torch.cuda.caching_allocator_alloc(size_bytes)
            try:
                yield change, pointer
            finally:
                torch.cuda.caching_allocator_delete(pointer)

    def assert_rounds(self, size_bytes, rounded_bytes):
        with self.allocation(size_bytes) as (change, _):
            self.assertEqual(change["active_bytes.all.allocated"], rounded_bytes)
            self.assertEqual(change["requested_bytes.all.allocated"], size_bytes)


class RoundingCase(SettingsCase):
    def test_one_number_of_divisions_for_all_sizes(self):
        self.assert_rounds(84 * MIB, 84 * MIB)
        configure("roundup_power2_divisions:4")
        self.assert_rounds(84 * MIB, 96 * MIB)
        self.assert_rounds(64 * MIB, 64 * MIB)
        self.assert_rounds(9000, 10240)
        # Too small to be divided: the ordinary step of 512 bytes holds.
        self.assert_rounds(1200, 1536)

    def test_a_number_for_each_range_of_sizes(self):
        configure(
            "garbage_collection_threshold:0.5",
            "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]",
        )
        self.assert_rounds(84 * MIB, 88 * MIB)
        self.assert_rounds(150 * MIB, 192 * MIB)
        self.assert_rounds(400 * MIB, 512 * MIB)
        # The first key counts for all that is smaller, too.
        self.assert_rounds(5 * MIB + 512, 5 * MIB + MIB // 2)
        # One division is as good as none.
        self.assert_rounds(1026 * MIB, 1026 * MIB)

    def test_the_next_change_forgets_the_divisions(self):
        configure("roundup_power2_divisions:4")
        self.assert_rounds(84 * MIB, 96 * MIB)
        configure("garbage_collection_threshold:0.5,max_split_size_mb:40")
        self.assert_rounds(84 * MIB, 84 * MIB)
        torch._C._accelerator_setAllocatorSettings("")
        self.assert_rounds(84 * MIB, 84 * MIB)

    def test_the_older_name_of_the_call(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")
        self.assert_rounds(84 * MIB, 96 * MIB)


class ParsingCase(SettingsCase):
    def test_bad_settings_are_refused_and_do_no_harm(self):
        for text in (
            "foo:1,bar:2",
            "garbage_collection_threshold:1.2",
            "garbage_collection_threshold:0",
            "max_split_size_mb:2",
            "max_split_size_mb:many",
            "release_lock_on_cudamalloc:none",
            "expandable_segments:maybe",
            "pinned_use_cuda_host_register:none",
            "pinned_num_register_threads:none",
            "pinned_num_register_threads:1024",
        ):
            with self.subTest(text=text):
                with self.assertRaises(ValueError):
                    torch._C._accelerator_setAllocatorSettings(text)
                configure()
                self.assert_rounds(84 * MIB, 84 * MIB)

    def test_white_space_does_not_matter(self):
        torch._C._accelerator_setAllocatorSettings(" roundup_power2_divisions : 4 , ")
        self.assert_rounds(84 * MIB, 96 * MIB)

    def test_sizes_as_large_as_can_be_are_taken(self):
        largest = 2**64 - MIB
        for key in ("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb"):
            for megabytes in (17592186044415, 17592186044416, 2**64 - 1, 2**40):
                with self.subTest(key=key, megabytes=megabytes):
                    torch._C._accelerator_setAllocatorSettings(f"{key}:{megabytes}")
                    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:17592186044415")
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        self.assertEqual(settings["max_split_size"] % 2**64, largest)
        torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:9223372036854775808")
        with self.allocation(84 * MIB):
            pass

    def test_a_limit_that_is_set_and_restored_leaves_no_trace(self):
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:20")
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:17592186044415")
        with torch.cuda.stream(torch.cuda.Stream()):
            large = byte_tensor(60 * MIB)
            address = large.data_ptr()
            del large
            small = byte_tensor(30 * MIB)
            self.assertEqual(small.data_ptr(), address, "a large block is split again")
            self.assertEqual(block_sizes(segment_at(address)), [30 * MIB, 30 * MIB])
            del small

    def test_every_key_can_be_set_saved_and_restored(self):
        set_settings = torch._C._accelerator_setAllocatorSettings
        for key, (value, default, since) in KEYS.items():
            with self.subTest(key=key):
                if TORCH_VERSION < since:
                    with self.assertRaises(ValueError):
                        set_settings(f"{key}:{value}")
                    continue
                set_settings(f"{key}:{default}")
                saved = torch._C._accelerator_getAllocatorSettings()
                before = torch.cuda.memory._snapshot()["allocator_settings"]
                set_settings(f"{key}:{value}")
                changed = torch.cuda.memory._snapshot()["allocator_settings"]
                self.assertEqual(changed["PYTORCH_CUDA_ALLOC_CONF"], f"{key}:{value}")
                with self.allocation(3 * MIB):
                    pass
                set_settings(saved)
                self.assertEqual(torch.cuda.memory._snapshot()["allocator_settings"], before)
                with self.allocation(3 * MIB):
                    pass

    def test_what_is_odd_is_read_as_pytorch_reads_it(self):
        set_settings = torch._C._accelerator_setAllocatorSettings
        for text, split_bytes in (
            ("max_split_size_mb:40,max_split_size_mb:0x64,", None),
            ("max_split_size_mb:40,max_split_size_mb:30", 30 * MIB),
            ("max_split_size_mb,+40MB", 40 * MIB),
            ("max_split_size_mb:-1", 2**64 - MIB),
            ("max_split_size_mb:18446744073709551615", 2**64 - MIB),
            ("max_split_size_mb:18446744073709551616", None),
            ("max_split_size_mb:40,,", None),
            ("\tmax_split\n_size_mb : 4 0", 40 * MIB),
        ):
            with self.subTest(text=text):
                if split_bytes is None:
                    with self.assertRaises((ValueError, RuntimeError, IndexError)):
                        set_settings(text)
                    continue
                set_settings(text)
                settings = torch.cuda.memory._snapshot()["allocator_settings"]
                self.assertEqual(settings["max_split_size"] % 2**64, split_bytes)
                with self.allocation(3 * MIB):
                    pass

    def test_the_snapshot_tells_the_settings(self):
        names = {
            "PYTORCH_CUDA_ALLOC_CONF",
            "max_split_size",
            "garbage_collection_threshold",
            "expandable_segments",
            "pinned_num_register_threads",
            "release_lock_on_cudamalloc",
            "pinned_use_cuda_host_register",
            "roundup_power2_divisions",
        }
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        self.assertLessEqual(names, set(settings))
        self.assertEqual(settings["max_split_size"], -1)
        self.assertFalse(settings["expandable_segments"])
        text = (
            "max_split_size_mb:40,garbage_collection_threshold:0.5,expandable_segments:True,"
            "roundup_power2_divisions:[64:8,128:2]"
        )
        torch._C._accelerator_setAllocatorSettings(text)
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        self.assertEqual(settings["PYTORCH_CUDA_ALLOC_CONF"], text)
        self.assertEqual(settings["max_split_size"], 40 * MIB)
        self.assertEqual(settings["garbage_collection_threshold"], 0.5)
        self.assertTrue(settings["expandable_segments"])
        divisions = settings["roundup_power2_divisions"]
        self.assertEqual(len(divisions), 16)
        self.assertEqual((divisions["1"], divisions["64"], divisions["128"]), (8, 8, 2))

    def test_the_statistic_shows_what_was_set_at_the_start(self):
        before = torch.cuda.memory_stats()["max_split_size"]
        configure("max_split_size_mb:40")
        self.assertEqual(torch.cuda.memory_stats()["max_split_size"], before)


class SegmentSettingsCase(SettingsCase):
    def test_the_size_of_large_segments(self):
        for megabytes in (32, 20):
            configure(f"large_segment_size_mb:{megabytes}")
            with self.allocation(3 * MIB) as (_, pointer):
                self.assertEqual(block_sizes(segment_at(pointer)), [3 * MIB, (megabytes - 3) * MIB])

    def test_expandable_segments_come_and_go(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            configure("expandable_segments:True")
            change = Change()
            first = byte_tensor(2 * MIB)
            self.assertTrue(segment_at(first.data_ptr())["is_expandable"])
            self.assertEqual(block_sizes(segment_at(first.data_ptr())), [2 * MIB, 18 * MIB])
            configure()
            second = byte_tensor(10 * MIB)
            self.assertFalse(
                segment_at(second.data_ptr())["is_expandable"], "the old one is left alone"
            )
            self.assertEqual(change["segment.large_pool.current"], 1)
            configure("expandable_segments:True")
            third = byte_tensor(18 * MIB)
            self.assertEqual(third.data_ptr(), first.data_ptr() + 2 * MIB, "and is used again")
            del first, second, third

    def test_a_block_too_large_to_split_is_left_whole(self):
        configure("max_split_size_mb:40")
        with torch.cuda.stream(torch.cuda.Stream()):
            change = Change()
            large = byte_tensor(60 * MIB)
            self.assertEqual(change["oversize_allocations.current"], 1)
            self.assertEqual(change["oversize_segments.current"], 1)
            address = large.data_ptr()
            del large
            small = byte_tensor(30 * MIB)
            self.assertNotEqual(segment_at(small.data_ptr())["address"], address)
            self.assertEqual(change["reserved_bytes.all.current"], 90 * MIB)
            # A large request takes it if it wastes less than the rounding allows.
            near = byte_tensor(45 * MIB)
            self.assertEqual(near.data_ptr(), address)
            self.assertEqual(block_sizes(segment_at(address)), [60 * MIB])
            self.assertEqual(change["oversize_allocations.current"], 1)
            del near
            far = byte_tensor(40 * MIB)
            self.assertNotEqual(far.data_ptr(), address)
            del small, far

    def test_oversize_blocks_are_released_before_the_rest(self):
        configure("max_split_size_mb:40")
        with self.limit(120 * MIB), torch.cuda.stream(torch.cuda.Stream()):
            change = Change()
            oversize, ordinary = byte_tensor(60 * MIB), byte_tensor(30 * MIB)
            kept = ordinary.data_ptr()
            del oversize, ordinary
            # The large block is too wasteful for this request, and there is no room beside it. To
            # give it back is enough; nothing has to be waited for.
            wanted = byte_tensor(40 * MIB)
            self.assertEqual(change["num_device_free"], 1)
            self.assertEqual(change["num_alloc_retries"], 0)
            self.assertEqual(segment_at(kept)["total_size"], 30 * MIB)
            del wanted

    def test_a_largest_split_beside_expandable_segments(self):
        with self.limit(120 * MIB):
            configure("max_split_size_mb:40")
            one = byte_tensor(40 * MIB)
            configure("expandable_segments:True,max_split_size_mb:40")
            two = byte_tensor(40 * MIB)
            configure("max_split_size_mb:40")
            three = byte_tensor(40 * MIB)
            with self.assertRaises(torch.OutOfMemoryError):
                byte_tensor(40 * MIB)
            del one, two, three
            # All is released, with an expandable block among what is free.
            whole = byte_tensor(120 * MIB)
            self.assertEqual(whole.numel(), 120 * MIB)


class GarbageCollectionCase(SettingsCase):
    def test_old_blocks_go_when_the_threshold_is_passed(self):
        configure("garbage_collection_threshold:0.5")
        with self.limit(120 * MIB), torch.cuda.stream(torch.cuda.Stream()):
            change = Change()
            one, two = byte_tensor(40 * MIB), byte_tensor(40 * MIB)
            del one, two
            three = byte_tensor(50 * MIB)
            self.assertEqual(change["num_device_free"], 2)
            self.assertEqual(change["reserved_bytes.all.current"], 50 * MIB)
            self.assertEqual(change["num_alloc_retries"], 0)
            self.assertEqual(change["num_sync_all_streams"], 0)
            del three

    def test_without_a_cap_it_does_nothing(self):
        configure("garbage_collection_threshold:0.5")
        with torch.cuda.stream(torch.cuda.Stream()):
            change = Change()
            one, two = byte_tensor(40 * MIB), byte_tensor(40 * MIB)
            del one, two
            three = byte_tensor(50 * MIB)
            self.assertEqual(change["num_device_free"], 0)
            self.assertEqual(change["reserved_bytes.all.current"], 130 * MIB)
            del three

    def test_beside_expandable_segments(self):
        with self.limit(120 * MIB):
            configure("garbage_collection_threshold:0.5")
            one = byte_tensor(40 * MIB)
            configure("expandable_segments:True,garbage_collection_threshold:0.5")
            two = byte_tensor(40 * MIB)
            del one, two
            three = byte_tensor(80 * MIB)
            three[-1] = 3
            self.assertEqual(three[-1].item(), 3)


class SwitchCase(SettingsCase):
    def test_with_caching_off_raw_memory_is_not_counted(self):
        stream = torch.cuda.current_stream().cuda_stream

        def counted(size_bytes):
            change = Change()
            pointer = torch._C._cuda_cudaCachingAllocator_raw_alloc(size_bytes, stream)
            self.assertNotEqual(pointer, 0)
            moved = change["requested_bytes.all.allocated"]
            torch._C._cuda_cudaCachingAllocator_raw_delete(pointer)
            return moved

        try:
            torch.cuda.caching_allocator_enable(False)
            self.assertEqual(counted(MIB), 0)
        finally:
            torch.cuda.caching_allocator_enable(True)
        self.assertEqual(counted(MIB), MIB)

    def test_with_caching_off_tensors_work(self):
        change = Change()
        try:
            torch.cuda.caching_allocator_enable(False)
            tensor = torch.full((1000,), 4.0, device="cuda")
            self.assertEqual(tensor.cpu().sum().item(), 4000.0)
            self.assertEqual(change["allocation.all.current"], 0)
            del tensor
        finally:
            torch.cuda.caching_allocator_enable(True)

    def test_the_lock_may_be_let_go_while_the_driver_works(self):
        configure("release_lock_on_cudamalloc:True")
        with self.allocation(84 * MIB) as (change, _):
            self.assertEqual(change["active_bytes.all.allocated"], 84 * MIB)
        before = torch.cuda.memory_allocated()

        def worker():
            with torch.cuda.stream(torch.cuda.Stream()):
                for round_number in range(10):
                    held = [byte_tensor(size * MIB) for size in (1, 3, 12, 30)]
                    held.clear()
                    if round_number % 3 == 0:
                        torch.cuda.empty_cache()

        run_in_threads(*[worker] * 4)
        self.assertEqual(torch.cuda.memory_allocated(), before)
        self.assert_snapshot_agrees("after four threads with the lock let go")


if __name__ == "__main__":
    unittest.main()
