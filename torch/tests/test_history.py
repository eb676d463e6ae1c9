"""The history: which events are kept, with which stacks, and for how long."""

import contextlib
import json
import os
import platform
import unittest

import torch

from allocator_case import MIB, AllocatorCase, block_at, byte_tensor

THIS_FILE = os.path.basename(__file__)
CPP_STACKS = unittest.skipUnless(
    platform.machine() == "x86_64" and platform.system() == "Linux", "C++ stacks need x86-64 Linux"
)


@contextlib.contextmanager
def history(*arguments, **options):
    torch.cuda.memory._record_memory_history(*arguments, **options)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(None)


def trace():
    return torch.cuda.memory._snapshot()["device_traces"][0]


def actions():
    return [entry["action"] for entry in trace()]


def names(frames):
    return {frame["name"] for frame in frames}


def make_a_tensor(size_bytes=30 * MIB):
    return byte_tensor(size_bytes)


def drop_the_tensor(holder):
    holder.clear()


def release_the_cache():
    torch.cuda.empty_cache()


def scripted_tensor():
    return torch.rand(311, 411, device="cuda")


class EventCase(AllocatorCase):
    def test_a_tensor_leaves_five_events(self):
        with history(stacks="python"):
            tensor = byte_tensor(30 * MIB - 100)
            address = tensor.data_ptr()
            del tensor
            torch.cuda.empty_cache()
            entries = trace()
        self.assertEqual(
            [(e["action"], e["size"]) for e in entries],
            [
                ("segment_alloc", 30 * MIB),
                ("alloc", 30 * MIB - 100),
                ("free_requested", 30 * MIB - 100),
                ("free_completed", 30 * MIB - 100),
                ("segment_free", 30 * MIB),
            ],
        )
        self.assertEqual({e["addr"] for e in entries}, {address})
        self.assertEqual({e["stream"] for e in entries}, {0})
        times = [e["time_us"] for e in entries]
        self.assertEqual(times, sorted(times))
        for entry in entries:
            self.assertIn("frames", entry)
            self.assertEqual(entry["compile_context"], "N/A")

    def test_expandable_segments_are_mapped_and_unmapped(self):
        self.configure("expandable_segments:True")
        with torch.cuda.stream(torch.cuda.Stream()), history(stacks="python"):
            tensor = byte_tensor(30 * MIB)
            del tensor
            torch.cuda.empty_cache()
            entries = trace()
        mapped = [(e["action"], e["size"]) for e in entries if e["action"].startswith("segment")]
        self.assertEqual(mapped, [("segment_map", 40 * MIB), ("segment_unmap", 40 * MIB)])

    def test_an_out_of_memory_is_an_event(self):
        with history(stacks="python"):
            with self.assertRaises(torch.OutOfMemoryError):
                torch.empty(2**40, device="cuda")
            (entry,) = [e for e in trace() if e["action"] == "oom"]
        self.assertEqual(entry["size"], 2**42)
        self.assertGreater(entry["device_free"], 0)
        self.assertNotIn("addr", entry)

    def test_a_snapshot_shows_in_the_next_one(self):
        with history(stacks="python"):
            self.assertNotIn("snapshot", actions())
            self.assertEqual(actions().count("snapshot"), 1)

    def test_waiting_comes_between_request_and_completion(self):
        side = torch.cuda.Stream()
        with history(stacks="python"):
            tensor = byte_tensor(30 * MIB)
            address = tensor.data_ptr()
            tensor.record_stream(side)
            del tensor
            marker = byte_tensor(512)
            torch.cuda.empty_cache()
            of_tensor = [e["action"] for e in trace() if e.get("addr") == address]
        self.assertEqual(of_tensor[1:4], ["alloc", "free_requested", "free_completed"])
        del marker

    def test_actions_can_be_left_out(self):
        for skipped in (
            ["free_requested"],
            ["free_requested", "free_completed"],
            ["alloc"],
            ["segment_alloc", "segment_free"],
            [],
            None,
        ):
            with self.subTest(skipped=skipped):
                torch.cuda.empty_cache()
                with history(context="all", stacks="python", skip_actions=skipped):
                    tensor = byte_tensor(30 * MIB)
                    del tensor
                    seen = set(actions())
                everything = {"segment_alloc", "alloc", "free_requested", "free_completed"}
                self.assertEqual(seen, everything - set(skipped or ()))

    def test_an_unknown_action_cannot_be_left_out(self):
        with self.assertRaises((RuntimeError, ValueError)):
            torch.cuda.memory._record_memory_history(stacks="python", skip_actions=["sleep"])

    def test_only_the_latest_entries_are_kept(self):
        with history(max_entries=10, stacks="python"):
            for size in range(1, 41):
                byte_tensor(size * 512)
            entries = trace()
        self.assertEqual(len(entries), 10)
        times = [e["time_us"] for e in entries]
        self.assertEqual(times, sorted(times))
        self.assertEqual((entries[-1]["action"], entries[-1]["size"]), ("free_completed", 40 * 512))

    def test_the_history_can_be_cleared(self):
        with history(stacks="python"):
            byte_tensor(4096)
            self.assertGreater(len(trace()), 0)
            torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
            self.assertEqual(trace(), [])
            byte_tensor(4096)
            torch.cuda.memory._record_memory_history(stacks="python")
            self.assertIn("alloc", actions(), "without being told, nothing is cleared")
        self.assertEqual(trace(), [], "switched off, it forgets")

    def test_whether_it_is_on_can_be_asked(self):
        self.assertFalse(torch._C._cuda_isHistoryEnabled())
        with history(stacks="python"):
            self.assertTrue(torch._C._cuda_isHistoryEnabled())
        self.assertFalse(torch._C._cuda_isHistoryEnabled())

    def test_the_older_form_of_the_call(self):
        try:
            torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=50)
            tensor = make_a_tensor()
            self.assertIn("make_a_tensor", names(block_at(tensor.data_ptr())["frames"]))
            self.assertIn("alloc", actions())
        finally:
            torch.cuda.memory._record_memory_history(False)

    def test_metadata_of_the_program_goes_with_each_event(self):
        torch.cuda.memory._set_memory_metadata("layer 3")
        self.assertEqual(torch.cuda.memory._get_memory_metadata(), "layer 3")
        with history(stacks="python"):
            tensor = byte_tensor(30 * MIB)
            del tensor
            torch.cuda.empty_cache()
            torch.cuda.memory._set_memory_metadata("")
            marker = byte_tensor(512)
            entries = trace()
        marked = [e["user_metadata"] for e in entries if e["size"] >= 30 * MIB]
        self.assertEqual(marked, ["layer 3"] * 5)
        self.assertEqual(entries[-1]["user_metadata"], "")
        del marker

    def test_user_scopes_become_annotations(self):
        with history(stacks="python", global_record_annotations=True):
            with torch.profiler.record_function("the forward pass of a test"):
                byte_tensor(4096)
            annotations = torch.cuda.memory._snapshot()["external_annotations"]
        mine = [a for a in annotations if a["name"] == "the forward pass of a test"]
        stages = [a["stage"] for a in mine]
        self.assertEqual((stages[0], stages[-1], set(stages)), ("START", "END", {"START", "END"}))
        self.assertLessEqual(mine[0]["time_us"], mine[-1]["time_us"])
        self.assertEqual({a["device"] for a in mine}, {0})

    def test_a_compiled_region_names_its_allocations(self):
        # A compiled region is known by the name of its record. A function of autograd leaves a
        # record with the name of its class, so one can be had without compiling anything.
        region = "Torch-Compiled Region: 7/0"

        def forward(context, tensor):
            return tensor.new_empty(4096)

        function = type(region, (torch.autograd.Function,), {"forward": staticmethod(forward)})
        source = byte_tensor(512)
        with history(stacks="python", compile_context=True):
            inside = function.apply(source)
            outside = byte_tensor(8192)
            contexts = {e["size"]: e["compile_context"] for e in trace() if e["action"] == "alloc"}
        self.assertEqual(contexts, {4096: region, 8192: "N/A"})
        del inside, outside


class StackCase(AllocatorCase):
    def setUp(self):
        super().setUp()
        # A segment of the small pool that is there already, so that no test makes it.
        self.anchor = byte_tensor(512)

    def tearDown(self):
        del self.anchor
        super().tearDown()

    def test_the_state_alone(self):
        with history("state", stacks="python"):
            # The tensor lies behind others in its segment, and they go in no order.
            others = [byte_tensor(512) for _ in range(200)]
            tensor = make_a_tensor(3000)
            for index in range(0, len(others), 3):
                others[index] = None
            snapshot = torch.cuda.memory._snapshot()
            self.assertLessEqual(len(snapshot["device_traces"][0]), 1)
            frames = block_at(tensor.data_ptr())["frames"]
            self.assertTrue(frames[0]["filename"].endswith("allocator_case.py"), frames[0])
            self.assertLessEqual({"filename", "line", "name"}, set(frames[0]))
            self.assertIn("make_a_tensor", names(frames))
            del tensor, others
            torch.cuda.empty_cache()

    def test_levels_of_context(self):
        for context in ("state", "alloc", "all"):
            with self.subTest(context=context):
                with history(context=context, stacks="python"):
                    holder = [make_a_tensor(4096)]
                    alive = json.dumps(torch.cuda.memory._snapshot())
                    drop_the_tensor(holder)
                    text = json.dumps(torch.cuda.memory._snapshot())
                self.assertIn("make_a_tensor", alive)
                self.assertEqual("make_a_tensor" in text, context != "state")
                self.assertEqual("drop_the_tensor" in text, context == "all")

    def test_who_released_a_segment(self):
        for context in ("state", "alloc", "all"):
            with self.subTest(context=context):
                torch.cuda.empty_cache()
                with history(context=context, stacks="python"):
                    holder = [make_a_tensor()]
                    holder.clear()
                    release_the_cache()
                    text = json.dumps(torch.cuda.memory._snapshot())
                self.assertEqual("release_the_cache" in text, context == "all")

    def test_who_made_a_segment(self):
        with history(context="all", stacks="python"):
            tensor = make_a_tensor()
            segments = torch.cuda.memory._snapshot()["segments"]
            (segment,) = [s for s in segments if s["address"] == tensor.data_ptr()]
            self.assertIn("make_a_tensor", names(segment["frames"]))

    def test_no_context_at_all(self):
        with history(context=None, stacks="python"):
            tensor = make_a_tensor()
            snapshot = torch.cuda.memory._snapshot()
            self.assertNotIn("make_a_tensor", json.dumps(snapshot))
            self.assertTrue(all("frames" not in e for e in snapshot["device_traces"][0]))
            self.assertEqual(block_at(tensor.data_ptr())["frames"], [])

    def test_context_may_be_switched_while_it_runs(self):
        def seen_first():
            return byte_tensor(4096)

        def not_seen():
            return byte_tensor(4096)

        def seen_again():
            return byte_tensor(4096)

        with history(context="all", stacks="python"):
            seen_first()
            torch.cuda.memory._record_memory_history(context=None, stacks="python")
            not_seen()
            torch.cuda.memory._record_memory_history(context="all", stacks="python")
            seen_again()
            text = json.dumps(torch.cuda.memory._snapshot())
        self.assertIn("seen_first", text)
        self.assertNotIn("not_seen", text)
        self.assertIn("seen_again", text)

    def test_a_block_forgets_its_stack_when_it_is_freed(self):
        with history(context="all", stacks="python", skip_actions=["alloc", "segment_alloc"]):
            tensor = make_a_tensor(4096)
            address = tensor.data_ptr()
            self.assertIn("make_a_tensor", names(block_at(address)["frames"]))
            del tensor
            free = [
                block
                for segment in torch.cuda.memory_snapshot()
                for block in segment["blocks"]
                if block["state"] == "inactive"
            ]
            self.assertTrue(all(block["frames"] == [] for block in free))

    def test_scripted_functions_have_frames(self):
        function = torch.jit.script(scripted_tensor)
        with history("state", stacks="python"):
            tensor = function()
            frames = block_at(tensor.untyped_storage().data_ptr())["frames"]
            self.assertEqual(frames[0]["name"], "scripted_tensor")
            self.assertIn(THIS_FILE, str(frames))

    def test_a_backward_pass_tells_of_its_forward_pass(self):
        def forward_of_the_test(weight):
            return (weight * weight).exp()

        weight = torch.ones(1000, 1000, device="cuda", requires_grad=True)
        with history(context="all", stacks="python"):
            with torch.autograd.set_detect_anomaly(True, check_nan=False):
                forward_of_the_test(weight).sum().backward()
            told = [e for e in trace() if e.get("forward_frames")]
        self.assertIn("forward_of_the_test", json.dumps([e["forward_frames"] for e in told]))

    @CPP_STACKS
    def test_cpp_frames_if_asked_for(self):
        for stacks in ("all", "python"):
            with self.subTest(stacks=stacks):
                with history("state", stacks=stacks):
                    tensor = torch.rand(311, 411, device="cuda")
                    frames = str(block_at(tensor.untyped_storage().data_ptr())["frames"])
                self.assertIn(THIS_FILE, frames)
                self.assertEqual("::rand" in frames, stacks == "all")

    @CPP_STACKS
    def test_a_traceback_by_itself(self):
        from torch._C._profiler import gather_traceback, symbolize_tracebacks

        (frames,) = symbolize_tracebacks([gather_traceback(True, True, True)])
        self.assertIn(THIS_FILE, str(frames))
        self.assertIn("unwind", str(frames))


if __name__ == "__main__":
    unittest.main()
