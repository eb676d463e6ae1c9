"""Sources: where the memory of a pool comes from, if not from the device's plain memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from larder import _native

__all__ = ["Position", "Source", "check_source"]


class Position(NamedTuple):
    """Where a block lies in a symmetric pool."""

    segment: int
    """Which of the pool's segments, counted in the order in which they came."""
    offset: int
    """Where the block begins in the segment."""
    generation: int
    """The number of the call that made the block: an older one speaks of memory that was freed
    since.
    """


class Source:
    """Gives segments to a pool and takes them back: a pair of functions, or a class that overrides
    methods.

    `alloc(size, stream)` returns an address that is a multiple of 512, or `None` if there is no
    memory; a `MemoryError` says the same. `free(address, size, stream)` takes it back. Whatever
    else they raise, the call that led to it fails with a `DeviceError` that tells it, and the
    allocator stays whole. What `alloc` gives is checked: memory that is misaligned or in use goes
    back, and the request fails with a `PoolError`.

    The methods run with the allocator's lock held and must not call the allocator.

    >>> source = Source(lambda size, stream: 1 << 40, lambda address, size, stream: None)
    >>> source.may_split, source.collective
    (True, False)
    """

    may_split: bool = True
    """Whether one segment may serve several blocks."""
    collective: bool = False
    """Whether every rank makes segments together with the others: all get memory, or none does."""
    declines: bool = False
    """Whether `decline` tells the other ranks; else no cap keeps this one from asking for memory
    with them.
    """
    registrar: str | None = None
    """What the segments are registered with, in a word or two."""

    def __init__(
        self,
        alloc: Callable[[int, int], int | None] | None = None,
        free: Callable[[int, int, int], object] | None = None,
        *,
        may_split: bool | None = None,
        collective: bool | None = None,
        registrar: str | None = None,
    ) -> None:
        if (alloc is None) != (free is None):
            raise TypeError("a source needs both functions, alloc and free")
        self._alloc = alloc
        self._free = free
        if may_split is not None:
            self.may_split = may_split
        if collective is not None:
            self.collective = collective
        if registrar is not None:
            self.registrar = registrar

    def alloc(self, size: int, stream: int) -> int | None:
        """Memory of at least so many bytes, or `None`."""
        if self._alloc is None:
            raise NotImplementedError("a source needs alloc and free")
        return self._alloc(size, stream)

    def free(self, address: int, size: int, stream: int) -> None:
        """Takes back what `alloc` gave. If it raises, the segment stays the pool's and is offered
        again.
        """
        if self._free is None:
            raise NotImplementedError("a source needs alloc and free")
        self._free(address, size, stream)

    # Hooks. If one raises, the call that led to it fails.

    def decline(self, size: int, stream: int) -> None:
        """This rank would ask for a segment now, but may not have it: for those who make segments
        together.
        """

    def init(self, device: int) -> None:
        """A pool of this device got the source."""

    def reset(self) -> None:
        """The program empties its caches."""

    def set_memory_fraction(self, fraction: float) -> None:
        """The program caps what may be held of the device."""

    def base_allocation(self, address: int, size: int) -> tuple[int, int] | None:
        """The allocation that a segment is part of, as its address and its size, where that is more
        than it.
        """
        return None

    def record_stream(self, address: int, size: int, stream: int) -> None:
        """A block is used on another stream than the one it was made for."""

    def begin_pool(self, pool: tuple[int, int]) -> None:
        """Requests are routed to the pool from now on."""

    def end_pool(self, pool: tuple[int, int]) -> None:
        """They are no longer."""

    def release_pool(self, pool: tuple[int, int]) -> None:
        """Nobody uses the pool any more; its segments come back as they become free."""


def ready(source: Source) -> Source:
    """The source, if it is one that can be asked."""
    if not isinstance(source, Source):
        raise TypeError(f"a source is a larder.Source, not {type(source).__name__}")
    if source._alloc is None and type(source).alloc is Source.alloc:
        raise TypeError("the source has no functions: give it alloc and free, or override both")
    return source


def check_source(source: Source) -> int:
    """Runs the checks that any source must pass, by itself and under an allocator, and says how
    many there are.

    The source needs at least 64 MiB. A source that breaks a promise is told which by a
    `larder.Error`.
    """
    return _native.check_source(ready(source))
