"""Memory that several streams use: when a block may be handed out again, and when not yet."""

import random
import unittest

import torch

from allocator_case import (
    MIB,
    AllocatorCase,
    BusyStream,
    Change,
    block_at,
    byte_tensor,
    filled,
    holds,
    run_in_threads,
)


class StreamCase(AllocatorCase):
    def assert_was_busy(self, busy):
        if not busy.still_busy():
            self.skipTest("the GPU was done before the host had looked; nothing is proved")

    def test_a_recorded_block_waits_for_the_other_stream(self):
        home = torch.cuda.Stream()
        with torch.cuda.stream(home):
            tensor = filled(4096, 7)
        home.synchronize()
        address = tensor.data_ptr()
        busy = BusyStream()
        tensor.record_stream(busy.stream)
        del tensor
        with torch.cuda.stream(home):
            too_early = byte_tensor(4096)
        self.assertNotEqual(too_early.data_ptr(), address, "the other stream may still read it")
        self.assert_was_busy(busy)
        busy.finish()
        with torch.cuda.stream(home):
            in_time = byte_tensor(4096)
        self.assertEqual(in_time.data_ptr(), address, "the other stream is done, so it is free")

    def test_a_copy_that_is_late_reads_what_it_should(self):
        side = torch.cuda.Stream()
        source = torch.tensor([1.0, 2.0, 3.0, 4.0]).pin_memory()
        result = torch.empty(4, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            staged = source.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        staged.record_stream(torch.cuda.current_stream())
        torch.cuda._sleep(100_000_000)
        result.copy_(staged)
        address = staged.data_ptr()
        del staged
        with torch.cuda.stream(side):
            scribble = torch.zeros(4, device="cuda")
        self.assertEqual(result.tolist(), [1.0, 2.0, 3.0, 4.0])
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(side):
            again = torch.empty(4, device="cuda")
        self.assertIn(address, (scribble.data_ptr(), again.data_ptr()))

    def test_a_view_stands_for_the_whole_block(self):
        home = torch.cuda.Stream()
        with torch.cuda.stream(home):
            base = byte_tensor(4096)
        home.synchronize()
        address = base.data_ptr()
        view = base[1000:]
        self.assertGreater(view.storage_offset(), 0)
        busy = BusyStream()
        view.record_stream(busy.stream)
        del base, view
        with torch.cuda.stream(home):
            other = byte_tensor(4096)
        self.assertNotEqual(other.data_ptr(), address)
        self.assert_was_busy(busy)

    def test_its_own_stream_needs_no_record(self):
        home = torch.cuda.Stream()
        with torch.cuda.stream(home):
            tensor = byte_tensor(4096)
            address = tensor.data_ptr()
            tensor.record_stream(home)
        BusyStream(home)
        del tensor
        with torch.cuda.stream(home):
            self.assertEqual(byte_tensor(4096).data_ptr(), address)

    def test_a_waiting_block_is_active_but_not_allocated(self):
        home = torch.cuda.Stream()
        change = Change()
        with torch.cuda.stream(home):
            tensor = byte_tensor(3 * MIB)
        address = tensor.data_ptr()
        busy = BusyStream()
        tensor.record_stream(busy.stream)
        self.assertEqual(block_at(address)["state"], "active_allocated")
        del tensor
        state = block_at(address)["state"]
        allocated, active = (
            change["allocated_bytes.all.current"],
            change["active_bytes.all.current"],
        )
        requested = change["requested_bytes.all.current"]
        self.assert_snapshot_agrees("while a block waits")
        self.assert_was_busy(busy)
        self.assertEqual(state, "active_pending_free")
        self.assertEqual((allocated, active, requested), (0, 3 * MIB, 3 * MIB))
        busy.finish()
        keep = byte_tensor(512)
        self.assertEqual(change["active_bytes.all.current"], 512, "the next request takes it up")
        self.assert_snapshot_agrees("after it was taken up")
        del keep

    def test_one_busy_stream_does_not_hold_up_another(self):
        home, idle = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(home):
            late, early = byte_tensor(4 * MIB), byte_tensor(5 * MIB)
        home.synchronize()
        late_address, early_address = late.data_ptr(), early.data_ptr()
        busy = BusyStream()
        late.record_stream(busy.stream)
        early.record_stream(idle)
        del late, early
        idle.synchronize()
        with torch.cuda.stream(home):
            taken = byte_tensor(5 * MIB)
        states = block_at(late_address)["state"]
        self.assertEqual(taken.data_ptr(), early_address)
        self.assert_was_busy(busy)
        self.assertEqual(states, "active_pending_free")

    def test_waiting_blocks_are_reclaimed_under_pressure(self):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            total = torch.zeros(40 * MIB, device="cuda")
            total += torch.zeros(40 * MIB, device="cuda")
        torch.cuda.synchronize()
        # Room for five of the tensors below; the sixth finds the others still waiting.
        with self.limit(5 * 160 * MIB):
            change = Change()
            BusyStream(side)
            for _ in range(30):
                addend = torch.empty(40 * MIB, device="cuda").fill_(1.0)
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    total += addend
                addend.record_stream(side)
                del addend
            side.synchronize()
            # Waiting for the others may be enough, with no second request to the device.
            self.assertGreaterEqual(change["num_sync_all_streams"], 1)
            self.assertEqual(change["num_ooms"], 0)
        with torch.cuda.stream(side):
            self.assertEqual(total.cpu().min().item(), 30.0)
            self.assertEqual(total.cpu().max().item(), 30.0)

    def test_a_pipeline_of_streams_keeps_its_contents(self):
        seed = 77
        rng = random.Random(seed)
        streams = [torch.cuda.Stream() for _ in range(4)]
        held = []
        for step in range(600):
            producer, consumer = rng.sample(streams, 2)
            with torch.cuda.stream(producer):
                made = filled(rng.randrange(1, 2 * MIB), step % 251)
            consumer.wait_stream(producer)
            with torch.cuda.stream(consumer):
                read = made.clone()
            made.record_stream(consumer)
            del made
            held.append((consumer, read, step % 251))
            if len(held) > 20:
                stream, tensor, value = held.pop(rng.randrange(len(held)))
                with torch.cuda.stream(stream):
                    right = holds(tensor, value)
                self.assertTrue(right, f"step {step}, seed {seed}")
        torch.cuda.synchronize()
        for _, tensor, value in held:
            self.assertTrue(holds(tensor, value))

    def test_threads_on_their_own_streams_keep_their_contents(self):
        def worker(number):
            def run():
                rng = random.Random(number)
                held = []
                with torch.cuda.stream(torch.cuda.Stream()):
                    for step in range(400):
                        value = (number * 31 + step) % 251
                        held.append((filled(rng.randrange(1, 3 * MIB), value), value))
                        if len(held) > 15:
                            tensor, value = held.pop(rng.randrange(len(held)))
                            if not holds(tensor, value):
                                raise AssertionError(f"thread {number}, step {step}")
                    torch.cuda.current_stream().synchronize()

            return run

        run_in_threads(*(worker(number) for number in range(6)))
        self.assert_snapshot_agrees("after the threads")

    def test_one_thread_frees_what_another_made(self):
        made = []

        def make():
            for value in range(100):
                made.append(filled(64 * 1024, value))

        before = torch.cuda.memory_allocated()
        run_in_threads(make)
        torch.cuda.synchronize()
        self.assertTrue(all(holds(t, v) for v, t in enumerate(made)))
        self.assertEqual(torch.cuda.memory_allocated() - before, 100 * 64 * 1024)
        run_in_threads(made.clear)
        self.assertEqual(torch.cuda.memory_allocated(), before)


if __name__ == "__main__":
    unittest.main()
