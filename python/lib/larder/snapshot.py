"""Memory snapshots: what `torch.cuda.memory._dump_snapshot` writes, and what our allocators
show.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Union

from larder import _native
from larder.errors import UsageError
from larder.table import Table, frame

if TYPE_CHECKING:
    import pandas

__all__ = ["Snapshot"]

_PathLike = Union[str, "os.PathLike[str]"]


class Snapshot:
    """The segments of a program at one moment, and what happened before.

    It is read from a file (a pickle, JSON or a tape; gzipped or not), or from the dictionary that
    `torch.cuda.memory._snapshot()` gives.

    >>> from larder import Allocator
    >>> allocator = Allocator()
    >>> allocator.record_history()
    >>> address = allocator.malloc(3 << 20)
    >>> snapshot = allocator.snapshot()
    >>> snapshot
    <larder.Snapshot of allocator: 1 segment, 20.00 MiB reserved, 3.00 MiB live, 2 entries>
    >>> snapshot.segments[0]["blocks"][0]["state"]
    'active_allocated'
    """

    def __init__(self, source: _PathLike | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        if isinstance(source, (str, os.PathLike)):
            # A file that is not there is told in the words that Python has for it.
            os.stat(source)
            self._native = _native.Snapshot.load(source)
            self._name = os.path.basename(os.fspath(source))
        elif isinstance(source, (Mapping, Sequence)) and not isinstance(source, (bytes, bytearray)):
            plain = dict(source) if isinstance(source, Mapping) else list(source)
            self._native = _native.Snapshot.unpickle(_pickled(plain))
            self._name = "program"
        else:
            raise TypeError(
                f"a snapshot is a file's path or a dictionary, not {type(source).__name__}"
            )

    @classmethod
    def _of(cls, native: _native.Snapshot, name: str) -> Snapshot:
        snapshot = cls.__new__(cls)
        snapshot._native = native
        snapshot._name = name
        return snapshot

    @classmethod
    def load(cls, path: _PathLike) -> Snapshot:
        """Reads a file."""
        return cls(path)

    @property
    def name(self) -> str:
        """What it is called in reports: the name of its file."""
        return self._name

    @property
    def device_count(self) -> int:
        """How many devices there are traces for."""
        return self._native.device_count

    @property
    def settings(self) -> str | None:
        """The settings of the recorded allocator, if the snapshot has them."""
        return self._native.settings

    @cached_property
    def _whole(self) -> dict[str, Any]:
        # Our own writer made the bytes, and they hold plain data alone.
        whole = pickle.loads(self._native.pickle())
        return whole if isinstance(whole, dict) else {"segments": whole}

    def to_dict(self) -> dict[str, Any]:
        """Everything, in the form of `torch.cuda.memory._snapshot()`."""
        copy: dict[str, Any] = pickle.loads(pickle.dumps(self._whole))
        return copy

    @property
    def segments(self) -> list[dict[str, Any]]:
        """All segments with their blocks, with PyTorch's keys."""
        segments: list[dict[str, Any]] = self._whole.get("segments", [])
        return segments

    def trace(self, device: int = 0) -> list[dict[str, Any]]:
        """What happened on a device, oldest first, with PyTorch's keys."""
        # It says so if there is no such device.
        if self._native.entry_count(device) == 0:
            return []
        return list(self._whole["device_traces"][device])

    def operations(self, device: int = 0) -> list[str]:
        """What the program asked for, as the lines of an op script."""
        return self._native.workload(device).operations()

    def save(self, path: _PathLike, format: str | None = None, *, device: int = 0) -> None:
        """Writes a file, whole or not at all.

        Its name says the format: `.pickle`, `.json`, `.perfetto.json`, `.ops`, each also with
        `.gz`; or `format` does: `pickle`, `json`, `perfetto`, `ops`. An op script takes one device.
        """
        self._native.save(path, format, device)

    def records(self) -> list[dict[str, Any]]:
        """Every block of every segment at the end as a dictionary, with the segment that it lies
        in.
        """
        return [
            {
                "device": segment.get("device", 0),
                "stream": segment.get("stream", 0),
                "pool": tuple(segment.get("segment_pool_id", (0, 0))),
                "kind": segment.get("segment_type"),
                "segment": segment["address"],
                "segment_bytes": segment["total_size"],
                "address": block["address"],
                "bytes": block["size"],
                "requested_bytes": block.get("requested_size", block["size"]),
                "state": block["state"],
            }
            for segment in self.segments
            for block in segment["blocks"]
        ]

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame, where pandas is installed."""
        return frame(self.records())

    def table(self) -> Table:
        """What each stream has in each pool."""
        lanes: dict[tuple[Any, ...], dict[str, int]] = {}
        for record in self.records():
            lane = (record["device"], record["stream"], record["pool"], record["kind"])
            sums = lanes.setdefault(lane, {})
            sums[record["state"]] = sums.get(record["state"], 0) + record["bytes"]
        rows = []
        for (device, stream, pool, kind), sums in sorted(lanes.items(), key=str):
            private = "" if pool == (0, 0) else f", private pool {pool}"
            free, live = sums.get("inactive", 0), sums.get("active_allocated", 0)
            sizes = (sum(sums.values()), live, sum(sums.values()) - free - live, free)
            rows.append(
                [
                    f"device {device}, stream {stream}, {kind}{private}",
                    *map(_native.format_size, sizes),
                ]
            )
        return Table(["stream and pool", "held", "live", "waiting", "free"], rows)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __repr__(self) -> str:
        count, reserved, live = self._native.sizes()
        entries = sum(self._native.entry_count(device) for device in range(self.device_count))
        return (
            f"<larder.Snapshot of {self._name}: {_counted(count, 'segment')}, "
            f"{_native.format_size(reserved)} reserved, {_native.format_size(live)} live, "
            f"{_counted(entries, 'entry', 'entries')}>"
        )


class _PlainPickler(pickle.Pickler):
    """Writes plain data, which is all that a snapshot is made of."""

    def reducer_override(self, thing: object) -> NoReturn:
        kind = type(thing).__name__
        raise UsageError(
            f"a snapshot is made of plain data, and something in this one is of the type {kind}"
        )


def _pickled(plain: object) -> bytes:
    out = io.BytesIO()
    try:
        _PlainPickler(out, protocol=4).dump(plain)
    except RecursionError:
        raise UsageError("a snapshot is not nested as deeply as this dictionary") from None
    return out.getvalue()


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"1 {one}" if number == 1 else f"{number} {many or one + 's'}"
