"""Sleep and wake: memory of PyTorch goes back to the GPU, keeps its addresses, and comes back."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

__all__ = [
    "KEEPS",
    "SleepStats",
    "Slept",
    "declare",
    "leave",
    "region",
    "set_limit",
    "sleep",
    "stats",
    "wake",
]

KEEPS = {"host": 0, "drop": 1, "zero": 2}
"""What becomes of contents: kept in memory of the host, dropped, or dropped and zeros then."""

AS_TAGGED = 3


class Slept(NamedTuple):
    """What a call to `sleep` did."""

    asleep_bytes: int
    """Bytes of the GPU that went to sleep."""
    kept_bytes: int
    """Bytes of contents that are kept for them."""
    plain_bytes: int
    """Bytes of plain segments, which cannot sleep: their addresses would go with their memory."""


class SleepStats(NamedTuple):
    """What sleeps at this moment."""

    asleep_bytes: int
    """Bytes of the GPU that it takes to wake all."""
    used_bytes: int
    """Bytes in tensors that sleep and were not freed."""
    kept_bytes: int
    """Bytes of contents that are kept, in memory of the host."""
    spare_bytes: int
    """Bytes of the host that are kept for the next time."""
    generation: int
    """How often memory woke: whoever made it known to others by its addresses has to do so anew
    when this has risen."""


Check = Callable[[int], None]


def declare(library: ctypes.CDLL) -> None:
    """Says what the functions of the C++ part take."""
    numbers = ctypes.POINTER(ctypes.c_uint64)
    library.larder_torch_region_begin.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.larder_torch_region_end.argtypes = [ctypes.c_char_p]
    library.larder_torch_regions_leave.argtypes = []
    library.larder_torch_regions_return.argtypes = []
    library.larder_torch_sleep.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, numbers]
    library.larder_torch_wake.argtypes = [ctypes.c_int, ctypes.c_char_p]
    library.larder_torch_sleep_stats.argtypes = [ctypes.c_int, numbers]
    library.larder_torch_set_keep_limit.argtypes = [ctypes.c_int, ctypes.c_uint64]


def _number_of(keep: str) -> int:
    if keep not in KEEPS:
        raise ValueError(f"keep is 'host', 'drop' or 'zero', not {keep!r}")
    return KEEPS[keep]


def _names(tags: str | Iterable[str] | None) -> bytes | None:
    """The tags as the C++ part reads them; None is all memory."""
    if tags is None:
        return None
    names = [tags] if isinstance(tags, str) else list(tags)
    if not names:
        raise ValueError("no tag is named; without `tags` all memory is meant")
    for name in names:
        if not name or "," in name:
            raise ValueError(f"a tag has a name without a comma, not {name!r}")
    return ",".join(names).encode()


@contextlib.contextmanager
def region(library: ctypes.CDLL, check: Check, tag: str, keep: str) -> Iterator[None]:
    name = _names(tag)
    check(library.larder_torch_region_begin(name, _number_of(keep)))
    try:
        yield
    finally:
        check(library.larder_torch_region_end(name))


@contextlib.contextmanager
def leave(library: ctypes.CDLL, check: Check) -> Iterator[None]:
    check(library.larder_torch_regions_leave())
    try:
        yield
    finally:
        check(library.larder_torch_regions_return())


def sleep(
    library: ctypes.CDLL,
    check: Check,
    device: int,
    tags: str | Iterable[str] | None,
    keep: str | None,
) -> Slept:
    out = (ctypes.c_uint64 * len(Slept._fields))()
    number = AS_TAGGED if keep is None else _number_of(keep)
    check(library.larder_torch_sleep(device, _names(tags), number, out))
    return Slept(*out)


def wake(library: ctypes.CDLL, check: Check, device: int, tags: str | Iterable[str] | None) -> None:
    check(library.larder_torch_wake(device, _names(tags)))


def stats(library: ctypes.CDLL, check: Check, device: int) -> SleepStats:
    out = (ctypes.c_uint64 * len(SleepStats._fields))()
    check(library.larder_torch_sleep_stats(device, out))
    return SleepStats(*out)


def set_limit(library: ctypes.CDLL, check: Check, device: int, limit_bytes: int) -> None:
    check(library.larder_torch_set_keep_limit(device, limit_bytes))
