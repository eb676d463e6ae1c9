"""What every test of this suite begins from: a clean cache, the default settings and no history.

The suite says what a PyTorch program sees of its CUDA allocator. It knows nothing of which
allocator that is: PyTorch's own and Larder's have to pass the same tests.
"""

import collections
import contextlib
import fcntl
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import torch

KIB = 1024
MIB = 1024 * 1024
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB

# A change of settings puts back four keys by itself and leaves the others as they were, so those
# are named here.
DEFAULT_SETTINGS = (
    "large_segment_size_mb:20",
    "expandable_segments:False",
    "release_lock_on_cudamalloc:False",
    "graph_capture_record_stream_reuse:False",
    "pinned_use_cuda_host_register:False",
    "pinned_num_register_threads:1",
)

TORCH_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def configure(*settings):
    """Puts the settings in force: the defaults, and over them those that are given."""
    torch._C._accelerator_setAllocatorSettings(",".join(DEFAULT_SETTINGS + settings))


def byte_tensor(size_bytes):
    """A tensor of exactly so many bytes, with no kernel run on it."""
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def filled(size_bytes, value):
    """A tensor of so many bytes that all hold `value`."""
    return torch.full((size_bytes,), value, dtype=torch.uint8, device="cuda")


def on_stand_in():
    """Whether there is no GPU but torch/stand_in, on which the processor fills memory."""
    return torch.cuda.get_device_name().startswith("stand-in")


def holds(tensor, value):
    """Whether every element has this value, as seen by the host: no memory of the GPU is needed to
    find out.
    """
    return bool((tensor.cpu() == value).all())


def segments_of(pool_id):
    """The segments of one pool, in the order of their addresses."""
    pool_id = tuple(pool_id)
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == pool_id]


def private_segments():
    """The segments of all pools but the default one."""
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]


def segment_at(address):
    """The segment that holds this address."""
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= address < segment["address"] + segment["total_size"]:
            return segment
    raise AssertionError(f"no segment holds address {address:#x}")


def block_at(address):
    """The block that begins at this address."""
    for block in segment_at(address)["blocks"]:
        if block["address"] == address:
            return block
    raise AssertionError(f"no block begins at address {address:#x}")


def block_sizes(segment):
    return [block["size"] for block in segment["blocks"]]


def live_blocks(pool_id):
    """How many blocks of a pool are handed out."""
    return sum(
        block["state"] == "active_allocated"
        for segment in segments_of(pool_id)
        for block in segment["blocks"]
    )


class Change:
    """How far each statistic has moved since this object was made."""

    def __init__(self):
        self.before = torch.cuda.memory_stats()

    def __getitem__(self, key):
        return torch.cuda.memory_stats()[key] - self.before[key]


class BusyStream:
    """A stream that is kept busy long enough for the host to do something meanwhile.

    A test that needs it to be busy asks `still_busy` after its assertion: if the GPU was done by
    then, the assertion proved nothing, and the test says so instead of failing.
    """

    def __init__(self, stream=None, cycles=400_000_000):
        self.stream = torch.cuda.Stream() if stream is None else stream
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(cycles)
        self.done = torch.cuda.Event()
        self.done.record(self.stream)

    def still_busy(self):
        return not self.done.query()

    def finish(self):
        self.stream.synchronize()


def run_in_threads(*functions):
    """Runs each function in a thread of its own and raises what the first that failed raised."""
    failures = []

    def guarded(function):
        try:
            function()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        if thread.is_alive():
            raise AssertionError("a thread hangs")
    if failures:
        raise failures[0]


def start_child(script, **environment):
    """Starts a Python process on `script`. It inherits the environment, and so the allocator."""
    child_environment = dict(os.environ)
    for name, value in environment.items():
        if value is None:
            child_environment.pop(name, None)
        else:
            child_environment[name] = value
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=child_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(child, timeout_s=180):
    """What a child printed; an error with all it said if it failed."""
    out, err = child.communicate(timeout=timeout_s)
    if child.returncode != 0:
        raise AssertionError(f"the child ended with {child.returncode}\n{out}\n{err}")
    return out.strip()


def build_library(folder, name, source, *words):
    """Compiles C++ to a library in a folder; its path. Without a compiler the tests are skipped."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise unittest.SkipTest("no C++ compiler")
    text, library = os.path.join(folder, f"{name}.cpp"), os.path.join(folder, f"lib{name}.so")
    with open(text, "w") as file:
        file.write(source)
    command = [compiler, "-std=c++17", "-shared", "-fPIC", text, "-o", library, *words]
    subprocess.run(command, check=True, capture_output=True)
    return library


def alone_on_the_card(test):
    """Marks a test that looks at the whole card's memory. While it runs, none of this suite's tests
    runs in another process."""
    test.alone_on_the_card = True
    return test


class Room:
    """The card, which tests share or have to themselves, whatever process they are in."""

    def __init__(self):
        self.door, self.room = (
            open(os.path.join(tempfile.gettempdir(), f"larder-tests-{name}"), "w")
            for name in ("door", "room")
        )

    def enter(self, alone):
        # Whoever wants to be alone waits in the door, so that nobody else comes in meanwhile.
        fcntl.flock(self.door, fcntl.LOCK_EX)
        fcntl.flock(self.room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self.door, fcntl.LOCK_UN)

    def leave(self):
        fcntl.flock(self.room, fcntl.LOCK_UN)


class AllocatorCase(unittest.TestCase):
    """A test that begins and ends with a clean cache."""

    room = Room()

    # Settings that hold for the whole class, over the defaults.
    settings = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not torch.cuda.is_available():
            raise unittest.SkipTest("this suite needs a CUDA GPU")
        torch.cuda.init()

    def setUp(self):
        super().setUp()
        test = getattr(self, self._testMethodName)
        self.room.enter(getattr(test, "alone_on_the_card", False))
        self.addCleanup(self.room.leave)
        self.start_clean()

    def tearDown(self):
        self.start_clean()
        super().tearDown()

    @property
    def expandable(self):
        return "expandable_segments:True" in self.settings

    def start_clean(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._set_memory_metadata("")
        torch.cuda.set_per_process_memory_fraction(1.0)
        configure(*self.settings)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()

    def configure(self, *settings):
        """The settings of this class, and those given over them."""
        configure(*self.settings, *settings)

    @contextlib.contextmanager
    def limit(self, additional_bytes):
        """Lets the process have so many bytes more than it holds now."""
        gc.collect()
        torch.cuda.empty_cache()
        _, total_bytes = torch.cuda.mem_get_info()
        allowed_bytes = torch.cuda.memory_reserved() + additional_bytes
        fraction = allowed_bytes / total_bytes
        # The cap is cut down to whole bytes; a fraction that comes out one byte short would spoil
        # the arithmetic of the test.
        while int(fraction * total_bytes) < allowed_bytes:
            fraction = min(1.0, fraction + 2.0**-53)
        torch.cuda.set_per_process_memory_fraction(fraction)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def assert_snapshot_agrees(self, where=""):
        """Recomputes every current figure from the snapshot and compares it with the statistics."""
        expected = collections.Counter()

        def count(family, pool, amount=1):
            expected[f"{family}.all.current"] += amount
            expected[f"{family}.{pool}.current"] += amount

        for segment in torch.cuda.memory_snapshot():
            if segment["device"] != torch.cuda.current_device():
                continue
            pool = segment["segment_type"] + "_pool"
            count("reserved_bytes", pool, segment["total_size"])
            if not segment["is_expandable"]:
                count("segment", pool)
            address, allocated, active, requested = segment["address"], 0, 0, 0
            for block in segment["blocks"]:
                self.assertEqual(
                    block["address"], address, "blocks follow one another without a gap"
                )
                address += block["size"]
                if block["state"] == "inactive":
                    if len(segment["blocks"]) > 1 and not segment["is_expandable"]:
                        count("inactive_split", pool)
                        count("inactive_split_bytes", pool, block["size"])
                    continue
                count("active", pool)
                count("active_bytes", pool, block["size"])
                count("requested_bytes", pool, block["requested_size"])
                active += block["size"]
                requested += block["requested_size"]
                if block["state"] == "active_allocated":
                    count("allocation", pool)
                    count("allocated_bytes", pool, block["size"])
                    allocated += block["size"]
            self.assertEqual(address, segment["address"] + segment["total_size"])
            self.assertEqual(
                (allocated, active, requested),
                (segment["allocated_size"], segment["active_size"], segment["requested_size"]),
                where,
            )
        stats = torch.cuda.memory_stats()
        for family in CORE_FAMILIES:
            for pool in POOLS:
                key = f"{family}.{pool}.current"
                self.assertEqual(stats[key], expected[key], f"{key} {where}")


CORE_FAMILIES = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
POOLS = ("all", "small_pool", "large_pool")
METRICS = ("current", "peak", "allocated", "freed")
