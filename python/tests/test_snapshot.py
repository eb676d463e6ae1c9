"""Snapshots: read, looked at, written, and read again."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import larder


@pytest.fixture
def path(workloads: Path) -> Path:
    return workloads / "prefetch_streams.pickle.gz"


def test_a_snapshot_is_what_torch_wrote(path: Path) -> None:
    with gzip.open(path) as file:
        torchs = pickle.load(file)
    snapshot = larder.Snapshot.load(path)
    ours = snapshot.to_dict()
    assert ours["segments"] == torchs["segments"]
    assert ours["device_traces"] == torchs["device_traces"]
    assert snapshot.segments == torchs["segments"]
    assert snapshot.trace() == torchs["device_traces"][0]
    assert snapshot.device_count == len(torchs["device_traces"])
    assert snapshot.name == path.name
    assert repr(snapshot).startswith(
        f"<larder.Snapshot of {path.name}: {len(torchs['segments'])} segments, "
    )


def test_the_dictionary_of_a_running_program_will_do(path: Path) -> None:
    from_file = larder.Snapshot(path)
    from_program = larder.Snapshot(from_file.to_dict())
    assert from_program.operations() == from_file.operations()
    assert larder.Snapshot(from_file.segments).segments == from_file.segments


def test_a_copy_is_the_callers(path: Path) -> None:
    snapshot = larder.Snapshot(path)
    snapshot.to_dict()["segments"].clear()
    assert snapshot.segments


def test_operations_are_the_lines_of_a_script(path: Path, tmp_path: Path) -> None:
    operations = larder.Snapshot(path).operations()
    assert operations[0].startswith("alloc ")
    script = tmp_path / "again.ops"
    script.write_text("\n".join(operations) + "\n")
    # Who recorded it is not in a script.
    again = larder.replay(script, policy="torch-2.11", addresses="lowest").memory_stats
    told = larder.replay(path, policy="torch-2.11", addresses="lowest").memory_stats
    assert again == told


@pytest.mark.parametrize("name", ["a.pickle", "a.pickle.gz", "a.json", "a.json.gz"])
def test_what_is_saved_is_read_again(path: Path, tmp_path: Path, name: str) -> None:
    snapshot = larder.Snapshot(path)
    snapshot.save(tmp_path / name)
    again = larder.Snapshot(tmp_path / name)
    assert again.operations() == snapshot.operations()
    assert [one["address"] for one in again.segments] == [
        one["address"] for one in snapshot.segments
    ]


def test_other_tools_get_their_formats(path: Path, tmp_path: Path) -> None:
    snapshot = larder.Snapshot(path)
    snapshot.save(tmp_path / "a.perfetto.json")
    assert json.loads((tmp_path / "a.perfetto.json").read_text())
    snapshot.save(tmp_path / "script", "ops")
    assert (tmp_path / "script").read_text().splitlines() == snapshot.operations()


def test_what_cannot_be_saved_is_refused_in_one_sentence(path: Path, tmp_path: Path) -> None:
    snapshot = larder.Snapshot(path)
    with pytest.raises(larder.UsageError, match="the name does not say the format"):
        snapshot.save(tmp_path / "a.txt")
    there = "there is no format 'xml' for a snapshot; there are pickle, json, ops and perfetto$"
    with pytest.raises(larder.UsageError, match=there):
        snapshot.save(tmp_path / "a", "xml")
    with pytest.raises(larder.UsageError, match="only a script can be recorded"):
        snapshot.save(tmp_path / "a.tape")
    with pytest.raises(larder.FileError, match="nowhere"):
        snapshot.save(tmp_path / "nowhere" / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_snapshot_is_refused_in_one_sentence(workloads: Path, tmp_path: Path) -> None:
    with pytest.raises(larder.FileError, match="this is a script, which larder.replay runs"):
        larder.Snapshot(workloads / "hot_block.ops")
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(b"\x80\x04nonsense")
    with pytest.raises(larder.FileError, match="broken.pickle: "):
        larder.Snapshot(broken)
    with pytest.raises(larder.FileError):
        larder.Snapshot({"segments": 3})
    with pytest.raises(TypeError, match="not bytes"):
        larder.Snapshot(b"")  # type: ignore[arg-type]


def test_a_dictionary_that_is_not_plain_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        larder.UsageError,
        match="made of plain data, and something in this one is of the type function",
    ):
        larder.Snapshot({"segments": [{"x": lambda: 0}]})
    with pytest.raises(
        larder.UsageError,
        match="made of plain data, and something in this one is of the type object",
    ):
        larder.Snapshot({"a": object()})
    nested: dict[str, object] = {}
    for _ in range(100_000):
        nested = {"segments": nested}
    with pytest.raises(larder.UsageError, match="not nested as deeply"):
        larder.Snapshot(nested)


def test_a_device_that_is_not_there_is_refused_in_one_way(path: Path, tmp_path: Path) -> None:
    snapshot = larder.Snapshot(path)
    calls: list[Callable[[int], object]] = [
        snapshot.trace,
        snapshot.operations,
        lambda device: snapshot.save(tmp_path / "x.ops", device=device),
        lambda device: larder.replay(snapshot, device=device),
        lambda device: larder.replay(path, device=device),
    ]
    for call in calls:
        with pytest.raises(
            larder.UsageError, match="no device 7: `device_traces` has device 0 alone"
        ):
            call(7)
        with pytest.raises(
            larder.UsageError, match="device is a whole number from 0 to 4294967295, not -1"
        ):
            call(-1)
    segments = larder.Snapshot(snapshot.segments)
    for call in (segments.trace, segments.operations):
        with pytest.raises(
            larder.FileError, match="there is no trace in this snapshot, only segments"
        ):
            call(0)


def test_an_allocators_own_snapshot_is_one_like_any(tmp_path: Path) -> None:
    allocator = larder.Allocator()
    allocator.record_history()
    kept = [allocator.malloc(size) for size in (512, 3 << 20, 20 << 20)]
    allocator.free(kept[1])
    snapshot = allocator.snapshot()
    snapshot.save(tmp_path / "mine.pickle")
    again = larder.replay(tmp_path / "mine.pickle")
    assert again.memory_stats["allocated_bytes.all.current"] == allocator.memory_allocated()
    assert allocator.snapshot(traces=False).trace() == []
