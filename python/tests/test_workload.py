"""Replays, comparisons and the smallest device, of the recorded programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import larder


@pytest.fixture
def varlen(workloads: Path) -> Path:
    return workloads / "gpt2_varlen.pickle.gz"


def test_a_replay_tells_what_a_program_needed(varlen: Path) -> None:
    run = larder.replay(varlen)
    assert run.name == "gpt2_varlen.pickle.gz"
    assert run.operation_count == 113735
    assert (run.policy, run.settings, run.ooms, run.first_oom) == ("torch-2.11", "", 0, None)
    assert run.peak_active_bytes <= run.peak_reserved_bytes
    assert run.overhead == pytest.approx(run.peak_reserved_bytes / run.peak_active_bytes)
    assert run.device_calls["malloc"] == run.memory_stats["num_device_alloc"]
    assert run.elapsed_seconds > 0
    assert str(run).startswith("gpt2_varlen.pickle.gz: 113735 operations in ")
    assert repr(run).startswith("<larder.Replay of gpt2_varlen.pickle.gz: ")
    assert "<table>" in run._repr_html_()


def test_replays_are_those_of_the_program_larder(varlen: Path) -> None:
    """PyTorch's policy gives the peak that the recorded GPU had, to the byte."""
    snapshot = larder.Snapshot(varlen)
    recorded = sum(segment["total_size"] for segment in snapshot.segments)
    run = larder.replay(varlen, policy="torch-2.11")
    assert run.peak_reserved_bytes == recorded
    assert larder.replay(snapshot, policy="torch-2.11").memory_stats == run.memory_stats
    assert larder.replay(varlen, settings="policy:torch-2.11").memory_stats == run.memory_stats


def test_a_replay_tells_what_the_calls_cost(varlen: Path, tmp_path: Path) -> None:
    script = tmp_path / "driver_time.ops"
    script.write_text("alloc 1 1000 0\nalloc 2 1000 0\nfree 1\nfree 2\nempty\nalloc 3 1000 0\n")
    run = larder.replay(script)
    assert (run.driver_calls, run.driver_calls_last_third) == (3, 2)
    assert run.driver_seconds == pytest.approx(
        195e-6
    ) and run.driver_seconds_last_third == pytest.approx(123e-6)
    assert (
        "driver time    0.2 ms in 3 calls; in the last third of the operations 0.1 ms in 2 calls"
        in str(run)
    )
    settled = larder.replay(varlen)
    assert (
        settled.driver_calls == settled.device_calls["malloc"]
        and settled.driver_calls_last_third == 0
    )
    (row,) = larder.compare(script, "")
    assert (
        row.driver_seconds == run.driver_seconds
        and ">0.2 ms</td>" in larder.compare(script, "")._repr_html_()
    )


def test_a_program_that_runs_again_finds_what_is_cached(tmp_path: Path) -> None:
    script = tmp_path / "again.ops"
    script.write_text("alloc 1 1000 0\nalloc 2 3000000 0\nrecord 2 5\n")
    run = larder.replay(script, passes=3)
    assert [one.driver_calls for one in run.passes] == [2, 0, 0] and run.passes[
        2
    ].driver_seconds == 0
    assert {one.peak_reserved_bytes for one in run.passes} == {run.peak_reserved_bytes}
    assert run.passes[0].overhead == run.overhead and run.passes[0].ooms == 0
    assert "3 times over" in str(run)
    assert len(larder.replay(script).passes) == 1 and "times over" not in str(larder.replay(script))
    with pytest.raises(larder.UsageError, match="passes is a whole number from 1, not 0"):
        larder.replay(script, passes=0)
    with pytest.raises(larder.UsageError, match="passes is a whole number"):
        larder.replay(script, passes=-1)


def test_a_program_may_have_other_sizes(workloads: Path, tmp_path: Path) -> None:
    script = tmp_path / "larger.ops"
    script.write_text("alloc 1 60000000000 0\n")
    run = larder.replay(script, scale=4)
    assert (run.ooms, run.device_bytes) == (0, 320 << 30)
    assert run.memory_stats["requested_bytes.all.peak"] == 240_000_000_000
    path = workloads / "prefetch_streams.pickle.gz"
    first, same, other = (larder.replay(path, jitter=jitter) for jitter in (3, "3:1", "3:2"))
    assert first.memory_stats == same.memory_stats != other.memory_stats
    assert "sizes: each up to 3 % off (seed 2)" in str(other)
    assert "(seed 2)" in str(larder.fit(path, jitter="3:2")) and "(seed 2)" in str(
        larder.compare(path, "", jitter="3:2")
    )
    for call in (larder.replay, larder.compare, larder.fit):
        with pytest.raises(
            larder.UsageError, match="a scale is a whole number from 1 to 1024, not '1.5'"
        ):
            call(script, scale=1.5)  # type: ignore[arg-type]
        with pytest.raises(larder.UsageError, match="a jitter is a percentage from 0 to below 100"):
            call(script, jitter=100)


def test_tight_is_a_policy_and_not_pytorchs(workloads: Path) -> None:
    path = workloads / "prefetch_streams.pickle.gz"
    run = larder.replay(path, policy="tight")
    assert run.policy == "tight" and run.overhead < larder.replay(path).overhead
    found = larder.fit(path, policy="tight")
    for text in (str(run), str(found)):
        assert "policy tight" in text and "stock PyTorch" not in text


def test_scripts_run_too(workloads: Path, tmp_path: Path) -> None:
    run = larder.replay(workloads / "hot_block.ops")
    assert run.operation_count > 0 and run.ooms == 0
    broken = tmp_path / "broken.ops"
    broken.write_text("alloc 1 512 0\nfly 1\n")
    with pytest.raises(larder.FileError, match=r"broken.ops: line 2"):
        larder.replay(broken)
    twice = tmp_path / "twice.ops"
    twice.write_text("alloc 1 99999999999999 0\n")
    failed = larder.replay(twice, memory="1GiB")
    assert failed.ooms == 1 and failed.first_oom is not None and "out of memory" in failed.first_oom


def test_a_comparison_names_the_best(varlen: Path) -> None:
    comparison = larder.compare(varlen, ["", {"expandable_segments": True}])
    assert [run.settings for run in comparison] == ["", "expandable_segments:True"]
    assert comparison.best is not None and comparison.best.settings == "expandable_segments:True"
    assert comparison.best.peak_reserved_bytes == min(run.peak_reserved_bytes for run in comparison)
    assert "least memory: expandable_segments:True" in str(comparison)
    assert len(comparison[:1]) == 1
    assert repr(comparison) == "<larder.Comparison of 2 settings, best: expandable_segments:True>"
    html = comparison._repr_html_()
    assert html.count("<tr>") == 3 and "(default) [as recorded]" in html and "peak active" in html
    assert [run.is_recorded for run in comparison] == [True, False]


def test_a_comparison_may_be_of_one_or_of_none(workloads: Path) -> None:
    path = workloads / "hot_block.ops"
    for one in ("expandable_segments:True", {"expandable_segments": True}):
        (run,) = larder.compare(path, one)
        assert run.settings == "expandable_segments:True"
    none = larder.compare(path, [])
    assert repr(none) == "<larder.Comparison of 0 settings>" and len(none) == 0
    assert none._repr_html_().count("<tr>") == 1
    with pytest.raises(larder.UsageError, match="best of none"):
        none.best  # noqa: B018


def test_nothing_is_the_best_where_nothing_ran(workloads: Path) -> None:
    card = workloads.parent / "crates/larder-study/tests/card/dies.pickle.gz"
    held = ["", "expandable_segments:True", "per_process_memory_fraction:0.012"]
    comparison = larder.compare(
        card, [*held, "per_process_memory_fraction:0.999"], policy="torch-2.11"
    )
    assert (
        comparison.best is not None
        and comparison.best.settings == "per_process_memory_fraction:0.999"
    )
    assert comparison[-1].settings == "per_process_memory_fraction:1" and comparison[-1].ooms == 0
    small = larder.compare(card, "", memory="1GiB")
    # All of the memory is the program's, so that what was recorded are the default settings.
    assert (
        small.best is None and repr(small) == "<larder.Comparison of 1 settings, none of which ran>"
    )
    assert "nothing here ran" in str(small)


def test_a_recording_brings_its_settings(workloads: Path) -> None:
    card = workloads.parent / "crates/larder-study/tests/card/collected.pickle.gz"
    recorded = "per_process_memory_fraction:0.012,garbage_collection_threshold:0.6"
    run = larder.replay(card, policy="torch-2.11")
    assert (run.settings, run.ooms) == (recorded, 1) and f"settings as recorded: {recorded}" in str(
        run
    )
    none = larder.replay(card, policy="torch-2.11", settings="")
    assert (none.settings, none.ooms) == ("", 0)
    whole = "settings as recorded, without the memory fraction: garbage_collection_threshold:0.6"
    assert whole in str(larder.fit(card, policy="torch-2.11"))


def test_a_comparison_has_usual_settings(workloads: Path) -> None:
    comparison = larder.compare(workloads / "hot_block.ops")
    assert len(comparison) == 5 and comparison[0].settings == ""


def test_the_smallest_device_is_enough(workloads: Path) -> None:
    path = workloads / "prefetch_streams.pickle.gz"
    found = larder.fit(path)
    assert found.memory_bytes is not None and found.ratio is not None
    assert found.ratio >= 1
    there = larder.replay(path, memory=found.memory_bytes)
    assert (there.ooms, there.retries) == (0, found.retries)
    assert found.memory_without_retries_bytes is not None
    assert larder.replay(path, memory=found.memory_without_retries_bytes).retries == 0
    assert "runs in" in repr(found) and "<table>" in found._repr_html_()
    too_small = larder.fit(path, memory="16MiB")
    assert too_small.memory_bytes is None and too_small.ratio is None
    assert "does not run" in str(too_small)


def test_a_second_round_may_need_a_larger_device(tmp_path: Path) -> None:
    """The small request that begins it breaks the large block that the first round left cached."""
    script = tmp_path / "broken.ops"
    script.write_text(
        "alloc 1 12000000 0\nalloc 2 60000000 0\nfree 1\nfree 2\nempty\nalloc 3 70000000 0\n"
    )
    once, twice = (larder.fit(script, policy="torch-2.11", passes=passes) for passes in (1, 2))
    assert once.memory_bytes is not None and twice.memory_bytes is not None
    assert once.memory_bytes < 85_000_000 and twice.memory_bytes > 130_000_000
    assert str(once) == str(
        larder.fit(script, policy="torch-2.11")
    ) and "runs 2 times over in" in str(twice)
    assert larder.replay(script, policy="torch-2.11", passes=2, memory=twice.memory_bytes).ooms == 0
    assert larder.replay(script, policy="torch-2.11", passes=2, memory=once.memory_bytes).ooms == 1
    with pytest.raises(larder.UsageError, match="passes is a whole number from 1, not 0"):
        larder.fit(script, passes=0)


def test_a_program_that_ran_out_of_memory_is_told_what_it_needs(tmp_path: Path) -> None:
    """What failed was asked for too, and the size of the device is that of the recorded one."""
    allocator = larder.Allocator(memory="8GiB", settings="")
    allocator.record_history()
    first = allocator.malloc(5_000_000_000)
    with pytest.raises(larder.OutOfMemoryError):
        allocator.malloc(5_000_000_000)
    snapshot = allocator.snapshot()
    allocator.free(first)
    run = larder.replay(snapshot)
    assert (run.ooms, run.device_bytes) == (1, 8 << 30)
    assert larder.compare(snapshot, "")[0].ooms == 1
    found = larder.fit(snapshot)
    assert found.memory_bytes is not None and found.memory_bytes >= 10_000_000_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"policy": "torch-3"}, "torch-3"),
        ({"memory": "much"}, "a size is a number with a unit"),
        ({"settings": "nonsense:1"}, "settings: there is no setting 'nonsense'"),
        ({"settings": "backend:cudaMallocAsync"}, "leave it out, or do not use Larder"),
        ({"addresses": "highest"}, "addresses are 'recorded' or 'lowest', not 'highest'"),
        ({"device": 7}, "7"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    workloads: Path, arguments: dict[str, object], sentence: str
) -> None:
    path = workloads / "prefetch_streams.pickle.gz"
    for call in (larder.replay, larder.fit):
        with pytest.raises(larder.Error, match=sentence):
            call(path, **arguments)  # type: ignore[arg-type]
    with pytest.raises(larder.SettingsError, match="all runs have one policy"):
        larder.compare(path, ["policy:larder"])


def test_a_wrong_type_is_told_as_python_tells_it(workloads: Path) -> None:
    path = workloads / "hot_block.ops"
    not_sources: list[object] = [3, b"path", {"segments": []}]
    for call in (larder.replay, larder.compare, larder.fit):
        for wrong in not_sources:
            with pytest.raises(
                TypeError, match=f"or a larder.Snapshot, .* not {type(wrong).__name__}$"
            ):
                call(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="settings are a list of texts or dictionaries, not int"):
        larder.compare(path, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="settings are a text or a dictionary, not int"):
        larder.compare(path, [3])  # type: ignore[list-item]


def test_a_file_that_is_not_there_is_told_as_python_tells_it(tmp_path: Path) -> None:
    for call in (larder.replay, larder.compare, larder.fit, larder.Snapshot):
        with pytest.raises(FileNotFoundError):
            call(tmp_path / "missing.pickle")
    with pytest.raises(larder.FileError, match="this is a folder"):
        larder.replay(tmp_path)


def test_other_threads_run_while_a_call_is_under_way(tmp_path: Path) -> None:
    """The call waits for a pipe that another thread of the same Python writes to: both must run."""
    code = """
import larder, os, sys, threading
os.mkfifo("pipe.ops")
def write():
    with open("pipe.ops", "w") as pipe:
        pipe.write("alloc 1 512 0\\nfree 1\\n")
threading.Thread(target=write).start()
print(larder.replay("pipe.ops").operation_count)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "2\n", done.stderr


def test_the_package_needs_no_torch() -> None:
    code = "import larder, sys; assert 'torch' not in sys.modules; print(larder.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == larder.__version__
