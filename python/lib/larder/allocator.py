"""Allocators: PyTorch's decisions about memory, on a simulated GPU or a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from larder import _native
from larder.errors import AddressError, OutOfMemoryError
from larder.settings import Settings, memory_bytes, settings_text
from larder.snapshot import Snapshot
from larder.source import Position, Source, ready
from larder.table import Table

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Allocator", "Block", "Pool"]


class Block:
    """Bytes that are freed when the block is closed, or at the end of its `with`.

    >>> allocator = Allocator()
    >>> with allocator.alloc(1 << 20) as block:
    ...     allocator.memory_allocated()
    1048576
    >>> allocator.memory_allocated()
    0
    """

    def __init__(self, allocator: Allocator, address: int, size: int, stream: int) -> None:
        self._allocator = allocator
        self._address: int | None = address
        self._size = size
        self._stream = stream

    @property
    def address(self) -> int:
        """Where the bytes are."""
        if self._address is None:
            raise AddressError("the block is freed")
        return self._address

    @property
    def size(self) -> int:
        """How many bytes were asked for."""
        return self._size

    @property
    def stream(self) -> int:
        """The stream on which the block was handed out."""
        return self._stream

    def record_stream(self, stream: int) -> None:
        """The bytes are used on this stream too; see `Allocator.record_stream`."""
        self._allocator.record_stream(self.address, stream)

    def free(self) -> None:
        """Gives the bytes back. Doing so again does nothing."""
        if self._address is not None:
            self._allocator.free(self._address)
            self._address = None

    def __enter__(self) -> Block:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.free()

    def __repr__(self) -> str:
        if self._address is None:
            return "<larder.Block, freed>"
        size = _native.format_size(self._size)
        return f"<larder.Block at {self._address:#x}: {size} on stream {self._stream}>"


class Pool:
    """Memory set apart: inside `with pool:`, all requests of the thread are served from it.

    What it has cached serves nobody else. When the pool is gone its cached memory goes back; what
    is still live stays good.

    >>> allocator = Allocator()
    >>> pool = allocator.new_pool()
    >>> with pool:
    ...     address = allocator.malloc(1 << 20)
    >>> pool.stats()["allocated_bytes"]
    1048576
    >>> layout = pool.checkpoint()
    >>> allocator.free(address)
    >>> freed, created = pool.restore(layout)
    >>> created == [address]
    True
    """

    def __init__(self, native: _native.Pool) -> None:
        self._native = native

    @property
    def id(self) -> tuple[int, int]:
        """Its name, as snapshots show it."""
        return self._native.id

    def __enter__(self) -> Pool:
        self._native.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._native.__exit__(kind, error, traceback)

    def stats(self) -> dict[str, int]:
        """What it holds."""
        return self._native.stats()

    def snapshot(self) -> Snapshot:
        """Its segments and blocks."""
        return Snapshot._of(self._native.take_snapshot(), "pool")

    def set_use_on_oom(self, on: bool) -> None:
        """Whether it lends its free blocks to requests that would run out of memory."""
        self._native.set_use_on_oom(on)

    def set_no_split(self) -> None:
        """Its blocks are never split from now on."""
        self._native.set_no_split()

    def checkpoint(self) -> _native.Checkpoint:
        """Saves its layout: which blocks there are, and which of them are live."""
        return self._native.checkpoint()

    def restore(self, checkpoint: _native.Checkpoint) -> tuple[list[int], list[int]]:
        """Puts a layout back: the addresses that were live before, and those that are live now."""
        return self._native.restore(checkpoint)

    def has_live(self, addresses: list[int]) -> bool:
        """Whether exactly these of its blocks are live."""
        return self._native.has_live(addresses)

    def source_counts(self) -> dict[str, int] | None:
        """What its source was asked for so far, by the allocator's own books; none if it has no
        source of its own.
        """
        return self._native.source_counts()

    def position_of(self, address: int) -> Position:
        """Where a live block lies in a symmetric pool: the same on every rank that made the same
        calls.
        """
        return Position(*self._native.position_of(address))

    def sequence(self) -> tuple[int, int]:
        """How many calls a symmetric pool has seen, its making included, and their hash."""
        return self._native.sequence()

    def segments(self) -> list[tuple[int, int, int]]:
        """The segments of a symmetric pool in order: the number, the address and the size of
        each.
        """
        return self._native.segments()

    def trim(self) -> int:
        """Gives back the segments of a symmetric pool in which there is no block, and says how
        many.

        This is a call that all ranks have to make.
        """
        return self._native.trim()

    def seal(self, exchange: Callable[[bytes], list[bytes]]) -> int:
        """Compares the calls of all ranks of a symmetric pool, and says how many there are.

        Each rank calls this at the same point. `exchange` gives the bytes that this rank says to
        all, and returns what each of them said, in the order of the ranks, this one included. If
        the calls differ, every rank gets the same `DivergenceError`, which names the first that
        does.
        """
        return self._native.seal(exchange)

    def __repr__(self) -> str:
        return repr(self._native)


class Allocator(_native.Allocator):
    """A caching allocator for one GPU.

    Memory is handed out on a stream and, once freed, handed out again on that stream at once. Use
    on another stream is told by `record_stream`. Streams are numbers; 0 is the default stream.

    device
        `sim:80GiB` for a simulated GPU, `cuda:0` for a real one. Without it, what LARDER_DEVICE
        says, or else a simulated GPU with 80 GiB.
    memory
        How much memory the simulated GPU has: a number of bytes or a text such as `"24GiB"`.
    policy
        Who decides: `larder`; `tight`, which holds hardly more than what is in use; or `torch-2.11`
        to `torch-2.15` exactly as that PyTorch does.
    settings
        As in PYTORCH_CUDA_ALLOC_CONF, with our own keys: a text or a dictionary. Without it, what
        the environment says; `""` for none.

    >>> allocator = Allocator(memory="8GiB", settings={"expandable_segments": True})
    >>> address = allocator.malloc(300_000)
    >>> allocator.free(address)
    >>> allocator.memory_reserved()
    2097152
    """

    def __new__(
        cls,
        device: str | None = None,
        *,
        memory: int | str | None = None,
        policy: str | None = None,
        settings: Settings | None = None,
    ) -> Self:
        size = None if memory is None else memory_bytes(memory)
        text = None if settings is None else settings_text(settings)
        return super().__new__(cls, device, size, policy, text)

    def alloc(self, size: int, stream: int = 0) -> Block:
        """Memory that frees itself at the end of a `with`."""
        return Block(self, self.malloc(size, stream), size, stream)

    def configure(self, settings: Settings) -> None:
        """Changes settings while running: a text or a dictionary. What cannot be read changes
        nothing.
        """
        super().configure(settings_text(settings))

    def new_pool(self, source: Source | None = None) -> Pool:
        """A new private pool, whose segments come from a source of its own if there is one."""
        return Pool(
            self._new_pool() if source is None else self._new_pool_with_source(ready(source))
        )

    def symmetric_pool(self, source: Source, *, growth: int = 0) -> Pool:
        """A new symmetric pool: where a block lies follows from the sequence of requests and frees
        in it alone.

        Ranks that make the same calls have every block in the same segment at the same offset;
        `Pool.seal` proves it. Segments come from the source and have at least `growth` bytes.

        >>> allocator = Allocator()
        >>> source = Source(lambda size, stream: 1 << 40, lambda *segment: None)
        >>> pool = allocator.symmetric_pool(source)
        >>> with pool:
        ...     first, second = allocator.malloc(1000), allocator.malloc(1000)
        >>> pool.position_of(second)
        Position(segment=0, offset=1024, generation=2)
        >>> pool.seal(lambda said: [said])
        3
        """
        return Pool(self._new_symmetric_pool(ready(source), growth))

    # What it holds, by the names that `torch.cuda` has.

    def memory_allocated(self) -> int:
        """Bytes that are live."""
        return self.memory_stats()["allocated_bytes.all.current"]

    def max_memory_allocated(self) -> int:
        """The most bytes that were live at once."""
        return self.memory_stats()["allocated_bytes.all.peak"]

    def memory_reserved(self) -> int:
        """Bytes that are held of the device."""
        return self.memory_stats()["reserved_bytes.all.current"]

    def max_memory_reserved(self) -> int:
        """The most bytes that were held of the device at once."""
        return self.memory_stats()["reserved_bytes.all.peak"]

    def stats(self) -> Table:
        """The statistics that people look at first, as a table."""
        return Table.of_stats(self.memory_stats())

    # What happened.

    def snapshot(self, *, traces: bool = True) -> Snapshot:
        """All segments and blocks, and what `record_history` remembers.

        >>> allocator = Allocator()
        >>> allocator.record_history()
        >>> allocator.free(allocator.malloc(1000))
        >>> [entry["action"] for entry in allocator.snapshot().trace()]
        ['segment_map', 'alloc', 'free_requested', 'free_completed']
        """
        return Snapshot._of(self._take_snapshot(traces), "allocator")

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """A part of the program, by name, in the history."""
        self._annotate(name, True)
        try:
            yield
        finally:
            self._annotate(name, False)

    def on_out_of_memory(self, observer: Callable[[OutOfMemoryError], object]) -> None:
        """Calls `observer(error)` for every request that cannot be met, before it is raised."""
        if not callable(observer):
            raise TypeError(
                f"an observer is called with the error, and {observer!r} cannot be called"
            )
        self._on_out_of_memory(observer)

    def __repr__(self) -> str:
        stats = self.memory_stats()
        allocated = _native.format_size(max(0, stats["allocated_bytes.all.current"]))
        reserved = _native.format_size(max(0, stats["reserved_bytes.all.current"]))
        return (
            f"<larder.Allocator on {self.device}, policy {self.policy}: "
            f"{allocated} allocated, {reserved} reserved>"
        )

    def _repr_html_(self) -> str:
        return self.stats()._repr_html_()
