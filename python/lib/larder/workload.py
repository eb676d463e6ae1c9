"""What a recorded program needs: replays, comparisons and the smallest device, on a simulated
GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union, overload

from larder import _native, progress
from larder.errors import UsageError
from larder.settings import Settings, memory_bytes, settings_text
from larder.snapshot import Snapshot
from larder.table import Table, frame

if TYPE_CHECKING:
    import pandas

__all__ = ["Comparison", "Fit", "Pass", "Replay", "compare", "fit", "replay"]

Source = Union[str, "os.PathLike[str]", Snapshot]
"""An op script or a snapshot: its file, or a `Snapshot`."""


class Pass(NamedTuple):
    """One of the times for which a program was run."""

    peak_active_bytes: int
    """The most bytes that were live, or still awaited by a stream, at once, from the first pass
    on.
    """
    peak_reserved_bytes: int
    """The most bytes that were held of the device at once, from the first pass on."""
    ooms: int
    """How many allocations of this pass failed."""
    driver_seconds: float
    """What the calls of this pass for memory would have cost, those at its end included."""
    driver_calls: int
    """How many such calls there were."""

    @property
    def overhead(self) -> float:
        """Peak reserved over peak active bytes: 1 is no waste."""
        return self.peak_reserved_bytes / self.peak_active_bytes if self.peak_active_bytes else 1.0


class Replay:
    """What came of one run."""

    def __init__(self, native: _native.Outcome, name: str, operations: int) -> None:
        self._native = native
        self.name = name
        """What was run."""
        self.operation_count = operations
        """How many operations it has."""

    @property
    def policy(self) -> str:
        """Who decided."""
        return self._native.policy

    @property
    def settings(self) -> str:
        """The settings, as a text."""
        return self._native.settings

    @property
    def is_recorded(self) -> bool:
        """In a comparison: whether these are the settings that the program was recorded with."""
        return self._native.is_recorded

    @property
    def remark(self) -> str | None:
        """In a comparison: why the settings could make no difference, if they could not."""
        return self._native.remark

    @property
    def device_bytes(self) -> int:
        """How much memory the GPU had."""
        return self._native.device_memory

    @property
    def memory_stats(self) -> dict[str, int]:
        """The statistics at the end, with every key of `torch.cuda.memory_stats()`."""
        return self._native.memory_stats()

    @property
    def peak_allocated_bytes(self) -> int:
        """The most bytes that were live at once."""
        return self.memory_stats["allocated_bytes.all.peak"]

    @property
    def peak_active_bytes(self) -> int:
        """The most bytes that were live, or still awaited by a stream, at once."""
        return self.memory_stats["active_bytes.all.peak"]

    @property
    def peak_reserved_bytes(self) -> int:
        """The most bytes that were held of the device at once."""
        return self.memory_stats["reserved_bytes.all.peak"]

    @property
    def overhead(self) -> float:
        """Peak reserved over peak active bytes: 1 is no waste."""
        return self._native.overhead

    @property
    def retries(self) -> int:
        """How often the cache was given back to make room."""
        return self.memory_stats["num_alloc_retries"]

    @property
    def ooms(self) -> int:
        """How many allocations failed."""
        return self._native.ooms

    @property
    def first_oom(self) -> str | None:
        """What the first that failed said."""
        return self._native.first_oom

    @property
    def device_calls(self) -> dict[str, int]:
        """How often each call reached the device."""
        return self._native.device_calls()

    @property
    def driver_seconds(self) -> float:
        """What the calls for memory would have cost on the GPU that `larder replay` names."""
        return self._native.driver[0][0] / 1e9

    @property
    def driver_calls(self) -> int:
        """How many such calls there were."""
        return self._native.driver[0][1]

    @property
    def driver_seconds_last_third(self) -> float:
        """What those of them cost that came in the last third of the operations."""
        return self._native.driver[1][0] / 1e9

    @property
    def driver_calls_last_third(self) -> int:
        """How many of them came in the last third of the operations."""
        return self._native.driver[1][1]

    @property
    def passes(self) -> list[Pass]:
        """The times for which it was run, one after the other."""
        return [
            Pass(active, reserved, ooms, ns / 1e9, calls)
            for active, reserved, ooms, ns, calls in self._native.passes
        ]

    @property
    def elapsed_seconds(self) -> float:
        """How long the operations took."""
        return self._native.elapsed_seconds

    def record(self) -> dict[str, Any]:
        """What came of it, as one dictionary: the figures first, and every key of
        `memory_stats`.
        """
        figures: dict[str, Any] = {
            "name": self.name,
            "policy": self.policy,
            "settings": self.settings,
            "device_bytes": self.device_bytes,
            "overhead": self.overhead,
            "retries": self.retries,
            "ooms": self.ooms,
            "driver_seconds": self.driver_seconds,
            "driver_calls": self.driver_calls,
        }
        return figures | self.memory_stats

    def __str__(self) -> str:
        return self._native.summary.rstrip("\n")

    def __repr__(self) -> str:
        reserved = _native.format_size(max(0, self.peak_reserved_bytes))
        return (
            f"<larder.Replay of {self.name}: {self.operation_count} operations, "
            f"{reserved} reserved at the peak, overhead {self.overhead:.3f}, {self.ooms} out of "
            f"memory>"
        )

    def _repr_html_(self) -> str:
        return Table.of_stats(self.memory_stats)._repr_html_()


class Comparison(Sequence[Replay]):
    """One run for each of several settings, in the order in which they were given.

    The settings that the program was recorded with come last, if they are none of the others.
    """

    def __init__(self, runs: Iterable[Replay], summary: str) -> None:
        self._runs = list(runs)
        self._summary = summary

    @property
    def best(self) -> Replay | None:
        """The run that reserved least of those that did not run out of memory; None if all of them
        did.
        """
        if not self._runs:
            raise UsageError("no run is the best of none")
        ran = [run for run in self._runs if run.ooms == 0]
        return min(ran, key=lambda run: run.peak_reserved_bytes, default=None)

    @overload
    def __getitem__(self, index: int) -> Replay: ...
    @overload
    def __getitem__(self, index: slice) -> list[Replay]: ...
    def __getitem__(self, index: int | slice) -> Replay | list[Replay]:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Replay]:
        return iter(self._runs)

    def records(self) -> list[dict[str, Any]]:
        """The runs as dictionaries: `pandas.DataFrame(comparison.records())` makes a data frame of
        them.
        """
        return [run.record() for run in self._runs]

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame, where pandas is installed."""
        return frame(self.records())

    def table(self) -> Table:
        """The runs side by side."""
        headings = [
            "settings",
            "peak allocated",
            "peak active",
            "peak reserved",
            "overhead",
            "retries",
            "out of memory",
            "driver time",
        ]
        rows = [
            [
                (run.settings or "(default)") + (" [as recorded]" if run.is_recorded else ""),
                _native.format_size(max(0, run.peak_allocated_bytes)),
                _native.format_size(max(0, run.peak_active_bytes)),
                _native.format_size(max(0, run.peak_reserved_bytes)),
                f"{run.overhead:.3f}",
                str(run.retries),
                str(run.ooms),
                f"{run.driver_seconds * 1e3:.1f} ms",
            ]
            for run in self._runs
        ]
        return Table(headings, rows)

    def __str__(self) -> str:
        return self._summary.rstrip("\n")

    def __repr__(self) -> str:
        best = self.best if self._runs else None
        said = (
            f", best: {best.settings or '(default)'}"
            if best
            else ", none of which ran"
            if self._runs
            else ""
        )
        return f"<larder.Comparison of {len(self)} settings{said}>"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class Fit:
    """The smallest device on which a program runs.

    The CUDA context, other libraries and other processes come on top.
    """

    def __init__(
        self,
        memory: tuple[int | None, int | None, int | None],
        retries: int,
        calm: int | None,
        peak_active: int,
        summary: str,
    ) -> None:
        smallest, off, refusals = memory
        self.memory_with_sizes_off_bytes, self.memory_with_refusals_bytes = off, refusals
        self.memory_bytes = smallest
        """The smallest memory that was seen to suffice; None if even what was given does not. With
        sizes 1 % off it was seen to need up to `memory_with_sizes_off_bytes`. Where requests that
        were refused when it was recorded may be refused again, `memory_with_refusals_bytes` is
        enough, where that is less.
        """
        self.retries = retries
        """How often the cache is given back there to try again, which costs time."""
        self.memory_without_retries_bytes = calm
        """The smallest memory that was seen to suffice without that; None if even what was given
        does not.
        """
        self.peak_active_bytes = peak_active
        """The most that was in use at once."""
        self._summary = summary

    @property
    def ratio(self) -> float | None:
        """The memory over what was in use at the peak."""
        if self.memory_bytes is None or self.peak_active_bytes == 0:
            return None
        return self.memory_bytes / self.peak_active_bytes

    def __str__(self) -> str:
        return self._summary.rstrip("\n")

    def __repr__(self) -> str:
        return f"<larder.Fit: {self._summary.splitlines()[0]}>"

    def _repr_html_(self) -> str:
        memory = (
            "does not run" if self.memory_bytes is None else _native.format_size(self.memory_bytes)
        )
        calm = self.memory_without_retries_bytes
        rows = [
            ["smallest memory", memory],
            ["retries there", str(self.retries)],
            ["without retries", "-" if calm is None else _native.format_size(calm)],
            ["peak active", _native.format_size(self.peak_active_bytes)],
        ]
        return Table(["fit", ""], rows)._repr_html_()


def _load(source: Source, device: int) -> tuple[_native.Workload, str]:
    progress.arrange()
    if isinstance(source, Snapshot):
        return source._native.workload(device), source.name
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            "what is run is the path of a script or a snapshot, or a larder.Snapshot, which "
            "takes a program's "
            f"dictionary; not {type(source).__name__}"
        )
    # A file that is not there is told in the words that Python has for it.
    os.stat(source)
    return _native.Workload.load(source, device), os.path.basename(os.fspath(source))


def _resized(
    workload: _native.Workload, scale: int, jitter: float | str | None
) -> _native.Workload:
    if scale == 1 and jitter is None:
        return workload
    return workload.resized(str(scale), None if jitter is None else str(jitter))


def _memory(memory: int | str | None) -> int | None:
    return None if memory is None else memory_bytes(memory)


def _room(
    memory: int | str | None,
    card: float | str | None,
    cap: int | str | None,
    error: str | BaseException | None,
) -> tuple[int | None, str | None, int | None, str | None]:
    texts = [None if said is None else str(said) for said in (card, error)]
    return _memory(memory), texts[0], _memory(cap), texts[1]


def replay(
    source: Source,
    *,
    policy: str | None = None,
    memory: int | str | None = None,
    card: float | str | None = None,
    cap: int | str | None = None,
    error: str | BaseException | None = None,
    settings: Settings | None = None,
    device: int = 0,
    addresses: str = "recorded",
    passes: int = 1,
    scale: int = 1,
    jitter: float | str | None = None,
) -> Replay:
    """Runs a script or a recorded program on a simulated GPU, and says what it needed.

    source
        An op script (.ops), a memory snapshot (.pickle, .json, .tape; packed or not), or a
        `Snapshot`.
    policy
        Who decides: `larder`; `tight`, which holds hardly more than what is in use; or `torch-2.11`
        exactly as stock PyTorch 2.11 does. Without it, who decided when the program was recorded;
        of a script, `larder`.
    memory
        So much memory, and all of it for the program. Without it, what the recorded program had,
        if it ran out of memory or nearly did, and the memory fraction that it was under; else
        80 GiB, or a card that has room for all that it held; with `scale` so many times as much.
    card
        The card that it was recorded on, as `"H200"` or `"80GiB"`: a recorded memory fraction is a
        part of it. Not with `memory`.
    cap
        So much of the memory for the program, where it was under a cap.
    error
        PyTorch's out-of-memory error, or a log with it: it says how much the card has and how much
        the program was allowed.
    settings
        As in PYTORCH_CUDA_ALLOC_CONF: a text or a dictionary. Without them, those that the program
        was recorded with; `""` is none.
    device
        Which device's trace to take from a snapshot.
    addresses
        Which addresses a snapshot's segments get: those of the `recorded` GPU, or the `lowest`.
        With other sizes they are the lowest.
    passes
        How many times over it is run in one process. After each time, unless there is but one,
        everything is freed but what the allocator has cached.
    scale
        How many times as large every size is made, a whole number.
    jitter
        By up to how many per cent every size is changed, the same size always to the same: 3, or
        `"3:7"` with a seed.
    """
    workload, name = _load(source, device)
    workload = _resized(workload, scale, jitter)
    text = None if settings is None else settings_text(settings)
    room = _room(memory, card, cap, error)
    outcome = workload.replay(name, policy, text, room, addresses, passes)
    return Replay(outcome, name, len(workload))


def compare(
    source: Source,
    settings: Settings | Iterable[Settings] | None = None,
    *,
    policy: str | None = None,
    memory: int | str | None = None,
    card: float | str | None = None,
    cap: int | str | None = None,
    error: str | BaseException | None = None,
    device: int = 0,
    addresses: str = "recorded",
    scale: int = 1,
    jitter: float | str | None = None,
) -> Comparison:
    """Runs it under several settings, side by side; without any, under those that people try first.

    A recording is run under the settings that it was recorded with too, if they are none of the
    others; and, if it was held to a memory fraction, without that.

    policy
        Who decides, in all runs.

    settings
        A list of texts or dictionaries, each for one run. A text or a dictionary alone is for one
        run too.

    The other arguments are those of `replay`, without `passes`.
    """
    if settings is None:
        confs: list[str] | None = None
    elif isinstance(settings, (str, Mapping)):
        confs = [settings_text(settings)]
    elif isinstance(settings, Iterable):
        confs = [settings_text(one) for one in settings]
    else:
        raise TypeError(
            f"settings are a list of texts or dictionaries, not {type(settings).__name__}"
        )
    workload, name = _load(source, device)
    workload = _resized(workload, scale, jitter)
    room = _room(memory, card, cap, error)
    outcomes, summary = workload.compare(name, policy, confs, room, addresses)
    runs = [Replay(outcome, name, len(workload)) for outcome in outcomes]
    return Comparison(runs, summary)


def fit(
    source: Source,
    *,
    policy: str | None = None,
    memory: int | str | None = None,
    settings: Settings | None = None,
    device: int = 0,
    addresses: str = "recorded",
    passes: int = 1,
    scale: int = 1,
    jitter: float | str | None = None,
) -> Fit:
    """Finds the smallest memory, up to `memory`, on which it runs with no out-of-memory.

    The arguments are those of `replay`, but that without `memory` it is 80 GiB, or four times what
    the recorded program had, if that is more; and that no recorded memory fraction holds.
    """
    workload, name = _load(source, device)
    workload = _resized(workload, scale, jitter)
    text = None if settings is None else settings_text(settings)
    found = workload.fit(name, policy, text, _room(memory, None, None, None), addresses, passes)
    return Fit(*found)
