"""Running out of memory: what is raised, what it says, and that the program goes on."""

import unittest

import torch

from allocator_case import (
    MIB,
    AllocatorCase,
    Change,
    alone_on_the_card,
    byte_tensor,
    holds,
    output_of,
    start_child,
)

GIB = 1024 * MIB
TEBIBYTE_OF_FLOATS = 2**40


class OutOfMemoryCase(AllocatorCase):
    def test_the_error_is_pytorchs_own(self):
        self.assertIs(torch.OutOfMemoryError, torch.cuda.OutOfMemoryError)
        change = Change()
        with self.assertRaises(torch.OutOfMemoryError) as raised:
            torch.empty(TEBIBYTE_OF_FLOATS, device="cuda")
        self.assertIsInstance(raised.exception, RuntimeError)
        self.assertEqual(change["num_ooms"], 1)
        # An allocator may see at once that what exceeds the device cannot be had.
        self.assertLessEqual(change["num_alloc_retries"], 1)
        self.assertEqual(change["allocation.all.allocated"], 0)

    def test_the_message_tells_what_was_asked_and_what_there_is(self):
        tensor = torch.zeros(1024, device="cuda")
        with self.assertRaisesRegex(
            RuntimeError, r"Tried to allocate 800000000\.00 GiB\. GPU 0 has a total capacity of"
        ) as raised:
            byte_tensor(800_000_000 * GIB)
        text = str(raised.exception)
        for part in ("CUDA out of memory.", "is free", "is reserved", "unallocated"):
            self.assertIn(part, text)
        self.assertNotIn("allowed", text)
        tensor.fill_(1)
        self.assertTrue(holds(tensor, 1))

    def test_an_exabyte_is_refused_before_anything_else(self):
        with self.assertRaisesRegex(RuntimeError, "Tried to allocate more than 1EB memory"):
            byte_tensor(8_000_000_000 * GIB)
        self.assertEqual(byte_tensor(512).numel(), 512)

    def test_the_message_names_the_cap(self):
        with self.limit(50 * MIB):
            with self.assertRaisesRegex(
                torch.OutOfMemoryError, r"Tried to allocate 60\.00 MiB"
            ) as raised:
                byte_tensor(60 * MIB)
        self.assertIn("allowed", str(raised.exception))

    def test_the_message_names_private_pools(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensor = byte_tensor(60 * MIB)
        del tensor
        with self.assertRaises(torch.OutOfMemoryError) as raised:
            torch.empty(TEBIBYTE_OF_FLOATS, device="cuda")
        self.assertRegex(str(raised.exception), r"60\.00 MiB .*private pools")

    def test_it_is_raised_with_and_without_a_largest_block_to_split(self):
        for settings in ((), ("max_split_size_mb:1024",)):
            with self.subTest(settings=settings):
                self.configure(*settings)
                torch.cuda.empty_cache()
                with self.assertRaises(torch.cuda.OutOfMemoryError):
                    torch.empty(TEBIBYTE_OF_FLOATS, device="cuda")

    @alone_on_the_card
    def test_what_is_given_back_can_be_had_again(self):
        free_bytes, _ = torch.cuda.mem_get_info()
        size = int(free_bytes * 0.6)
        first = byte_tensor(size)
        with self.assertRaisesRegex(RuntimeError, "Tried to allocate"):
            byte_tensor(size)
        del first
        second = byte_tensor(size)
        second[-1] = 5
        self.assertEqual(second[-1].item(), 5)

    def test_cached_memory_is_released_before_giving_up(self):
        with self.limit(100 * MIB):
            change = Change()
            small_ones = [byte_tensor(20 * MIB) for _ in range(5)]
            del small_ones
            large = byte_tensor(90 * MIB)
            # An expandable segment has grown together by then, so nothing need be released.
            self.assertEqual(change["num_alloc_retries"], 0 if self.expandable else 1)
            self.assertEqual(change["num_ooms"], 0)
            self.assertEqual(large.numel(), 90 * MIB)

    def test_training_goes_on_after_it(self):
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(16, 64, device="cuda")
        losses = []
        for step in range(4):
            if step == 2:
                with self.assertRaises(torch.OutOfMemoryError):
                    torch.empty(TEBIBYTE_OF_FLOATS, device="cuda")
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertEqual(losses, sorted(losses, reverse=True))


class FractionCase(AllocatorCase):
    def test_a_fraction_is_a_float_between_zero_and_one(self):
        with self.assertRaisesRegex(TypeError, "Invalid type"):
            torch.cuda.set_per_process_memory_fraction(1)
        for fraction in (-0.1, 2.0):
            with self.assertRaisesRegex(ValueError, "Invalid fraction value"):
                torch.cuda.set_per_process_memory_fraction(fraction)

    @alone_on_the_card
    def test_just_below_the_fraction_fits_and_the_fraction_does_not(self):
        tensor = torch.zeros(1024, device="cuda")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.5, 0)
        fitting = byte_tensor(int(total_bytes * 0.499) - torch.cuda.max_memory_reserved())
        del fitting
        torch.cuda.empty_cache()
        with self.assertRaisesRegex(RuntimeError, "out of memory"):
            byte_tensor(int(total_bytes * 0.5))
        tensor.fill_(1)
        self.assertTrue(holds(tensor, 1))

    def test_the_fraction_can_be_read_back(self):
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        for fraction in (1.0, 0.0, 0.5, 0.25):
            torch.cuda.set_per_process_memory_fraction(fraction)
            self.assertEqual(torch.cuda.get_per_process_memory_fraction(), fraction)
        for fraction in (0.1, 1 / 3, 0.777):
            # The cap is a whole number of bytes.
            torch.cuda.set_per_process_memory_fraction(fraction)
            got = torch.cuda.get_per_process_memory_fraction()
            self.assertAlmostEqual(got, fraction, delta=1.0 / total_bytes)

    def test_private_pools_count_against_the_cap(self):
        pool = torch.cuda.MemPool()
        with self.limit(100 * MIB):
            with torch.cuda.use_mem_pool(pool):
                inside = byte_tensor(60 * MIB)
            with self.assertRaises(torch.OutOfMemoryError):
                byte_tensor(60 * MIB)
            del inside

    def test_the_environment_sets_the_fraction(self):
        script = "import torch; print(torch.cuda.get_per_process_memory_fraction(0))"
        children = {
            fraction: start_child(
                script,
                PYTORCH_CUDA_ALLOC_CONF=f"per_process_memory_fraction:{fraction}",
                PYTORCH_ALLOC_CONF=None,
            )
            for fraction in ("0.0", "0.5", "1.0", "-0.1", "1.1")
        }
        for fraction in ("0.0", "0.5", "1.0"):
            self.assertEqual(output_of(children[fraction]), fraction)
        for fraction in ("-0.1", "1.1"):
            _, error = children[fraction].communicate(timeout=180)
            self.assertNotEqual(children[fraction].returncode, 0)
            self.assertIn("per_process_memory_fraction is invalid", error)


class ObserverCase(AllocatorCase):
    """Programs may ask to be told of an out-of-memory before the error is raised."""

    seen = []

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # An observer stays for the life of the process.
        torch._C._cuda_attach_out_of_memory_observer(lambda *what: cls.seen.append(what))

    def test_an_observer_is_told(self):
        self.seen.clear()
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(TEBIBYTE_OF_FLOATS, device="cuda")
        self.assertEqual(len(self.seen), 1)
        device, asked_bytes, device_bytes, free_bytes = self.seen[0]
        self.assertEqual(device, 0)
        self.assertEqual(asked_bytes, 4 * TEBIBYTE_OF_FLOATS)
        self.assertEqual(device_bytes, torch.cuda.get_device_properties(0).total_memory)
        self.assertLessEqual(free_bytes, device_bytes)

    def test_an_observer_may_ask_the_allocator(self):
        # It is called with no lock held, so it can look around.
        looked, wanted = [], [True]

        def look(*_):
            if wanted[0]:
                looked.append((torch.cuda.memory_stats(), torch.cuda.memory_snapshot()))

        torch._C._cuda_attach_out_of_memory_observer(look)
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(TEBIBYTE_OF_FLOATS, device="cuda")
        wanted[0] = False
        self.assertEqual(len(looked), 1)
        self.assertEqual(looked[0][0]["num_ooms"], torch.cuda.memory_stats()["num_ooms"])

    def test_what_an_observer_raises_takes_the_place_of_the_error(self):
        # In a process of its own, because the observer stays.
        child = start_child(
            """
import torch
calm = [True]
def observer(*_):
    if not calm[0]:
        raise ZeroDivisionError("the observer's own")
torch.cuda.init()
torch._C._cuda_attach_out_of_memory_observer(observer)
for calm[0] in (False, False, True):
    try:
        torch.empty(2**40, device="cuda")
    except Exception as error:
        print(type(error).__name__)
print(torch.zeros(4, device="cuda").numel(), torch.cuda.memory_stats()["num_ooms"])
"""
        )
        raised = ["ZeroDivisionError", "ZeroDivisionError", "OutOfMemoryError", "4 3"]
        self.assertEqual(output_of(child).splitlines(), raised)

    def test_what_fits_is_not_reported(self):
        self.seen.clear()
        keep = byte_tensor(30 * MIB)
        self.assertEqual(self.seen, [])
        del keep


if __name__ == "__main__":
    unittest.main()
