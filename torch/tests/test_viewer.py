"""PyTorch's own tools read what the allocator tells: the snapshot viewer, the profiler, the cycle
finder.
"""

import ctypes
import gc
import json
import os
import pickle
import tempfile
import unittest

import torch
from torch.cuda import _memory_viz as viewer

from allocator_case import MIB, AllocatorCase, build_library, byte_tensor

THIS_FILE = os.path.basename(__file__)


def a_small_program():
    left = torch.rand(128, 128, device="cuda")
    return left * left + left * left


class ViewerCase(AllocatorCase):
    def dumped(self, **options):
        """A snapshot that went through a file, as a user would send it."""
        torch.cuda.memory._record_memory_history(**options)
        kept = [a_small_program(), byte_tensor(50 * MIB), byte_tensor(3 * MIB)]
        a_small_program()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.pickle")
            torch.cuda.memory._dump_snapshot(path)
            with open(path, "rb") as file:
                snapshot = pickle.load(file)
        torch.cuda.memory._record_memory_history(None)
        del kept
        return snapshot

    def test_the_plots(self):
        for context in ("all", None):
            with self.subTest(context=context):
                snapshot = self.dumped(context=context, stacks="python")
                for plot in (
                    viewer.trace_plot(snapshot),
                    viewer.trace_plot(snapshot, plot_segments=True),
                    viewer.segment_plot(snapshot),
                    viewer.trace_plot(snapshot, filter_freed=True),
                ):
                    self.assertIn("<!DOCTYPE html>", plot)
                text = json.dumps(snapshot)
                self.assertEqual("a_small_program" in text, context is not None)
                self.assertIn(str(128 * 128 * 4), text)

    def test_the_map_of_segments(self):
        # The viewer checks that the sizes of the blocks add up.
        text = viewer.segsum(self.dumped(stacks="python"))
        self.assertIn("Summary of segments", text)
        self.assertIn("total_allocated", text)

    def test_the_list_of_events(self):
        text = viewer.trace(self.dumped(stacks="python"))
        self.assertIn("Device 0", text)
        self.assertIn("cudaMalloc", text)
        self.assertIn("free completed for", text)

    def test_the_flame_graphs(self):
        snapshot = self.dumped(stacks="python")
        segments = viewer.segments(snapshot, format_flamegraph=str)
        memory = viewer.memory(snapshot, format_flamegraph=str)
        for text in (segments, memory):
            self.assertIn(f"{THIS_FILE}", text)
            self.assertIn("a_small_program", text)

    def test_two_snapshots_are_compared(self):
        before = torch.cuda.memory_snapshot()
        keep = byte_tensor(64 * MIB)
        text = viewer.compare(before, torch.cuda.memory_snapshot(), format_flamegraph=str)
        self.assertIn("only_after", text)
        del keep


class ProfilerCase(AllocatorCase):
    def profiled(self):
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            profile_memory=True,
            with_stack=True,
            record_shapes=True,
        ) as profile:
            a_small_program()
        return profile

    def test_the_profiler_sees_device_memory(self):
        used = {
            event.key: event.self_device_memory_usage for event in self.profiled().key_averages()
        }
        self.assertEqual(used.get("aten::mul"), 2 * 128 * 128 * 4)
        self.assertEqual(used.get("aten::add"), 128 * 128 * 4)

    def test_each_allocation_is_an_event_of_the_trace(self):
        profile = self.profiled()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profile.export_chrome_trace(path)
            with open(path) as file:
                events = json.load(file)["traceEvents"]
        memory = [e["args"] for e in events if e.get("name") == "[memory]"]
        on_device = [a for a in memory if a["Device Type"] == 1]
        sizes = [a["Bytes"] for a in on_device]
        self.assertGreaterEqual(sizes.count(128 * 128 * 4), 4)
        self.assertGreaterEqual(sizes.count(-128 * 128 * 4), 4)
        for arguments in on_device:
            self.assertGreaterEqual(arguments["Total Reserved"], arguments["Total Allocated"])

    def test_the_viewer_reads_the_profile(self):
        profile = self.profiled()
        self.assertIn("<!DOCTYPE html>", viewer.profile_plot(profile))
        text = json.dumps(viewer._profile_to_snapshot(profile))
        self.assertIn(THIS_FILE, text)
        self.assertIn("a_small_program", text)
        self.assertIn("category", text)


class CycleCase(AllocatorCase):
    def test_a_cycle_that_holds_memory_is_shown_with_its_stack(self):
        from torch.utils.viz._cycles import observe_tensor_cycles

        pages = []
        stop = observe_tensor_cycles(pages.append)
        try:

            def make_a_cycle():
                tensor = torch.empty(3, 4, device="cuda")

                def closure(again):
                    return closure(False) if again else tensor

                return closure

            make_a_cycle()
            gc.collect()
            # The page is made at the next call after the collection.
            (lambda: None)()
            self.assertTrue(pages)
            self.assertIn("torch.Tensor", pages[0])
            self.assertIn(THIS_FILE.removesuffix(".py"), pages[0])
        finally:
            stop()


SNAPSHOT_SOURCE = """
#include <torch/csrc/cuda/memory_snapshot.h>
#include <fstream>
#include <string>
extern "C" void record_history(bool enabled, bool with_stacks) {
  torch::cuda::_record_memory_history(enabled, with_stacks, 10, with_stacks, with_stacks);
}
extern "C" void write_snapshot(const char* path) {
  std::ofstream(path, std::ios::binary) << torch::cuda::_memory_snapshot_pickled();
}
"""


class CppSnapshotCase(AllocatorCase):
    """A C++ program takes its snapshots without Python."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory()
        home = os.path.dirname(torch.__file__)
        lib = os.path.join(home, "lib")
        words = [f"-I{home}/include", f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch_cuda"]
        library = build_library(cls.folder.name, "snapshot", SNAPSHOT_SOURCE, *words)
        cls.library = ctypes.CDLL(library)
        cls.library.record_history.argtypes = [ctypes.c_bool, ctypes.c_bool]
        cls.library.write_snapshot.argtypes = [ctypes.c_char_p]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        super().tearDownClass()

    def test_the_pickle_is_the_same_dictionary(self):
        path = os.path.join(self.folder.name, "snapshot.pickle")
        for with_stacks in (False, True):
            with self.subTest(with_stacks=with_stacks):
                self.library.record_history(True, with_stacks)
                tensor = torch.rand(311, 411, device="cuda")
                self.library.write_snapshot(path.encode())
                self.library.record_history(False, False)
                with open(path, "rb") as file:
                    snapshot = pickle.load(file)
                (block,) = [
                    block
                    for segment in snapshot["segments"]
                    for block in segment["blocks"]
                    if block["address"] == tensor.untyped_storage().data_ptr()
                ]
                self.assertEqual(block["requested_size"], 311 * 411 * 4)
                self.assertEqual("::rand" in str(block["frames"]), with_stacks)
                self.assertEqual(THIS_FILE in str(block["frames"]), with_stacks)
                last = snapshot["device_traces"][0][-1]
                self.assertEqual((last["action"], last["size"]), ("alloc", 311 * 411 * 4))
                del tensor


if __name__ == "__main__":
    unittest.main()
