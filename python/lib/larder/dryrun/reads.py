"""What a program reads of data that nobody computed, and what it is answered.

A floating-point number is answered with not-a-number, which shows where it is printed; anything
else decides what a program does, so that it is told by the user, or the run stops.
"""

from __future__ import annotations

import ctypes
import os
import sys
from types import FrameType

from larder.dryrun.options import SHARES, Options

__all__ = ["Reads", "line_of"]

FLOAT, INTEGER, BOOL, COUNT = range(4)
WORDS = {FLOAT: "a number", INTEGER: "an integer", BOOL: "a truth value", COUNT: "a count"}
ASKED = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_double)
)

OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def is_of_program(file: str) -> bool:
    """Whether a file is the program's, and no library's."""
    return not (
        file.startswith(("<", OWN))
        or f"{os.sep}site-packages{os.sep}" in file
        or file.startswith((sys.base_prefix + "/lib", sys.prefix + "/lib"))
    )


def line_of(frame: FrameType | None) -> tuple[str, int]:
    """The line of the program that led here; of a library, if none of the program's did."""
    first = None
    while frame is not None:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if is_of_program(place[0]):
            return place
        if first is None and not place[0].startswith(("<", OWN)):
            first = place
        frame = frame.f_back
    return first or ("?", 0)


class Reads:
    """The reads of a run, by line."""

    def __init__(self, options: Options) -> None:
        self.assume = options.assume
        self.seen: dict[tuple[str, str, str], int] = {}
        """How often each line read what, and what it was told."""
        self.stopped: str | None = None
        """Why the run stopped, if it did."""
        self.callback = ASKED(self._asked)

    def _asked(self, op: bytes, kind: int, count: int, value: object) -> int:
        name = op.decode()
        file, number = line_of(sys._getframe(1))
        line = f"{os.path.relpath(file)}:{number}" if number else "?"
        found = self._answer(name, kind, file, number)
        what = WORDS.get(kind, f"what {name} decides by")
        if found is None:
            self.stopped = self._sentence(name, kind, line, what)
            return 0
        told = "not-a-number" if found != found else f"{found:g}"
        key = (line, what, told)
        self.seen[key] = self.seen.get(key, 0) + 1
        value[0] = found  # type: ignore[index]
        return 1

    def _answer(self, op: str, kind: int, file: str, number: int) -> float | None:
        for what, answer in self.assume.items():
            path, _, line = what.rpartition(":")
            if path and int(line) == number and _is_end(path, file):
                return answer
        if kind == COUNT:
            shares = [what for what, start in SHARES.items() if op.lstrip("_").startswith(start)]
            shares += ["unique"] if op.startswith("aten::_unique") else []
            return next((self.assume[what] for what in shares if what in self.assume), None)
        if kind == FLOAT:
            return self.assume.get("reads", float("nan"))
        return self.assume.get("reads") if kind in WORDS else None

    def _sentence(self, op: str, kind: int, line: str, what: str) -> str:
        if kind == COUNT:
            share = "nonzero" if "nonzero" in op else "unique"
            return (
                f"{line} ({op}) makes as many elements as the data says, and nobody computed the "
                f"data: --assume {share}=SHARE says which share of them there are"
            )
        if kind in WORDS:
            return (
                f"{line} reads {what} that nobody computed, and what the program does with it "
                f"may decide what it needs: --assume {line}=VALUE says what it is there"
            )
        return (
            f"{line} ({op}) is decided by data that nobody computed, and there is no option that "
            "could say it"
        )


def _is_end(path: str, file: str) -> bool:
    """Whether a path as the user writes it means this file."""
    parts, whole = os.path.normpath(path).split(os.sep), file.split(os.sep)
    return whole[-len(parts) :] == parts or os.path.abspath(path) == os.path.abspath(file)
