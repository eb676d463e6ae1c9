"""Pinned host memory."""

import gc
import unittest

import torch

from allocator_case import (
    AllocatorCase,
    BusyStream,
    configure,
    holds,
    output_of,
    run_in_threads,
    start_child,
)

try:
    import larder
except ImportError:
    larder = None

is_larder = larder and larder.torch.is_installed()
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

HOST_REGISTER = ("pinned_use_cuda_host_register:True", "pinned_num_register_threads:8")


def pinned(count=8):
    return torch.randn(count).pin_memory()


class HostChange:
    def __init__(self):
        self.before = torch.cuda.host_memory_stats()

    def __getitem__(self, key):
        return torch.cuda.host_memory_stats()[key] - self.before[key]


class PinnedCase(AllocatorCase):
    def test_a_block_is_used_again(self):
        first = pinned(1)
        address = first.data_ptr()
        del first
        self.assertEqual(pinned(1).data_ptr(), address)

    def test_a_block_waits_for_the_copy_that_reads_it(self):
        source = torch.tensor([1.0]).pin_memory()
        target = torch.zeros(1, device="cuda")
        address = source.data_ptr()
        torch.cuda.synchronize()
        busy = BusyStream(torch.cuda.current_stream())
        target.copy_(source, non_blocking=True)
        del source
        other = torch.tensor([2.0]).pin_memory()
        reused, was_busy = other.data_ptr() == address, busy.still_busy()
        self.assertEqual(target.item(), 1.0)
        if not was_busy:
            self.skipTest("the GPU was done before the host had looked; nothing is proved")
        self.assertFalse(reused)

    def test_any_shape_can_be_pinned(self):
        transposed = torch.arange(10).view(2, 5).t()
        self.assertTrue(torch.equal(transposed, transposed.pin_memory()))
        self.assertTrue(transposed.pin_memory().is_pinned())

    def test_the_statistics_of_the_host(self):
        gc.collect()
        torch._C._host_emptyCache()
        change = HostChange()
        sizes = [40 << 20, 80 << 20]
        first = torch.ones(sizes[0] // 4, pin_memory=True)
        self.assertEqual(change["allocations.current"], 1)
        self.assertEqual(change["active_requests.current"], 1)
        self.assertEqual(change["num_host_alloc"], 1)
        self.assertEqual(change["host_alloc_time.count"], 1)
        for key in ("allocated_bytes.current", "active_bytes.current"):
            self.assertIn(change[key], (sizes[0], 64 << 20), "to the page, or to a power of two")
        second = torch.ones(sizes[1] // 4, pin_memory=True)
        self.assertEqual(change["allocations.current"], 2)
        self.assertIn(change["allocated_bytes.current"], (sum(sizes), 192 << 20))
        torch._C._host_emptyCache()
        self.assertEqual(change["allocations.current"], 2, "what is in use stays")
        del first, second
        self.assertEqual(change["allocations.current"], 2, "what is free is kept for reuse")
        torch._C._host_emptyCache()
        self.assertEqual(change["allocations.current"], 0)
        self.assertEqual(change["num_host_free"], 2)
        torch.cuda.reset_peak_host_memory_stats()
        torch.cuda.reset_accumulated_host_memory_stats()
        self.assertEqual(torch.cuda.host_memory_stats()["num_host_alloc"], 0)

    def test_every_statistic_is_there(self):
        keep = [torch.ones(size, pin_memory=True) for size in (7, 5_000, 3_000_000)]
        keep.pop(1)
        torch._C._host_emptyCache()
        stats = torch.cuda.host_memory_stats()
        for name in ("active_requests", "active_bytes", "allocations", "allocated_bytes"):
            for part in ("current", "peak", "allocated"):
                self.assertGreater(stats[f"{name}.{part}"], 0, f"{name}.{part}")
            self.assertIn(f"{name}.freed", stats)
        for name in ("host_alloc_time", "host_free_time"):
            for part in ("total", "max", "min", "count"):
                self.assertGreaterEqual(stats[f"{name}.{part}"], 0, f"{name}.{part}")

    def test_the_statistics_of_the_device_do_not_move(self):
        before = torch.cuda.memory_stats()
        keep = torch.ones(1 << 20, pin_memory=True)
        self.assertEqual(torch.cuda.memory_stats(), before)
        del keep

    def test_registered_memory(self):
        def use():
            for exponent in (10, 21, 24):
                tensor = torch.ones(1 << exponent).pin_memory()
                if not tensor.is_pinned():
                    raise AssertionError(f"2^{exponent} elements are not pinned")

        configure(*HOST_REGISTER)
        use()
        run_in_threads(*[use] * 4)
        for register in (True, False):
            configure(f"pinned_use_cuda_host_register:{register}")
            tensor = torch.ones(1 << 20, pin_memory=True)
            self.assertTrue(tensor.is_pinned())
            del tensor
            torch._C._host_emptyCache()

    def test_a_view_waits_for_the_copy_that_reads_it(self):
        source = torch.arange(1000, dtype=torch.int32).pin_memory()
        target = torch.zeros(500, dtype=torch.int32, device="cuda")
        address = source.data_ptr()
        torch.cuda.synchronize()
        busy = BusyStream(torch.cuda.current_stream())
        target.copy_(source[500:], non_blocking=True)
        del source
        other = torch.zeros(1000, dtype=torch.int32).pin_memory()
        reused, was_busy = other.data_ptr() == address, busy.still_busy()
        self.assertEqual(target[0].item(), 500)
        if not was_busy:
            self.skipTest("the GPU was done before the host had looked; nothing is proved")
        self.assertFalse(reused)

    def test_two_streams_that_copy_are_both_waited_for(self):
        source = torch.arange(1000, dtype=torch.int32).pin_memory()
        address = source.data_ptr()
        streams = [torch.cuda.Stream() for _ in range(2)]
        targets = [torch.zeros(1000, dtype=torch.int32, device="cuda") for _ in streams]
        torch.cuda.synchronize()
        busy = BusyStream(streams[1])
        for stream, target in zip(streams, targets):
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)
        del source
        streams[0].synchronize()
        other = torch.zeros(1000, dtype=torch.int32).pin_memory()
        reused, was_busy = other.data_ptr() == address, busy.still_busy()
        for stream, target in zip(streams, targets):
            stream.synchronize()
            self.assertEqual(target[999].item(), 999)
        if not was_busy:
            self.skipTest("the GPU was done before the host had looked; nothing is proved")
        self.assertFalse(reused)

    def test_a_loader_pins_what_it_loads(self):
        data = torch.utils.data.TensorDataset(torch.arange(64.0).view(16, 4))
        for workers in (0, 2):
            with self.subTest(workers=workers):
                loader = torch.utils.data.DataLoader(
                    data, batch_size=4, num_workers=workers, pin_memory=True
                )
                seen = []
                for (batch,) in loader:
                    self.assertTrue(batch.is_pinned())
                    seen.append(batch.to("cuda", non_blocking=True).cpu())
                self.assertTrue(torch.equal(torch.cat(seen), data.tensors[0]))

    def test_workers_read_what_was_pinned_before_they_were_forked(self):
        data = torch.utils.data.TensorDataset(torch.arange(5_000_000.0).view(-1, 5).pin_memory())
        loader = torch.utils.data.DataLoader(data, batch_size=100_000, num_workers=2)
        total = sum(batch.double().sum().item() for (batch,) in loader)
        self.assertEqual(total, data.tensors[0].double().sum().item())
        del loader, data
        gc.collect()
        self.assertTrue(pinned().is_pinned(), "what workers drop is not the parent's")

    def test_copies_both_ways_keep_their_contents(self):
        stream = torch.cuda.Stream()
        for round_number in range(50):
            source = torch.full((100_000,), round_number, dtype=torch.int32).pin_memory()
            with torch.cuda.stream(stream):
                on_device = source.to("cuda", non_blocking=True)
                result = torch.empty(100_000, dtype=torch.int32, pin_memory=True)
                result.copy_(on_device + 1, non_blocking=True)
            del source, on_device
            stream.synchronize()
            self.assertTrue(holds(result, round_number + 1))


@unittest.skipUnless(is_larder, "PyTorch's own allocator has no such settings")
class KeepingCase(AllocatorCase):
    """Larder's own settings of pinned memory, each in a process of its own."""

    def told(self, settings, script, **environment):
        preamble = """
import time, torch
torch.cuda.init()
def held_mib():
    return torch.cuda.host_memory_stats()["allocated_bytes.current"] >> 20
def pinned(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, pin_memory=True)
def wait_for(is_so):
    for _ in range(600):
        if is_so():
            return True
        time.sleep(0.05)
    return False
"""
        child = start_child(preamble + script, LARDER_CONF=settings, **environment)
        return output_of(child)

    def test_memory_is_got_ahead_and_what_lies_idle_goes_back(self):
        script = """
first = pinned(40)
print(wait_for(lambda: held_mib() == 40 + 64))
del first
print(wait_for(lambda: held_mib() == 64))
before = torch.cuda.host_memory_stats()["num_host_alloc"]
second = pinned(64)
print(torch.cuda.host_memory_stats()["num_host_alloc"] == before, torch.cuda.is_available())
"""
        told = self.told("pinned_ahead:64MiB,pinned_idle_s:1", script)
        self.assertEqual(told.split(), ["True", "True", "True", "True"])

    def test_a_limit_is_kept_and_said(self):
        script = """
kept = pinned(60)
try:
    pinned(60)
except torch.OutOfMemoryError as error:
    print("pinned_limit" in str(error), held_mib())
"""
        self.assertEqual(self.told("pinned_limit:100MiB", script), "True 60")

    @unittest.skipIf(VERSION < (2, 13), "the setting is of 2.13")
    def test_what_is_larger_than_may_be_cached_goes_back(self):
        script = """
small, large = pinned(8), pinned(40)
del small, large
print(held_mib())
"""
        conf = "pinned_max_cached_size_mb:16"
        told = self.told("pinned:larder", script, PYTORCH_CUDA_ALLOC_CONF=conf)
        self.assertEqual(told, "8")


class CaptureCase(AllocatorCase):
    """Pinned memory inside the capture of a graph belongs to the pool of the graph."""

    host_settings = ()

    def setUp(self):
        super().setUp()
        configure(*self.host_settings)

    def captured(self, graph=None, pool=None):
        graph = torch.cuda.CUDAGraph() if graph is None else graph
        return torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")

    def test_two_at_once_are_two(self):
        with self.captured():
            first = torch.empty(8, pin_memory=True)
            second = torch.empty(8, pin_memory=True)
        self.assertNotEqual(first.data_ptr(), second.data_ptr())

    def test_what_no_copy_used_is_used_again(self):
        with self.captured():
            first = pinned()
            address = first.data_ptr()
            del first
            second = pinned()
        self.assertEqual(second.data_ptr(), address)

    def test_what_a_copy_used_is_never_used_again(self):
        with self.captured():
            first = pinned()
            torch.empty(8, device="cuda").copy_(first, non_blocking=True)
            address = first.data_ptr()
            del first
            second = pinned()
        self.assertNotEqual(second.data_ptr(), address)

    def test_two_graphs_of_one_pool(self):
        for used in (True, False):
            for deleted in (True, False):
                with self.subTest(used=used, deleted=deleted):
                    pool = torch.cuda.graph_pool_handle()
                    graphs, addresses, kept = [], [], []
                    for _ in range(2):
                        graphs.append(torch.cuda.CUDAGraph())
                        with self.captured(graphs[-1], pool):
                            data = pinned()
                            if used:
                                on_device = torch.empty(8, device="cuda")
                                on_device.copy_(data, non_blocking=True)
                            addresses.append(data.data_ptr())
                            if not deleted:
                                kept.append(data)
                            del data
                    self.assertEqual(addresses[0] == addresses[1], deleted and not used)

    def test_a_replayed_copy_reads_the_pinned_block(self):
        source = torch.zeros(1000).pin_memory()
        target = torch.empty(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with self.captured(graph):
            target.copy_(source, non_blocking=True)
        for value in range(3):
            source.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            self.assertEqual(target.cpu().sum().item(), 1000.0 * value)

    def test_memory_that_is_not_pinned_cannot_be_copied(self):
        for to_device in (True, False):
            with self.subTest(to_device=to_device):
                with self.assertRaisesRegex(
                    RuntimeError, "Cannot copy between CPU and CUDA tensors"
                ):
                    with torch.cuda.graph(torch.cuda.CUDAGraph()):
                        on_device, on_host = torch.empty(8, device="cuda"), torch.empty(8)
                        target, source = (on_device, on_host) if to_device else (on_host, on_device)
                        target.copy_(source, non_blocking=True)


class RegisteredCaptureCase(CaptureCase):
    host_settings = HOST_REGISTER


if __name__ == "__main__":
    unittest.main()
