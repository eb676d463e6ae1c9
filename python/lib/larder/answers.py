"""Why a program ran out of memory, what to set, and how its memory went."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from larder import _native
from larder.errors import UsageError
from larder.settings import Settings, settings_text
from larder.table import Table, frame
from larder.workload import Source, _load, _resized, _room

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Explanation",
    "Outlook",
    "Timeline",
    "Tuning",
    "explain",
    "memory_over_time",
    "outlook",
    "tune",
]


class Explanation:
    """Why a request failed, and what would have helped, found by replaying the program under each
    remedy.
    """

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        self._text = text
        self.data = data
        """Everything that is known, as `larder explain --json` prints it."""

    @property
    def cause(self) -> str:
        """The cause: fragmentation, other_streams, other_pools, memory_fraction, demand and so
        on.
        """
        return str(self.data["cause"]["name"])

    @property
    def why(self) -> str:
        """The cause in words, with its numbers."""
        return str(self.data["cause"]["text"])

    @property
    def is_proven(self) -> bool:
        """Whether a replay without the cause gets past the failure."""
        return bool(self.data["cause"]["proven"])

    @property
    def needs_memory(self) -> bool:
        """Whether nothing helps but a larger card or a smaller batch."""
        return bool(self.data["needs_memory"])

    @property
    def best(self) -> dict[str, Any] | None:
        """The remedy that costs least of those with which the program runs."""
        best: dict[str, Any] | None = self.data["best"]
        return best

    @property
    def line(self) -> str | None:
        """What to set in the environment for it, if it is something to set."""
        return None if self.best is None else self.best["set"]

    def records(self) -> list[dict[str, Any]]:
        """The remedies that were tried, what helps first."""
        return list(self.data["remedies"])

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame, where pandas is installed."""
        return frame(self.records())

    def table(self) -> Table:
        """The remedies, side by side."""
        rows = [
            [
                remedy["words"],
                _verdict(remedy),
                _native.format_size(remedy["peak_reserved_bytes"]),
                str(remedy["retries"]),
                f"{remedy['driver_ns'] / 1e6:.1f} ms",
            ]
            for remedy in self.records()
        ]
        return Table(["with", "the program", "peak reserved", "retries", "driver time"], rows)

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        best = "nothing" if self.best is None else self.best["words"]
        return f"<larder.Explanation: {self.cause}; what helps: {best}>"

    def _repr_html_(self) -> str:
        set_line = "" if self.line is None else f"<pre>{_escaped(self.line)}</pre>"
        return f"<p><b>Why:</b> {_escaped(self.why)}</p>{self.table()._repr_html_()}{set_line}"


class Outlook:
    """How near a program came to failing that did not fail, what it holds and does not use, and the
    setting with which a replay does best.
    """

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        self._text = text
        self.data = data
        """Everything that is known, as `larder explain --json` prints it where nothing failed."""

    @property
    def near_failures(self) -> list[dict[str, Any]]:
        """The requests that were met only when the cache had been given back."""
        return list(self.data["near_failures"])

    @property
    def best(self) -> dict[str, Any] | None:
        """What a replay did best with, if with anything better."""
        best: dict[str, Any] | None = self.data["best"]
        return best

    @property
    def line(self) -> str | None:
        """What to set in the environment for it."""
        return None if self.best is None else self.best["set"]

    def records(self) -> list[dict[str, Any]]:
        """The near failures."""
        return self.near_failures

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame, where pandas is installed."""
        return frame(self.records())

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        best = "nothing" if self.best is None else self.best["words"]
        return f"<larder.Outlook: {len(self.near_failures)} near failures; what helps: {best}>"


def _verdict(remedy: dict[str, Any]) -> str:
    verdict, least = remedy["verdict"], remedy["runs_from_bytes"]
    if verdict == "depends" and least is not None:
        return f"runs from {_native.format_size(least)} on"
    return str(verdict).replace("_", " ").replace("depends", "depends on the cap")


class Tuning(Sequence[dict[str, Any]]):
    """The best settings that were found, best first."""

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        self._text = text
        self.data = data
        """Everything that is known, as `larder tune --json` prints it."""

    @property
    def line(self) -> str | None:
        """What to set in the environment for the first; None if that is the default."""
        return self.data["choices"][0]["set"] if self.data["choices"] else None

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        found: dict[str, Any] | list[dict[str, Any]] = self.data["choices"][index]
        return found

    def __len__(self) -> int:
        return len(self.data["choices"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.data["choices"])

    def records(self) -> list[dict[str, Any]]:
        """The choices as dictionaries."""
        return list(self)

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame, where pandas is installed."""
        return frame(self.records())

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        first = self[0]["conf"] or "(default)" if len(self) else "nothing"
        return f"<larder.Tuning: {first} of {self.data['tried']} that were tried>"

    def _repr_html_(self) -> str:
        def saved(choice: dict[str, Any]) -> str:
            saved_bytes = choice["saved_bytes"]
            if saved_bytes is None:
                return "-"
            return ("-" if saved_bytes < 0 else "") + _native.format_size(abs(saved_bytes))

        rows = [
            [
                choice["conf"] or "(default)",
                _native.format_size(choice["peak_reserved_bytes"]),
                saved(choice),
                str(choice["retries"]),
                str(choice["ooms"]),
                f"{choice['driver_ns'] / 1e6:.1f} ms",
            ]
            for choice in self
        ]
        headings = ["settings", "peak reserved", "saved", "retries", "out of memory", "driver time"]
        set_line = "" if self.line is None else f"<pre>{_escaped(self.line)}</pre>"
        return Table(headings, rows)._repr_html_() + set_line


class Timeline:
    """How much memory was asked for, in use and held, from the first operation to the last."""

    def __init__(
        self, name: str, stretches: list[tuple[int, int, int, int, bool]], svg: str
    ) -> None:
        self.name = name
        """What was run."""
        self._stretches = stretches
        self._svg = svg

    @property
    def svg(self) -> str:
        """The picture, as a file that stands by itself."""
        return self._svg

    def records(self) -> list[dict[str, Any]]:
        """The most of each in each stretch."""
        keys = ("operation", "allocated_bytes", "active_bytes", "reserved_bytes", "has_failure")
        return [dict(zip(keys, (stretch[0] + 1, *stretch[1:]))) for stretch in self._stretches]

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame, where pandas is installed."""
        return frame(self.records())

    def _repr_svg_(self) -> str:
        return self._svg

    def __repr__(self) -> str:
        return f"<larder.Timeline of {self.name}: {len(self._stretches)} stretches>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def explain(
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
    failure: int | None = None,
    scale: int = 1,
    jitter: float | str | None = None,
) -> Explanation | None:
    """Says why a request failed and what would have helped; None if nothing failed, of which
    `outlook` tells.

    failure
        Which of the requests that fail, counted from 1. Without it the first; of a snapshot that
        Larder wrote when a request failed, that one.

    The other arguments are those of `replay`.
    """
    workload, name = _load(source, device)
    workload = _resized(workload, scale, jitter)
    text = None if settings is None else settings_text(settings)
    room = _room(memory, card, cap, error)
    found = _native.explain(workload, name, policy, text, room, addresses, failure)
    return None if found is None else Explanation(found[0], json.loads(found[1]))


def outlook(
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
    scale: int = 1,
    jitter: float | str | None = None,
) -> Outlook | None:
    """Says how near a program came to failing that did not fail, what it holds and does not use,
    and what would be better; None if a request failed, of which `explain` tells.

    The arguments are those of `replay`.
    """
    workload, name = _load(source, device)
    workload = _resized(workload, scale, jitter)
    text = None if settings is None else settings_text(settings)
    room = _room(memory, card, cap, error)
    found = _native.outlook(workload, name, policy, text, room, addresses)
    return None if found is None else Outlook(found[0], json.loads(found[1]))


def tune(
    source: Source,
    *,
    policy: str | None = None,
    memory: int | str | None = None,
    card: float | str | None = None,
    cap: int | str | None = None,
    error: str | BaseException | None = None,
    device: int = 0,
    addresses: str = "recorded",
    seconds: float = 20.0,
    scale: int = 1,
    jitter: float | str | None = None,
) -> Tuning:
    """Searches the settings with which it holds least, on all cores, for no longer than `seconds`.

    memory
        What it is to run on. Settings with which it does not run there come last.

    The other arguments are those of `replay`.
    """
    if not seconds > 0:
        raise UsageError(f"seconds: {seconds} is no time to search in")
    workload, name = _load(source, device)
    workload = _resized(workload, scale, jitter)
    room = _room(memory, card, cap, error)
    text, data = _native.tune_settings(workload, name, policy, room, addresses, seconds)
    return Tuning(text, json.loads(data))


def memory_over_time(
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
    stretches: int = 800,
    scale: int = 1,
    jitter: float | str | None = None,
) -> Timeline:
    """Replays it and tells how its memory went, in no more than so many stretches of equal length.

    The other arguments are those of `replay`.
    """
    workload, name = _load(source, device)
    workload = _resized(workload, scale, jitter)
    text = None if settings is None else settings_text(settings)
    found = _native.memory_over_time(
        workload, name, policy, text, _room(memory, card, cap, error), addresses, stretches
    )
    return Timeline(name, *found)
