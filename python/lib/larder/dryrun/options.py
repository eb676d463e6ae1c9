"""What the command line of a dry run asks for."""

from __future__ import annotations

import json
import os

from larder.errors import UsageError

__all__ = ["HELP", "Options"]

VARIABLE = "LARDER_DRYRUN"
"""Carries the options into the process of the program."""

HELP = """\
usage: python -m larder.dryrun [options] script.py [arguments]
       python -m larder.dryrun [options] -m module [arguments]

Runs a PyTorch program where there is no GPU: its kernels do nothing, its allocator gets the
requests that it would get on the card, and what it needs is said at the end. What it computes means
nothing.

options:
  --card NAME           the card: {cards}; without it {card}
  --memory SIZE         so much memory on the card, in place of its own: 24GiB
  --devices N           so many cards in the process, up to 6; without it 1
  --rank R --of N       the program is rank R of N, whose collectives move nothing
  --assume TEXT         what the dry run cannot know (repeatable):
                          nonzero=0.25   so many of what nonzero looks at are not 0
                          unique=0.5     so many of what unique looks at differ
                          train.py:31=7  what is read in this line is 7 (true: 1, false: 0)
                          reads=0        what is read anywhere is 0, unless its line is named
  --stop-after N        end the program after N steps of an optimizer
  --no-fill             weights that are made on the CPU by torch.nn.init are not filled, so that
                        they take none of the host's memory
  --limit SIZE          exit with 3 if more than this is held at the peak
  --out FILE            the recording; without it the program's name with .dry.pickle.gz
  -h, --help            print this

exit codes: 0, it ran; 3, it needs more than --limit; 4, it ran out of memory; 5, it stopped at what
cannot be known; 2, the options are wrong; otherwise the program's own.

The recording is one like any other: larder explain, fit, compare, report and show read it.
"""

CARDS = ("H200", "H100", "A100-80", "L40S", "L4", "4090", "B200")
DEFAULT_CARD = "H100"
SHARES = {"nonzero": "aten::nonzero", "unique": "aten::unique"}
UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def size(name: str, text: str) -> int:
    """Bytes, of a number with its unit."""
    bare = text.strip().lower().removesuffix("b").removesuffix("i")
    try:
        if bare[-1:] in UNITS:
            return int(float(bare[:-1]) * (1 << UNITS[bare[-1]]))
    except ValueError:
        pass
    raise UsageError(f"{name} is a number with a unit, such as 24GiB, not '{text}'")


def whole(name: str, text: str, least: int) -> int:
    """A whole number."""
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"{name} is a whole number from {least} on, not '{text}'")
    return int(text)


class Options:
    """The options, as they go from the command line into the program's process."""

    def __init__(self) -> None:
        self.card = DEFAULT_CARD
        self.memory: int | None = None
        self.devices = 1
        self.rank: int | None = None
        self.of: int | None = None
        self.assume: dict[str, float] = {}
        self.stop_after: int | None = None
        self.no_fill = False
        self.limit: int | None = None
        self.out: str | None = None
        self.help = False
        self.program: list[str] = []

    @classmethod
    def parse(cls, words: list[str]) -> Options:
        """Reads the options up to the program; the rest is the program's."""
        options, words = cls(), list(words)
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if word in ("-h", "--help"):
                options.help = True
                return options
            if word == "--no-fill":
                options.no_fill = True
            elif name in VALUES:
                if not equals:
                    if not words:
                        raise UsageError(f"{name} wants a value")
                    value = words.pop(0)
                options._set(name, value)
            elif word == "-m":
                options.program = [word, *words]
                break
            elif word.startswith("-"):
                raise UsageError(
                    f"there is no option '{word}'; python -m larder.dryrun --help lists them"
                )
            else:
                options.program = [word, *words]
                break
        options._check()
        return options

    def _set(self, name: str, value: str) -> None:
        if name == "--card":
            found = [card for card in CARDS if card.lower() == value.lower()]
            if not found:
                raise UsageError(
                    f"--card: there is no profile of a card '{value}'; there are {', '.join(CARDS)}"
                )
            self.card = found[0]
        elif name == "--memory":
            self.memory = size(name, value)
        elif name == "--limit":
            self.limit = size(name, value)
        elif name == "--devices":
            self.devices = whole(name, value, 1)
        elif name == "--rank":
            self.rank = whole(name, value, 0)
        elif name == "--of":
            self.of = whole(name, value, 1)
        elif name == "--stop-after":
            self.stop_after = whole(name, value, 1)
        elif name == "--out":
            self.out = value
        else:
            self._assume(value)

    def _assume(self, text: str) -> None:
        what, equals, value = text.rpartition("=")
        number = {"true": "1", "false": "0"}.get(value.lower(), value)
        try:
            answer = float(number)
        except ValueError:
            answer = None
        is_line = ":" in what and what.rpartition(":")[2].isdecimal()
        if not equals or answer is None or not (what in SHARES or what == "reads" or is_line):
            raise UsageError(
                f"--assume says what something is: nonzero=0.25, unique=0.5, train.py:31=7 or "
                f"reads=0, not '{text}'"
            )
        if what in SHARES and not 0 <= answer <= 1:
            raise UsageError(f"--assume {what} is a share from 0 to 1, not {value}")
        self.assume[what] = answer

    def _check(self) -> None:
        if not self.program or self.program == ["-m"]:
            raise UsageError("there is no program to run; python -m larder.dryrun --help")
        if (self.rank is None) != (self.of is None):
            raise UsageError("--rank and --of go together: --rank 3 --of 64")
        if self.rank is not None and self.of is not None and self.rank >= self.of:
            raise UsageError(f"--rank {self.rank} is none of {self.of} ranks, which count from 0")
        if self.devices > 6:
            raise UsageError(f"--devices is 6 at most, not {self.devices}")
        if self.program[0] != "-m" and not os.path.isfile(self.program[0]):
            raise UsageError(f"'{self.program[0]}' is no file to run")

    @property
    def name(self) -> str:
        """What the program is called."""
        return self.program[1] if self.program[0] == "-m" else self.program[0]

    @property
    def recording(self) -> str:
        """Where the recording goes."""
        if self.out is not None:
            return self.out
        stem = os.path.splitext(os.path.basename(self.name))[0]
        return f"{stem}.dry.pickle.gz"

    def text(self) -> str:
        """All of it as one text."""
        return json.dumps(vars(self))

    @classmethod
    def of_text(cls, text: str) -> Options:
        """What `text` wrote."""
        options = cls()
        vars(options).update(json.loads(text))
        return options


VALUES = (
    "--card",
    "--memory",
    "--devices",
    "--rank",
    "--of",
    "--assume",
    "--stop-after",
    "--limit",
    "--out",
)
