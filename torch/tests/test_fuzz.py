"""Long random programs whose every tensor must hold what was written to it."""

import random
import unittest

import torch

from allocator_case import MIB, AllocatorCase, holds, on_stand_in


class FuzzCase(AllocatorCase):
    steps = 3000
    held_bytes_at_most = 100 * MIB

    def run_fuzz(self, seed, smallest, largest):
        rng = random.Random(seed)
        held, held_words, serial = [], 0, 0

        def release(step):
            nonlocal held_words
            value, tensor = held.pop(rng.randrange(len(held)))
            right = holds(tensor, value)
            self.assertTrue(right, f"tensor {value} lost its contents; seed {seed}, step {step}")
            held_words -= tensor.numel()

        # What a GPU fills in no time takes a processor long.
        steps = self.steps // 10 if on_stand_in() else self.steps
        for step in range(steps):
            while 4 * held_words >= self.held_bytes_at_most:
                release(step)
            choice = rng.choices(
                ("allocate", "release", "empty"), (1.0, 1.0 if held else 0.0, 0.1)
            )[0]
            if choice == "allocate":
                words = rng.randrange(smallest // 4, largest // 4)
                held.append(
                    (serial, torch.full((words,), serial, dtype=torch.int32, device="cuda"))
                )
                held_words += words
                serial += 1
            elif choice == "release":
                release(step)
            else:
                torch.cuda.empty_cache()
        while held:
            release("last")
        self.assert_snapshot_agrees(f"after the run with seed {seed}")

    def test_large_tensors(self):
        self.run_fuzz(123, 2 * MIB, 20 * MIB)

    def test_tensors_of_all_sizes(self):
        self.run_fuzz(321, 4, 4 * MIB)


class ExpandableFuzzCase(FuzzCase):
    settings = ("expandable_segments:True",)


class RoundedFuzzCase(FuzzCase):
    settings = ("max_split_size_mb:20", "roundup_power2_divisions:8")
    steps = 1500


if __name__ == "__main__":
    unittest.main()
