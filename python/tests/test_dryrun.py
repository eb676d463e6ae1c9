"""The dry run as far as it needs no PyTorch: its options, what reads are answered, and its page."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from larder.dryrun.options import CARDS, Options, size
from larder.dryrun.page import Result
from larder.dryrun.reads import BOOL, COUNT, FLOAT, INTEGER, Reads, _is_end
from larder.errors import UsageError

GIB = 1 << 30


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text("pass\n")
    return str(file)


def test_options_end_where_the_program_begins(program: str) -> None:
    options = Options.parse(
        ["--card", "h200", "--memory=24GiB", "--assume", "nonzero=0.25", program, "--card", "7"]
    )
    assert (options.card, options.memory) == ("H200", 24 * GIB)
    assert options.assume == {"nonzero": 0.25}
    assert options.program == [program, "--card", "7"]
    assert Options.parse(["-m", "train", "-x"]).program == ["-m", "train", "-x"]


def test_options_go_into_another_process_as_they_are(program: str) -> None:
    options = Options.parse(["--rank=3", "--of=64", "--limit", "1.5GiB", "--no-fill", program])
    again = Options.of_text(options.text())
    assert vars(again) == vars(options)
    assert (again.rank, again.of, again.limit, again.no_fill) == (3, 64, 3 * GIB // 2, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--card", "H300"], f"there is no profile of a card 'H300'; there are {', '.join(CARDS)}"),
        (["--card"], "--card wants a value"),
        (["--cards", "L4"], "there is no option '--cards'"),
        (["--rank", "1", "P"], "--rank and --of go together"),
        (["--rank", "4", "--of", "4", "P"], "--rank 4 is none of 4 ranks"),
        (["--assume", "nonzero=2", "P"], "--assume nonzero is a share from 0 to 1, not 2"),
        (["--assume", "tokens=2", "P"], "--assume says what something is"),
        (["--assume", "train.py:31=maybe", "P"], "--assume says what something is"),
        (["--devices", "7", "P"], "--devices is 6 at most"),
        (["--stop-after", "0", "P"], "--stop-after is a whole number from 1 on"),
        (["--memory", "24", "P"], "--memory is a number with a unit, such as 24GiB, not '24'"),
        (["gone.py"], "'gone.py' is no file to run"),
        (["-m"], "there is no program to run"),
        ([], "there is no program to run"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(program: str, words: list[str], why: str) -> None:
    words = [program if word == "P" else word for word in words]
    with pytest.raises(UsageError) as refused:
        Options.parse(words)
    assert why in str(refused.value)


def test_sizes_have_units() -> None:
    assert [size("x", text) for text in ("80GiB", "80GB", "80g", "400MiB")] == [
        80 * GIB,
        80 * GIB,
        80 * GIB,
        400 << 20,
    ]


def asked(assume: dict[str, float], op: bytes, kind: int) -> tuple[float | None, Reads]:
    """What a read in this file is told; none if the run stops."""
    options = Options()
    options.assume = assume
    reads = Reads(options)
    value = (ctypes.c_double * 1)()
    told = value[0] if reads._asked(op, kind, 1, value) else None
    return (value[0] if told is not None else None), reads


def test_unknown_numbers_are_told_as_such_and_noted() -> None:
    told, reads = asked({}, b"aten::_local_scalar_dense", FLOAT)
    assert told != told, "it is not-a-number"
    ((line, what, word),) = reads.seen
    assert line.split(":")[0].endswith("test_dryrun.py")
    assert (what, word, reads.stopped) == ("a number", "not-a-number", None)


@pytest.mark.parametrize("kind", [INTEGER, BOOL])
def test_what_decides_is_told_by_the_user_or_stops(kind: int) -> None:
    told, reads = asked({}, b"aten::_local_scalar_dense", kind)
    assert told is None
    assert reads.stopped is not None
    assert "test_dryrun.py:" in reads.stopped
    assert "--assume" in reads.stopped
    assert asked({"reads": 3.0}, b"aten::_local_scalar_dense", kind)[0] == 3


def test_counts_are_told_by_a_share() -> None:
    told, reads = asked({}, b"aten::nonzero", COUNT)
    assert told is None
    assert reads.stopped is not None
    assert "--assume nonzero=SHARE" in reads.stopped
    assert asked({"nonzero": 0.25}, b"aten::nonzero", COUNT)[0] == 0.25
    assert asked({"unique": 0.5}, b"aten::_unique2", COUNT)[0] == 0.5
    assert asked({"unique": 0.5}, b"aten::nonzero", COUNT)[0] is None


def test_no_option_answers_what_an_operator_decides_by() -> None:
    told, reads = asked({"reads": 0.0}, b"aten::bincount", 4)
    assert told is None
    assert reads.stopped is not None
    assert "there is no option" in reads.stopped


def test_a_line_is_named_by_the_end_of_its_path(program: str) -> None:
    assert _is_end("train.py", program)
    assert _is_end(program, program)
    assert not _is_end("rain.py", program)
    assert not _is_end("other/train.py", program)


def entry(action: str, size: int, addr: int = 0, line: int | None = None) -> dict[str, Any]:
    frames = [{"filename": os.path.abspath("train.py"), "line": line, "name": "step"}]
    return {"action": action, "size": size, "addr": addr, "frames": frames if line else []}


def result(entries: list[dict[str, Any]], **more: Any) -> Result:
    options = Options()
    options.program = ["train.py"]
    for name, value in more.items():
        setattr(options, name, value)
    snapshot = {"device_traces": [entries]}
    return Result(options, Reads(options), snapshot, None, (79 * GIB, 80 * GIB), 1.0)


RUN = [
    entry("segment_alloc", 6 * GIB, 0, 3),
    entry("alloc", 2 * GIB, 1, 3),
    entry("alloc", 3 * GIB, 2, 7),
    entry("free_requested", 2 * GIB, 1),
    entry("free_completed", 2 * GIB, 1),
    entry("alloc", 1 * GIB, 3, 9),
]


def test_the_page_says_what_was_held_and_by_which_line() -> None:
    page = "\n".join(result(RUN).lines())
    assert "5.00 GiB (5368709120 bytes) in use at the peak, 6.00 GiB" in page
    assert "in 3 requests, of 79.00 GiB that the card has for it" in page
    assert "the peak was reached in train.py:7 (step)" in page
    assert page.index("3.00 GiB  train.py:7") < page.index("2.00 GiB  train.py:3")
    assert "train.py:9" not in page, "that was after the peak"
    assert "the H100 was not measured" in page


def test_a_measured_card_is_not_said_to_be_unmeasured() -> None:
    assert "not measured" not in "\n".join(result(RUN, card="H200").lines())


def test_exit_codes_tell_what_came_of_it() -> None:
    assert result(RUN).exit_code(0) == 0
    assert result(RUN).exit_code(7) == 7
    assert result(RUN, limit=6 * GIB).exit_code(0) == 0
    assert result(RUN, limit=6 * GIB - 1).exit_code(0) == 3
    failed = result([*RUN, entry("oom", 9 * GIB, 0, 11)])
    assert failed.exit_code(0) == 4
    assert "out of memory: 9.00 GiB in train.py:11 (step)" in "\n".join(failed.lines())
    stopped = result(RUN)
    stopped.reads.stopped = "train.py:31 reads a truth value"
    assert stopped.exit_code(1) == 5
    assert "It stopped: train.py:31 reads a truth value." in "\n".join(stopped.lines())


def test_the_command_says_where_its_library_is_to_come_from(program: str, tmp_path: Path) -> None:
    environment = os.environ | {"LARDER_DRYRUN_FOLDER": str(tmp_path)}
    command = [sys.executable, "-m", "larder.dryrun", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "liblarder_dryrun.so, which plays the card" in done.stderr
    assert "cargo xtask dryrun" in done.stderr
