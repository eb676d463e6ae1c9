"""Tensors that go to another process and come back, without being copied."""

import os
import queue
import traceback
import unittest

import torch
import torch.multiprocessing as multiprocessing

from allocator_case import MIB, AllocatorCase, configure, segment_at

TIMEOUT_S = 120


def of_size(size_bytes):
    return torch.empty(size_bytes // 4, dtype=torch.int32, device="cuda")


class Peer:
    """What the other process does. It keeps what it sends until it is told to forget it."""

    def __init__(self):
        self.kept = []

    def configure(self, settings):
        configure(*settings)

    def sum_of(self, tensor):
        return float(tensor.sum(dtype=torch.float64))

    def sums_of(self, tensors):
        return [self.sum_of(tensor) for tensor in tensors]

    def wrong_words(self, tensors):
        # Each holds the numbers from its own on.
        first = [
            torch.arange(number, number + len(tensor), device="cuda", dtype=torch.int32)
            for number, tensor in tensors
        ]
        return [
            int((tensor != words).sum()) for (_, tensor), words in zip(tensors, first, strict=True)
        ]

    def double(self, tensor):
        tensor.mul_(2)
        torch.cuda.synchronize()

    def make(self, value_and_count):
        value, count = value_and_count
        tensor = torch.full((count,), value, dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()
        self.kept.append(tensor)
        return tensor

    def make_many(self, count):
        tensors = [torch.full((5,), float(value), device="cuda") for value in range(count)]
        torch.cuda.synchronize()
        self.kept.append(tensors)
        return tensors

    def keep(self, tensor):
        self.kept.append(tensor)

    def sums_of_kept(self, _):
        return self.sums_of(self.kept)

    def forget(self, _):
        self.kept.clear()
        torch.cuda.synchronize()
        torch.cuda.ipc_collect()

    def describe(self, tensor):
        return tuple(tensor.shape), tensor.storage_offset(), str(tensor.dtype), tensor.requires_grad

    def allocated(self, _):
        return torch.cuda.memory_allocated()


def serve(inbox, outbox):
    peer = Peer()
    while True:
        order, payload = inbox.get()
        if order is None:
            return
        try:
            answer = ("done", getattr(peer, order)(payload))
        except Exception:
            answer = ("failed", traceback.format_exc())
        del payload
        outbox.put(answer)
        del answer


class SharingCase(AllocatorCase):
    """One other process serves all tests of the class; each leaves it with nothing kept."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        context = multiprocessing.get_context("spawn")
        cls.inbox, cls.outbox = context.Queue(), context.Queue()
        cls.process = context.Process(target=serve, args=(cls.inbox, cls.outbox), daemon=True)
        cls.process.start()

    @classmethod
    def tearDownClass(cls):
        cls.inbox.put((None, None))
        cls.process.join(TIMEOUT_S)
        if cls.process.is_alive():
            cls.process.kill()
        super().tearDownClass()

    def setUp(self):
        super().setUp()
        self.ask("configure", self.settings)

    def tearDown(self):
        self.ask("forget")
        torch.cuda.ipc_collect()
        super().tearDown()

    def ask(self, order, payload=None):
        self.inbox.put((order, payload))
        try:
            outcome, answer = self.outbox.get(timeout=TIMEOUT_S)
        except queue.Empty:
            self.fail(f"no answer to {order}; the process lives: {self.process.is_alive()}")
        if outcome == "failed":
            if "pidfd" in answer or "Operation not permitted" in answer:
                self.skipTest(f"this machine does not let processes share handles: {answer}")
            self.fail(answer)
        return answer

    def test_a_tensor_arrives(self):
        tensor = torch.arange(1000, dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()
        self.assertEqual(self.ask("sum_of", tensor), 499500.0)

    def test_it_is_the_same_memory(self):
        tensor = torch.ones(3 * MIB, device="cuda")
        torch.cuda.synchronize()
        self.ask("double", tensor)
        self.assertEqual(tensor.cpu().sum().item(), 6.0 * MIB)
        tensor.fill_(5)
        torch.cuda.synchronize()
        self.assertEqual(self.ask("sum_of", tensor), 15.0 * MIB)

    def test_the_other_way(self):
        tensor = self.ask("make", (7.0, 1000))
        self.assertEqual(tensor.cpu().sum().item(), 7000.0)
        tensor.add_(1)
        torch.cuda.synchronize()
        self.assertEqual(self.ask("sums_of_kept"), [8000.0])
        del tensor

    def test_memory_that_is_received_is_not_counted_as_ours(self):
        before = torch.cuda.memory_allocated()
        tensor = self.ask("make", (1.0, 10 * MIB))
        self.assertEqual(torch.cuda.memory_allocated(), before)
        self.assertEqual(tensor[-1].item(), 1.0)
        del tensor

    def test_tensors_of_one_segment(self):
        # Two that lie in the same segment, so that the handle is opened once there.
        first, second = torch.ones(100, device="cuda"), torch.full((100,), 2.0, device="cuda")
        self.assertEqual(
            segment_at(first.data_ptr())["address"], segment_at(second.data_ptr())["address"]
        )
        torch.cuda.synchronize()
        self.ask("keep", first)
        self.ask("keep", second)
        self.assertEqual(self.ask("sums_of_kept"), [100.0, 200.0])

    def test_every_block_of_a_program_in_pieces(self):
        # Some lie on pages of different sizes, where an allocator puts pieces together.
        narrow, wide = [of_size(size) for size in (26 * MIB, 128 * MIB)]
        del wide
        live = {7: of_size(100 * MIB)}
        del narrow
        for number, size in enumerate((48, 1, 30, 3, 17, 0.01, 9), start=100):
            live[number] = of_size(int(size * MIB))
        for number, tensor in live.items():
            tensor.copy_(torch.arange(number, number + len(tensor), dtype=torch.int32))
        torch.cuda.synchronize()
        for number in list(live):
            self.assertEqual(self.ask("wrong_words", [(number, live[number])]), [0], number)
            if number % 2:
                del live[number]
                live[number + 1000] = of_size(21 * MIB).fill_(0)
                live[number + 1000] += torch.arange(
                    number + 1000, number + 1000 + 21 * MIB // 4, dtype=torch.int32, device="cuda"
                )
        torch.cuda.synchronize()
        self.assertEqual(self.ask("wrong_words", list(live.items())), [0] * len(live))

    def test_a_view_in_the_middle_of_a_block(self):
        base = torch.arange(10_000, dtype=torch.float32, device="cuda")
        view = base[1000:1010].view(2, 5)
        torch.cuda.synchronize()
        self.assertEqual(self.ask("describe", view), ((2, 5), 1000, "torch.float32", False))
        self.assertEqual(self.ask("sum_of", view), float(sum(range(1000, 1010))))

    def test_parameters_and_other_types(self):
        parameter = torch.nn.Parameter(torch.ones(4, device="cuda"))
        self.assertEqual(self.ask("describe", parameter), ((4,), 0, "torch.float32", True))
        for dtype in (torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.bool):
            tensor = torch.ones(33, dtype=dtype, device="cuda")
            torch.cuda.synchronize()
            self.assertEqual(self.ask("sum_of", tensor), 33.0, str(dtype))
        self.assertEqual(self.ask("sum_of", torch.empty(0, device="cuda")), 0.0)

    def test_many_small_ones_both_ways(self):
        tensors = [torch.full((5,), float(value), device="cuda") for value in range(200)]
        torch.cuda.synchronize()
        self.assertEqual(self.ask("sums_of", tensors), [5.0 * value for value in range(200)])
        received = self.ask("make_many", 200)
        self.assertEqual(
            [t.cpu().sum().item() for t in received], [5.0 * value for value in range(200)]
        )
        del received

    def test_the_same_one_again_and_again(self):
        tensor = torch.zeros(1000, device="cuda")
        for value in range(30):
            tensor.fill_(value)
            torch.cuda.synchronize()
            self.assertEqual(self.ask("sum_of", tensor), 1000.0 * value)

    def test_what_was_sent_lives_until_the_receiver_lets_go(self):
        before = torch.cuda.memory_allocated()
        tensor = torch.full((20 * MIB,), 3.0, device="cuda")
        torch.cuda.synchronize()
        self.ask("keep", tensor)
        del tensor
        torch.cuda.ipc_collect()
        self.assertEqual(torch.cuda.memory_allocated() - before, 80 * MIB)
        scribble = torch.zeros(20 * MIB, device="cuda")
        torch.cuda.synchronize()
        self.assertEqual(self.ask("sums_of_kept"), [60.0 * MIB])
        del scribble
        self.ask("forget")
        torch.cuda.ipc_collect()
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_a_miss_takes_up_what_the_receiver_let_go(self):
        # The next request that finds nothing in the cache looks for returned memory first.
        tensor = torch.ones(20 * MIB, device="cuda")
        address = tensor.data_ptr()
        torch.cuda.synchronize()
        self.ask("keep", tensor)
        del tensor
        self.ask("forget")
        again = torch.empty(20 * MIB, device="cuda")
        self.assertEqual(again.data_ptr(), address)

    def test_the_peer_frees_its_own_memory(self):
        before = self.ask("allocated")
        tensor = self.ask("make", (2.0, 5 * MIB))
        self.assertEqual(self.ask("allocated") - before, 20 * MIB)
        self.assertEqual(tensor.cpu().sum().item(), 10.0 * MIB)
        del tensor
        self.ask("forget")
        self.assertEqual(self.ask("allocated"), before)


class ExpandableSharingCase(SharingCase):
    """Handles of expandable segments are file descriptors that the receiver fetches."""

    settings = ("expandable_segments:True",)

    @classmethod
    def setUpClass(cls):
        if os.environ.get("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC") == "0":
            raise unittest.SkipTest("sharing of expandable segments is switched off")
        super().setUpClass()

    def test_a_segment_that_grows_between(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            first = torch.ones(5 * MIB, device="cuda")
            torch.cuda.synchronize()
            self.assertTrue(segment_at(first.data_ptr())["is_expandable"])
            self.ask("keep", first)
            second = torch.full((30 * MIB,), 2.0, device="cuda")
            torch.cuda.synchronize()
            self.ask("keep", second)
            self.assertEqual(self.ask("sums_of_kept"), [5.0 * MIB, 60.0 * MIB])


if __name__ == "__main__":
    unittest.main()
