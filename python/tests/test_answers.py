"""Why a program ran out of memory, what to set, and how its memory went, from Python."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree
from random import Random
from typing import Any

import larder
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

PINNED = "alloc 1 200MiB 0\nfree 1\nalloc 2 40MiB 0\nalloc 3 220MiB 0\n"


@pytest.fixture
def pinned(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "pinned.ops"
    path.write_text(PINNED)
    return path


def test_a_failure_is_explained(pinned: pathlib.Path) -> None:
    found = larder.explain(pinned, memory="400MiB", policy="torch-2.11")
    assert found is not None
    assert (found.cause, found.is_proven, found.needs_memory) == ("fragmentation", True, False)
    assert found.line == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert "160.00 MiB are free on this stream" in found.why
    assert found.best is not None and found.records()[0] == found.best
    proof = larder.replay(pinned, memory="400MiB", policy="torch-2.11", settings=found.best["conf"])
    assert proof.ooms == 0
    assert "Why:" in str(found) and "<table>" in found._repr_html_()
    assert larder.explain(pinned) is None
    assert larder.outlook(pinned, memory="400MiB", policy="torch-2.11") is None
    calm = larder.outlook(pinned)
    assert calm is not None and calm.data["outcome"] == "calm" and calm.near_failures == []
    assert "nothing failed" in str(calm)
    with pytest.raises(larder.UsageError, match="failure is a whole number from 1"):
        larder.explain(pinned, failure=0)


def test_python_answers_as_the_commands_do(tmp_path: pathlib.Path) -> None:
    """A recording under a cap: the same question has the same answer, with whatever options."""
    path = tmp_path / "capped.pickle"
    allocator = larder.Allocator(
        "sim:1GiB",
        settings=f"oom_snapshot:{path},policy:torch-2.11,per_process_memory_fraction:0.4",
    )
    first = allocator.malloc(200 << 20)
    allocator.free(first)
    allocator.malloc(40 << 20)
    with pytest.raises(larder.OutOfMemoryError):
        allocator.malloc(220 << 20)

    def asked(command: str, *words: str) -> Any:
        line = [sys.executable, "-m", "larder.command", command, str(path), "--json", *words]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    rooms: list[dict[str, Any]] = [
        {},
        {"memory": "400MiB"},
        {"memory": "430MiB"},
        {"card": "1GiB"},
        {"cap": "380MiB"},
        {"cap": "500MiB"},
    ]
    verdicts = set()
    for room in rooms:
        words = [word for name, size in room.items() for word in (f"--{name}", size)]
        told = asked("replay", *words)
        run = larder.replay(path, **room)
        peak = told["reserved_bytes.all.peak"]
        assert (run.ooms, run.peak_reserved_bytes) == (told["ooms"], peak), room
        compared = larder.compare(path, [""], **room)
        assert compared.records()[0]["ooms"] == told["ooms"], room
        tuned = larder.tune(path, seconds=1, **room)
        assert tuned.data["as_it_is"]["ooms"] == told["ooms"], room
        found = larder.explain(path, **room)
        assert (found is not None) == (told["ooms"] > 0), room
        if found is not None:
            assert found.data["remedies"] == asked("explain", *words)["remedies"], room
        verdicts.add(told["ooms"] > 0)
    assert verdicts == {True, False}
    fit = larder.fit(path)
    assert fit.memory_bytes == asked("fit")["fit_bytes"]
    assert larder.replay(path, memory=fit.memory_bytes).ooms == 0
    with pytest.raises(larder.UsageError, match="say the same of the memory"):
        larder.replay(path, memory="1GiB", card="H200")


def test_settings_are_searched(pinned: pathlib.Path) -> None:
    found = larder.tune(pinned, memory="400MiB", seconds=5)
    assert len(found) == 3 and found[0]["ooms"] == 0
    assert found.line == found[0]["set"]
    assert "<table>" in found._repr_html_() and "the best three" in str(found)
    assert found.records()[0]["policy"] == "larder"


def test_memory_over_time_is_a_picture_and_records(pinned: pathlib.Path) -> None:
    found = larder.memory_over_time(pinned, memory="400MiB")
    assert [record["active_bytes"] >> 20 for record in found.records()] == [200, 0, 40, 40]
    assert found.records()[3]["has_failure"]
    root = xml.etree.ElementTree.fromstring(found.svg)
    assert root.tag.endswith("svg") and found._repr_svg_() == found.svg


def test_runs_and_snapshots_give_records_and_show_themselves(pinned: pathlib.Path) -> None:
    compared = larder.compare(pinned, ["", "expandable_segments:True"], policy="torch-2.11")
    records = compared.records()
    assert [record["settings"] for record in records] == ["", "expandable_segments:True"]
    assert records[0]["reserved_bytes.all.peak"] == compared[0].peak_reserved_bytes
    allocator = larder.Allocator("sim:1GiB")
    allocator.record_history()
    allocator.malloc(3 << 20)
    snapshot = allocator.snapshot()
    assert [record["state"] for record in snapshot.records()] == ["active_allocated", "inactive"]
    assert "20.00 MiB" in snapshot._repr_html_()


def test_no_pandas_is_wanted_until_a_frame_is(pinned: pathlib.Path) -> None:
    code = "import sys, larder; assert 'pandas' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    compared = larder.compare(pinned, [""])
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError):
            compared.to_frame()
    else:
        assert len(compared.to_frame()) == 1


def test_the_command_is_the_whole_program(pinned: pathlib.Path) -> None:
    command = [sys.executable, "-m", "larder.command"]
    words = ["explain", str(pinned), "--memory", "400MiB", "--policy", "torch-2.11"]
    done = subprocess.run([*command, *words], capture_output=True, text=True)
    assert done.returncode == 0 and "Why: fragmentation" in done.stdout, done.stderr
    asked = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert asked.stdout == f"larder {larder.__version__}\n"
    wrong = subprocess.run(
        [*command, "explain", "--no-such-option"], capture_output=True, text=True
    )
    assert wrong.returncode == 2


def test_a_failed_request_is_written_down_and_the_page_is_openmetrics(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "oom.pickle"
    allocator = larder.Allocator(
        "sim:400MiB", settings=f"oom_snapshot:{path},metrics:127.0.0.1:0,policy:torch-2.11"
    )
    first = allocator.malloc(200 << 20)
    allocator.free(first)
    allocator.malloc(40 << 20)
    with pytest.raises(larder.OutOfMemoryError, match="`larder explain .*oom.pickle` says why"):
        allocator.malloc(220 << 20)
    found = larder.explain(path)
    assert found is not None and found.cause == "fragmentation"
    with urllib.request.urlopen(f"http://{allocator.metrics_address}/metrics") as page:
        assert page.headers["Content-Type"].startswith("application/openmetrics-text")
        text = page.read().decode()
    read = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    families = {family.name: family for family in read}
    stats = allocator.memory_stats()
    for name in ("allocated", "active", "requested", "reserved", "inactive_split"):
        family = families[f"larder_{name}_bytes"]
        assert (family.type, family.unit) == ("gauge", "bytes")
        assert sum(sample.value for sample in family.samples) == stats[f"{name}_bytes.all.current"]
    assert families["larder_ooms"].type == "counter"
    assert families["larder_ooms"].samples[0].value == stats["num_ooms"] == 1
    command = [
        sys.executable,
        "-m",
        "larder.command",
        "top",
        "--once",
        str(allocator.metrics_address),
    ]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    reserved = larder._native.format_size(stats["reserved_bytes.all.current"])
    assert f"held        {reserved:>12}" in shown.stdout


def recorded(path: pathlib.Path, seed: int) -> None:
    """A recording of a random program under random settings, with whatever cap."""
    random = Random(seed)
    policy = random.choice(["torch-2.11", "larder", "tight"])
    conf = random.choice(["", ",expandable_segments:True", ",max_split_size_mb:40"])
    allocator = larder.Allocator("sim:1GiB", settings=f"policy:{policy}{conf}")
    allocator.record_history()
    if random.random() < 0.6:
        allocator.set_memory_fraction(random.uniform(0.2, 0.9))
    live: list[int] = []
    for _ in range(120):
        if live and random.random() < 0.45:
            allocator.free(live.pop(random.randrange(len(live))))
            continue
        try:
            live.append(allocator.malloc(random.randrange(1 << 10, 120 << 20)))
        except larder.OutOfMemoryError:
            for address in live[::2]:
                allocator.free(address)
            live = live[1::2]
    allocator.snapshot().save(path)


def test_python_and_the_command_agree_on_any_question(tmp_path: pathlib.Path) -> None:
    """Random recordings, settings, caps and memories; a failure names its seed."""
    line = [sys.executable, "-m", "larder.command"]

    def asked(command: str, path: pathlib.Path, *words: str) -> Any:
        done = subprocess.run(
            [*line, command, str(path), "--json", *words], capture_output=True, text=True
        )
        assert done.returncode in (0, 3, 4), done.stderr
        return json.loads(done.stdout)

    verdicts = set()
    for seed in range(int(os.environ.get("LARDER_AGREE", "24"))):
        path = tmp_path / f"{seed}.pickle"
        recorded(path, seed)
        random = Random(seed)
        rooms = [{}, {"memory": "700MiB"}, {"cap": "300MiB"}, {"card": "2GiB"}]
        room: dict[str, Any] = random.choice(rooms)
        settings = random.choice([None, "", "expandable_segments:True", "max_split_size_mb:64"])
        policy = random.choice([None, "torch-2.11", "larder"])
        words = [word for name, size in room.items() for word in (f"--{name}", size)]
        words += [] if policy is None else ["--policy", policy]
        conf = [] if settings is None else ["--conf", settings]
        question: dict[str, Any] = {**room, "policy": policy, "settings": settings}
        said = f"seed {seed}: {question}"
        told = asked("replay", path, *words, *conf)
        run = larder.replay(path, **question)
        figures = (run.ooms, run.peak_reserved_bytes, run.peak_active_bytes)
        peaks = [told[f"{which}_bytes.all.peak"] for which in ("reserved", "active")]
        assert figures == (told["ooms"], *peaks), said
        found = larder.explain(path, **question)
        calm = larder.outlook(path, **question)
        explained = asked("explain", path, *words, *conf)
        assert (found is None) == (explained["outcome"] != "failed") == (calm is not None), said
        if found is not None:
            assert found.data == explained, said
        if calm is not None:
            assert calm.data == explained, said
        rows = asked("compare", path, *words, "--conf", "")
        compared = larder.compare(path, [""], **room, policy=policy)
        assert [one.ooms for one in compared] == [row["ooms"] for row in rows], said
        if seed % 4 == 0:
            fit = larder.fit(path, policy=policy, settings=settings)
            plain = [] if policy is None else ["--policy", policy]
            assert fit.memory_bytes == asked("fit", path, *plain, *conf)["fit_bytes"], said
        verdicts.add(told["ooms"] > 0)
    assert verdicts == {True, False}


def test_ranks_and_differences_are_those_of_the_command(tmp_path: pathlib.Path) -> None:
    for rank in range(4):
        recorded(tmp_path / f"rank{rank}.pickle", rank)
    done = subprocess.run(
        [sys.executable, "-m", "larder.command", "explain", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
    )
    found = larder.ranks(tmp_path)
    assert found.data == json.loads(done.stdout) and len(found) == 4
    assert found.verdict in str(found) and found.records()[0]["name"] == "rank0.pickle"
    files = [str(tmp_path / f"rank{rank}.pickle") for rank in range(2)]
    done = subprocess.run(
        [sys.executable, "-m", "larder.command", "diff", *files, "--json"],
        capture_output=True,
        text=True,
    )
    grown = larder.diff(*files)
    assert grown.data == json.loads(done.stdout)
    assert grown.grown_bytes == grown.data["after_bytes"] - grown.data["before_bytes"]


def test_a_notebook_is_told_how_far_work_has_come(tmp_path: pathlib.Path) -> None:
    from larder import _native, progress

    recorded(tmp_path / "rank0.pickle", 1)
    told: list[tuple[str, int | None, int | None]] = []
    _native.on_progress(lambda *words: told.append(words))
    try:
        larder.explain(tmp_path / "rank0.pickle")
    finally:
        _native.on_progress(None)
    assert told[0] == ("reading", 0, (tmp_path / "rank0.pickle").stat().st_size)
    assert told[-1] == ("", None, None), "the bar goes away"
    shown: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)

    def display(html: str, display_id: bool) -> Handle:
        shown.append(html)
        return Handle()

    bar = progress.Bar(display, str)
    bar("ranks", 1, 4)
    bar("", None, None)
    assert shown == ['<progress value="1" max="4"></progress> ranks', ""]
