"""A caching allocator for GPU memory.

It runs PyTorch programs on the GPU, with no change to them:

    python -m larder train.py

or, in a notebook, before the first use of CUDA:

    import larder
    larder.torch.install()

And it tells on a simulated GPU what a program needs:

    larder.replay("snapshot.pickle")
    larder.compare("snapshot.pickle")
    larder.fit("snapshot.pickle")
    larder.explain("snapshot.pickle")
    larder.tune("snapshot.pickle")

`larder.Allocator` is the allocator itself, for experiments and tests.
"""

from __future__ import annotations

import os
import sys

from larder.errors import (
    AddressError,
    DeviceError,
    DivergenceError,
    Error,
    ExchangeError,
    FileError,
    InstallError,
    OutOfMemoryError,
    PoolError,
    SettingsError,
    UsageError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from larder import cupy, numba, rmm, torch
    from larder._native import POLICIES, Checkpoint, __version__
    from larder.allocator import Allocator, Block, Pool
    from larder.answers import (
        Explanation,
        Outlook,
        Timeline,
        Tuning,
        explain,
        memory_over_time,
        outlook,
        tune,
    )
    from larder.many import Difference, Ranks, diff, ranks
    from larder.snapshot import Snapshot
    from larder.source import Position, Source, check_source
    from larder.table import Table
    from larder.workload import Comparison, Fit, Pass, Replay, compare, fit, replay
else:
    # `python -m larder` and every process of a PyTorch program come by here, and use nothing of
    # this.
    _HOMES = {
        "_native": ("POLICIES", "Checkpoint", "__version__"),
        "allocator": ("Allocator", "Block", "Pool"),
        "answers": (
            "Explanation",
            "Outlook",
            "Timeline",
            "Tuning",
            "explain",
            "memory_over_time",
            "outlook",
            "tune",
        ),
        "many": ("Difference", "Ranks", "diff", "ranks"),
        "snapshot": ("Snapshot",),
        "source": ("Position", "Source", "check_source"),
        "table": ("Table",),
        "workload": ("Comparison", "Fit", "Pass", "Replay", "compare", "fit", "replay"),
    }

    def __getattr__(name):
        import importlib

        if name in ("torch", "cupy", "numba", "rmm"):
            return importlib.import_module(f"larder.{name}")
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(
                f"module 'larder' has no attribute '{name}'", name=name, obj=sys.modules[__name__]
            )
        value = globals()[name] = getattr(importlib.import_module(f"larder.{home}"), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


def library_path() -> str:
    """The library that exports Larder's C interface, for `ctypes` and for PyTorch's pluggable
    allocator.

    `torch.cuda.memory.CUDAPluggableAllocator(larder.library_path(), "larder_torch_alloc",
    "larder_torch_free")` has PyTorch take its memory from Larder, without the statistics, snapshots
    and pools that `larder.torch.install` gives.
    """
    from larder import _native

    return os.path.abspath(str(_native.__file__))


__all__ = [
    "POLICIES",
    "AddressError",
    "Allocator",
    "Block",
    "Checkpoint",
    "Comparison",
    "DeviceError",
    "Difference",
    "DivergenceError",
    "Error",
    "ExchangeError",
    "Explanation",
    "FileError",
    "Fit",
    "InstallError",
    "OutOfMemoryError",
    "Outlook",
    "Pass",
    "Pool",
    "PoolError",
    "Position",
    "Ranks",
    "Replay",
    "SettingsError",
    "Snapshot",
    "Source",
    "Table",
    "Timeline",
    "Tuning",
    "UsageError",
    "__version__",
    "check_source",
    "compare",
    "diff",
    "explain",
    "fit",
    "library_path",
    "memory_over_time",
    "outlook",
    "ranks",
    "replay",
    "torch",
    "tune",
]
