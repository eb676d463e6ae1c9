"""The first page of what came of a dry run."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from larder.dryrun.reads import is_of_program

if TYPE_CHECKING:
    from larder.dryrun.options import Options
    from larder.dryrun.reads import Reads

__all__ = ["Result"]

Entry = dict[str, Any]
MEASURED = ("H200",)
"""The cards that were asked themselves."""
FITTED = "L4,4090,L40S,A100-80,H100,H200"
LINES_MAX = 6
UNMEASURED = (
    "convolutions: cuDNN was seen to choose other plans on a card now and then, so that what is "
    "held may differ by some per cent",
    "events: when work ends is a crude model, so that programs that wait for events "
    "(record_stream) may hold more or less than on a card",
)


def _size(amount: float) -> str:
    for unit, bytes_each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= bytes_each:
            return f"{amount / bytes_each:.2f} {unit}"
    return f"{amount:.0f} bytes"


def _line(entry: Entry) -> str:
    """The program's line that an entry is from, or else a library's."""
    frames = [frame for frame in entry.get("frames", ()) if frame["filename"] != "??"]
    own = [frame for frame in frames if is_of_program(frame["filename"])]
    for frame in own[:1] or frames[:1]:
        name = os.path.relpath(frame["filename"]) if own else os.path.basename(frame["filename"])
        return f"{name}:{frame['line']} ({frame['name']})"
    return "no line of Python, such as a backward pass"


class Device:
    """What one card was asked for."""

    def __init__(self, entries: list[Entry]) -> None:
        self.requests = self.peak_active = self.peak_reserved = 0
        self.failures: list[Entry] = []
        active = reserved = 0
        at, grown = -1, None
        for index, entry in enumerate(entries):
            action, size = entry["action"], entry["size"]
            if action == "alloc":
                self.requests += 1
                active += size
                if active > self.peak_active:
                    self.peak_active, at = active, index
            elif action == "free_completed":
                active -= size
            elif action in ("segment_alloc", "segment_map"):
                reserved += size
                if reserved > self.peak_reserved:
                    self.peak_reserved, grown = reserved, entry
            elif action in ("segment_free", "segment_unmap"):
                reserved -= size
            elif action == "oom":
                self.failures.append(entry)
        self.peak = entries[at] if at >= 0 else None
        self.grown = grown
        self.holders = _holders(entries[: at + 1])


def _holders(entries: list[Entry]) -> Counter[str]:
    """What was in use after these entries, by line."""
    live: dict[int, Entry] = {}
    for entry in entries:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] == "free_completed":
            live.pop(entry["addr"], None)
    held: Counter[str] = Counter()
    lines: dict[int, str] = {}
    for entry in live.values():
        frames = entry.get("frames", ())
        line = lines.get(id(frames)) or lines.setdefault(id(frames), _line(entry))
        held[line] += entry["size"]
    return held


class Result:
    """What came of a run."""

    def __init__(
        self,
        options: Options,
        reads: Reads,
        snapshot: dict[str, Any],
        ended: str | None,
        room: tuple[int, int],
        elapsed_s: float,
    ) -> None:
        self.options, self.reads, self.ended, self.room = options, reads, ended, room
        self.elapsed_s = elapsed_s
        traces = [trace for trace in snapshot["device_traces"] if trace] or [[]]
        self.devices = [Device(trace) for trace in traces]

    @property
    def peak_reserved(self) -> int:
        """What the fullest card held at its peak."""
        return max(device.peak_reserved for device in self.devices)

    @property
    def is_out_of_memory(self) -> bool:
        return any(device.failures for device in self.devices)

    @property
    def is_over(self) -> bool:
        limit = self.options.limit
        return limit is not None and self.peak_reserved > limit

    def exit_code(self, code: int) -> int:
        """That of the run, when the program's own is this."""
        if self.reads.stopped is not None:
            return 5
        if code in (0, 4) and self.is_out_of_memory:
            return 4
        return 3 if code == 0 and self.is_over else code

    def show(self) -> None:
        """Prints it, and what the recording tells of settings and other cards."""
        print("\n".join(self.lines()))
        sys.stdout.flush()
        if self.reads.stopped is None and any(device.requests for device in self.devices):
            self._show_answers()

    def lines(self) -> list[str]:
        """The page as far as it needs no replay."""
        options, (free, total) = self.options, self.room
        memory = f" with {_size(options.memory)}" if options.memory is not None else ""
        lines = [
            "",
            f"{options.name} on {options.card}{memory}, dry: no kernel ran, and what the program "
            f"computed and printed means nothing ({self.elapsed_s:.1f} s)",
        ]
        if self.reads.stopped is not None:
            lines += ["", f"It stopped: {self.reads.stopped}.", "Up to there:"]
        elif self.ended is not None:
            lines += ["", f"It ended {self.ended}."]
        for number, device in enumerate(self.devices):
            which = f"card {number}: " if len(self.devices) > 1 else ""
            lines += ["", *self._device_lines(which, device, free, total)]
        lines += ["", "How sure this is:", *(f"- {reason}" for reason in self._doubts())]
        lines += ["", f"The recording is {options.recording}."]
        return lines

    def _device_lines(self, which: str, device: Device, free: int, total: int) -> list[str]:
        if device.peak is None:
            return [f"{which}it asked for no memory of the card"]
        verdict = "it runs out of memory" if device.failures else "it fits"
        lines = [
            f"{which}{_size(device.peak_active)} ({device.peak_active} bytes) in use at the peak, "
            f"{_size(device.peak_reserved)} ({device.peak_reserved} bytes) held, in "
            f"{device.requests} requests, of {_size(free)} that the card has for it "
            f"({_size(total)} in all): {verdict}"
        ]
        for failure in device.failures[:1]:
            lines.append(f"out of memory: {_size(failure['size'])} in {_line(failure)}")
        lines.append(f"the peak was reached in {_line(device.peak)}; in use then, by line:")
        lines += [f"  {_size(held):>12}  {line}" for line, held in _top(device.holders)]
        limit = self.options.limit
        if limit is not None:
            word = "more" if self.is_over else "not more"
            lines.append(f"that is {word} than the limit of {_size(limit)}")
        return lines

    def _doubts(self) -> list[str]:
        doubts = []
        if self.options.card not in MEASURED or self.options.memory is not None:
            doubts.append(
                f"the {self.options.card} was not measured: its numbers are from public documents"
                if self.options.card not in MEASURED
                else "the card's memory is not its own"
            )
        for (line, what, told), count in sorted(self.reads.seen.items()):
            times = "once" if count == 1 else f"{count} times"
            doubts.append(
                f"{line} read {what} that nobody computed, {times}, and was told {told}: where "
                "that decides anything, the card may go another way"
            )
        return [*doubts, *UNMEASURED]

    def _show_answers(self) -> None:
        import larder
        from larder import _native

        path = self.options.recording
        print("\nOn other cards:", flush=True)
        _native.perform(["larder", "fit", path, "--cards", FITTED])
        sys.stdout.flush()
        try:
            told = larder.explain(path) if self.is_out_of_memory else larder.outlook(path)
        except larder.Error as error:
            print(f"\nNo settings were tried: {error}")
            return
        if told is None:
            return
        if told.best is not None:
            print(f"\nWhat would help: {told.best['words']}")
        if told.line is not None:
            print(f"\n  {told.line}")


def _top(held: Counter[str]) -> list[tuple[str, int]]:
    most = held.most_common(LINES_MAX)
    rest = sum(held.values()) - sum(size for _, size in most)
    return most + ([("all other lines", rest)] if rest > 0 else [])
