"""Many recordings: the ranks of a program, and what grew from one recording to another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Union

from larder import _native, progress
from larder.settings import Settings, settings_text
from larder.table import Table, frame
from larder.workload import Source, _load, _room

if TYPE_CHECKING:
    import pandas

__all__ = ["Difference", "Ranks", "diff", "ranks"]

_Path = Union[str, "os.PathLike[str]"]


class Ranks:
    """What there is to say of all ranks of a program."""

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        self._text = text
        self.data = data
        """Everything that is known, as `larder explain DIR --json` prints it."""

    @property
    def verdict(self) -> str:
        """Who is worst and who differs, in a few sentences."""
        return str(self.data["verdict"])

    @property
    def worst(self) -> str:
        """The name of the rank that fails, or has most in use."""
        return str(self.data["worst"])

    @property
    def odd(self) -> list[dict[str, Any]]:
        """The ranks that differ from the rest of their stages, the furthest first."""
        return list(self.data["odd"])

    @property
    def line(self) -> str | None:
        """What to set in the environment of all ranks, if that helps."""
        line: str | None = self.data["best"]
        return line

    def records(self) -> list[dict[str, Any]]:
        """The ranks as dictionaries."""
        return [{**rank, **rank.get("as_it_is", {})} for rank in self.data["ranks"]]

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame, where pandas is installed."""
        return frame(self.records())

    def __len__(self) -> int:
        return len(self.data["ranks"])

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<larder.Ranks: {self.verdict}>"


class Difference:
    """What a program holds more of in one recording than in another."""

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        self._text = text
        self.data = data
        """Everything that is known, as `larder diff --json` prints it."""

    @property
    def grown_bytes(self) -> int:
        """How much more is held at once at most."""
        return int(self.data["grown_bytes"])

    def records(self) -> list[dict[str, Any]]:
        """The places that hold another amount, what grew most first."""
        return list(self.data["changes"])

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame, where pandas is installed."""
        return frame(self.records())

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<larder.Difference: {self.grown_bytes} bytes more>"

    def _repr_html_(self) -> str:
        rows = [
            [
                change["frames"][0] if change["frames"] else "",
                _native.format_size(change["before_bytes"]),
                _native.format_size(change["after_bytes"]),
            ]
            for change in self.data["changes"]
        ]
        return Table(["where", "before", "after"], rows)._repr_html_()


def ranks(
    source: _Path | Iterable[_Path],
    *,
    policy: str | None = None,
    memory: int | str | None = None,
    card: float | str | None = None,
    cap: int | str | None = None,
    error: str | BaseException | None = None,
    settings: Settings | None = None,
    device: int = 0,
    addresses: str = "recorded",
) -> Ranks:
    """Says which rank of a program is worst, which differs from the rest, where and since when, and
    what would help all.

    source
        A folder with the recordings of all ranks, or their files.

    The other arguments are those of `replay`.
    """
    progress.arrange()
    is_one = isinstance(source, (str, os.PathLike))
    paths: list[_Path] = [source] if is_one else list(source)  # type: ignore[list-item, arg-type]
    for path in paths:
        os.stat(path)
    text = None if settings is None else settings_text(settings)
    room = _room(memory, card, cap, error)
    found = _native.explain_ranks(paths, policy, text, room, addresses, device)
    return Ranks(found[0], json.loads(found[1]))


def diff(before: Source, after: Source, *, device: int = 0) -> Difference:
    """Says what a program holds more of in the second recording than in the first, where, and since
    when.
    """
    one, name = _load(before, device)
    other, other_name = _load(after, device)
    text, data = _native.diff(one, other, (name, other_name))
    return Difference(text, json.loads(data))
