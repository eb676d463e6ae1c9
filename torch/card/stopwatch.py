"""What memory costs a program: how often it asks the allocator, how often the driver is asked, and
how long they take.

    library = stopwatch.build(folder)   # whoever starts programs, with library in LD_PRELOAD
                                        # and in STOPWATCH
    stages = stopwatch.Stages(steps, last)   # the program, which is none the wiser without them
"""

import ctypes
import os
import pathlib
import subprocess

SOURCE = pathlib.Path(__file__).with_suffix(".cpp")
# What a program needs settles in so many steps.
SETTLING_STEPS = 10
KINDS = ("mallocs", "calls")
FIGURES = ("count", "total_ns", "worst_ns")


def build(folder):
    library = pathlib.Path(folder).resolve() / "stopwatch.so"
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, str(SOURCE), "-o", str(library), "-ldl"], check=True)
    return library


class Stages:
    """The first steps, in which a program settles, those after them, and the last ones, each with
    its costs.
    """

    def __init__(self, steps, last_steps):
        self.begins = [0, SETTLING_STEPS, max(steps - last_steps, SETTLING_STEPS), steps]
        self.costs = []
        self.library = None
        if "STOPWATCH" in os.environ:
            import torch

            torch.cuda.init()
            self.library = ctypes.CDLL(os.environ["STOPWATCH"])
            failed = self.library.stopwatch_start()
            if failed:
                raise RuntimeError(f"the stopwatch does not find PyTorch's allocator ({failed})")
            self.take()

    def take(self):
        values = (ctypes.c_uint64 * (len(KINDS) * len(FIGURES)))()
        self.library.stopwatch_take(values)
        parts = (values[: len(FIGURES)], values[len(FIGURES) :])
        return {kind: dict(zip(FIGURES, part)) for kind, part in zip(KINDS, parts)}

    def before(self, step):
        """To be told of each step that begins, and after the last one how many there were."""
        while self.library and len(self.costs) < 3 and step == self.begins[len(self.costs) + 1]:
            stage = len(self.costs)
            steps = self.begins[stage + 1] - self.begins[stage]
            self.costs.append({"steps": steps, **self.take()})
