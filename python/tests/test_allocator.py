"""The allocator on the simulated GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

import larder

MIB = 1 << 20


def test_freed_memory_is_handed_out_again() -> None:
    allocator = larder.Allocator()
    first = allocator.malloc(3 * MIB)
    allocator.free(first)
    assert allocator.malloc(3 * MIB) == first
    assert allocator.device_calls()["create"] == 1, (
        "segments are expandable unless settings say otherwise"
    )
    plain = larder.Allocator(settings="expandable_segments:False")
    plain.free(plain.malloc(3 * MIB))
    assert plain.malloc(3 * MIB) and plain.device_calls()["malloc"] == 1


def test_a_block_frees_itself() -> None:
    allocator = larder.Allocator()
    with allocator.alloc(1000, stream=3) as block:
        assert (block.size, block.stream) == (1000, 3)
        assert allocator.usable_bytes(block.address) == 1024
        assert f"{block.address:#x}" in repr(block)
    assert allocator.memory_allocated() == 0
    block.free()
    assert repr(block) == "<larder.Block, freed>"
    with pytest.raises(larder.AddressError, match="the block is freed"):
        block.address  # noqa: B018


def test_a_block_is_freed_when_its_body_raises() -> None:
    allocator = larder.Allocator()
    with pytest.raises(KeyError), allocator.alloc(1000):
        raise KeyError
    assert allocator.memory_allocated() == 0


def test_an_unknown_address_is_an_error_and_changes_nothing() -> None:
    allocator = larder.Allocator()
    address = allocator.malloc(512)
    allocator.free(address)
    for wrong in (address, address + 1, 0xDEAD):
        with pytest.raises(larder.AddressError, match="no live allocation"):
            allocator.free(wrong)
    with pytest.raises(ValueError):
        allocator.usable_bytes(address)
    allocator.check()


def test_out_of_memory_has_numbers() -> None:
    allocator = larder.Allocator(memory="64MiB")
    kept = allocator.malloc(40 * MIB)
    seen: list[larder.OutOfMemoryError] = []
    allocator.on_out_of_memory(seen.append)
    with pytest.raises(larder.OutOfMemoryError, match="out of memory") as caught:
        allocator.malloc(40 * MIB)
    error = caught.value
    assert isinstance(error, MemoryError) and isinstance(error, larder.Error)
    assert error.requested_bytes == 40 * MIB
    assert error.total_bytes == 64 * MIB
    assert error.allocated_bytes == 40 * MIB
    assert error.cap_bytes is None
    assert [str(one) for one in seen] == [str(error)]
    allocator.free(kept)
    allocator.malloc(40 * MIB)


def test_an_observer_that_raises_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda about: told.append(about.exc_type))
    allocator = larder.Allocator(memory="64MiB")

    def observer(_: larder.OutOfMemoryError) -> None:
        raise KeyError("mine")

    allocator.on_out_of_memory(observer)
    with pytest.raises(larder.OutOfMemoryError):
        allocator.malloc(80 * MIB)
    allocator.malloc(MIB)
    assert told == [KeyError], "Python tells of it as of any exception that nobody can catch"


def test_streams_keep_memory_apart() -> None:
    allocator = larder.Allocator()
    compute, copy = allocator.new_stream(), allocator.new_stream()
    assert compute != copy
    address = allocator.malloc(3 * MIB, compute)
    allocator.record_stream(address, copy)
    allocator.issue(copy)
    allocator.free(address)
    assert allocator.memory_stats()["active_bytes.all.current"] == 3 * MIB
    other = allocator.malloc(3 * MIB, compute)
    assert other != address
    allocator.synchronize(copy)
    allocator.malloc(512, compute)
    assert allocator.memory_stats()["active_bytes.all.current"] == 3 * MIB + 512


def test_statistics_have_the_names_of_torch() -> None:
    allocator = larder.Allocator()
    allocator.malloc(5 * MIB)
    stats = allocator.memory_stats()
    assert stats["allocated_bytes.all.current"] == allocator.memory_allocated() == 5 * MIB
    assert stats["reserved_bytes.large_pool.peak"] == allocator.max_memory_reserved() == 20 * MIB
    assert stats["num_ooms"] == 0 and stats["max_split_size"] == -1
    free, total = allocator.mem_get_info()
    assert total - free == allocator.memory_reserved()
    allocator.empty_cache()
    assert allocator.memory_reserved() == 20 * MIB, "the segment is in use"
    allocator.reset_peak_memory_stats()
    allocator.reset_accumulated_memory_stats()
    assert allocator.memory_stats()["allocated_bytes.all.allocated"] == 0
    assert "reserved" in str(allocator.stats())
    assert allocator._repr_html_().startswith("<table>")


def test_a_fraction_caps_what_is_held() -> None:
    allocator = larder.Allocator(memory="1GiB")
    allocator.set_memory_fraction(0.25)
    assert allocator.memory_fraction() == 0.25
    with pytest.raises(larder.OutOfMemoryError) as caught:
        allocator.malloc(512 * MIB)
    assert caught.value.cap_bytes == 256 * MIB
    with pytest.raises(larder.SettingsError, match="1.5"):
        allocator.set_memory_fraction(1.5)


def test_settings_are_texts_or_dictionaries() -> None:
    text = larder.Allocator(settings="expandable_segments:True")
    mapping = larder.Allocator(settings={"expandable_segments": True})
    for allocator in (text, mapping):
        allocator.malloc(MIB)
        assert allocator.settings == "expandable_segments:True"
        assert allocator.device_calls()["malloc"] == 0
        assert allocator.device_calls()["map"] > 0
    text.configure("max_split_size_mb:64")
    mapping.configure({"max_split_size_mb": 64})
    for allocator in (text, mapping):
        assert allocator.memory_stats()["max_split_size"] == 64 * MIB
    with pytest.raises(larder.SettingsError, match="there is no setting 'nonsense'"):
        text.configure("nonsense:1")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"settings": "nonsense:1"}, "there is no setting 'nonsense'"),
        ({"settings": "max_split_size_mb:few"}, "the setting 'max_split_size_mb' takes"),
        ({"settings": "backend:cudaMallocAsync"}, "leave it out, or do not use Larder"),
        ({"settings": "policy:best"}, "best"),
        ({"policy": "torch-1"}, "torch-1"),
        (
            {"settings": "policy:larder", "policy": "torch-2.11"},
            "the settings name the policy larder",
        ),
        ({"device": "gpu"}, "'gpu' names no devices"),
        ({"device": "cuda:first"}, "'first' is no number of a GPU"),
        ({"device": "sim:80QB"}, "'sim:80QB' names no devices"),
        ({"device": "sim:80GiB*2"}, "an allocator is for one device"),
        ({"device": "cuda:0,1"}, "an allocator is for one device"),
        ({"memory": "80"}, "give a unit"),
        ({"device": "cuda:0", "memory": "8GiB"}, "a real GPU has the memory that it has"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(larder.Error, match=sentence) as caught:
        larder.Allocator(**arguments)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_a_wrong_type_is_told_as_python_tells_it() -> None:
    allocator = larder.Allocator()
    calls: list[tuple[Callable[..., object], object, str]] = [
        (
            lambda it: larder.Allocator(settings=it),
            3,
            "settings are a text or a dictionary, not int",
        ),
        (
            lambda it: larder.Allocator(memory=it),
            1.5,
            "memory is a number of bytes or a text such as '80GiB', not float",
        ),
        (allocator.configure, 3, "settings are a text or a dictionary, not int"),
        (
            allocator.on_out_of_memory,
            3,
            "an observer is called with the error, and 3 cannot be called",
        ),
        (allocator.malloc, "many", "str"),
        (allocator.malloc, 1.5, "float"),
    ]
    for call, argument, sentence in calls:
        with pytest.raises(TypeError, match=sentence):
            call(argument)


def test_a_number_that_does_not_fit_is_named() -> None:
    allocator = larder.Allocator()
    pool = allocator.new_pool()
    address = allocator.malloc(512)
    calls: list[tuple[Callable[[int], object], str]] = [
        (allocator.malloc, "size"),
        (allocator.alloc, "size"),
        (lambda it: allocator.malloc(512, it), "stream"),
        (allocator.free, "address"),
        (allocator.usable_bytes, "address"),
        (allocator.base_allocation, "address"),
        (lambda it: allocator.record_stream(address, it), "stream"),
        (allocator.issue, "stream"),
        (allocator.synchronize, "stream"),
        (lambda it: allocator.record_history(max_entries=it), "max_entries"),
        (lambda it: pool.has_live([it]), "address"),
    ]
    for call, name in calls:
        for number in (-1, 1 << 64):
            with pytest.raises(larder.UsageError) as caught:
                call(number)
            sentence = str(caught.value)
            assert sentence.startswith(
                f"{name} is a whole number from 0 to "
            ) and sentence.endswith(f", not {number}")
    assert allocator.memory_allocated() == 512


def test_a_new_stream_is_one_that_nobody_uses() -> None:
    allocator = larder.Allocator()
    address = allocator.malloc(512, stream=1)
    allocator.record_stream(address, 5)
    assert allocator.new_stream() == 6
    allocator.issue(9)
    assert [allocator.new_stream(), allocator.new_stream()] == [10, 11]
    allocator.malloc(512, stream=2**64 - 1)
    with pytest.raises(larder.DeviceError, match="all streams"):
        allocator.new_stream()


def test_a_stream_that_goes_takes_its_cache_along() -> None:
    allocator = larder.Allocator()
    compute, copy = allocator.new_stream(), allocator.new_stream()
    address = allocator.malloc(3 * MIB, compute)
    allocator.free(allocator.malloc(30 * MIB, copy))
    allocator.record_stream(address, copy)
    allocator.issue(copy)
    allocator.forget_stream(copy)
    assert allocator.memory_reserved() == 20 * MIB
    allocator.free(address)
    assert allocator.memory_stats()["active_bytes.all.current"] == 0
    with pytest.raises(larder.UsageError, match="default stream"):
        allocator.forget_stream(0)


def test_a_machine_without_cuda_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_DEVICE", "cuda:63")
    with pytest.raises(larder.DeviceError) as caught:
        larder.Allocator()
    assert "\n" not in str(caught.value)


def test_the_environment_says_what_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_DEVICE", "sim:2GiB")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:100")
    monkeypatch.setenv("LARDER_CONF", "policy:torch-2.11,page_size_mb:2")
    allocator = larder.Allocator()
    assert (allocator.device, allocator.policy) == ("sim:2GiB", "torch-2.11")
    assert allocator.memory_stats()["max_split_size"] == 100 * MIB
    assert allocator.mem_get_info()[1] == 2 << 30
    # PyTorch takes the older name alone where both are set.
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.5")
    assert larder.Allocator().memory_stats()["max_split_size"] == -1
    assert larder.Allocator(settings="", policy="larder", memory="1GiB").device == "sim:1GiB"
    monkeypatch.setenv("LARDER_CONF", "nonsense:1")
    with pytest.raises(larder.SettingsError, match="^LARDER_CONF: there is no setting 'nonsense'"):
        larder.Allocator()


def test_a_pool_keeps_its_memory_to_itself() -> None:
    allocator = larder.Allocator()
    pool = allocator.new_pool()
    with pool:
        inside = allocator.malloc(3 * MIB)
    outside = allocator.malloc(3 * MIB)
    assert pool.stats()["allocated_bytes"] == 3 * MIB
    assert pool.has_live([inside]) and not pool.has_live([outside])
    assert [segment["segment_pool_id"] for segment in pool.snapshot().segments] == [pool.id]
    allocator.free(inside)
    assert allocator.malloc(3 * MIB) != inside
    assert "reserved" in repr(pool)


def test_scopes_end_when_their_body_raises_and_do_not_nest_in_themselves() -> None:
    allocator = larder.Allocator()
    pool = allocator.new_pool()
    with pytest.raises(KeyError), pool:
        raise KeyError
    with pool, pytest.raises(larder.PoolError, match="routed to it already"):
        pool.__enter__()
    assert pool.stats()["uses"] == 1
    with pytest.raises(larder.PoolError):
        pool.__exit__(None, None, None)


def test_a_scope_is_for_its_own_thread() -> None:
    allocator = larder.Allocator()
    pool = allocator.new_pool()
    with pool:
        other = threading.Thread(target=allocator.malloc, args=(3 * MIB,))
        other.start()
        other.join()
    assert pool.stats()["allocated_bytes"] == 0
    assert allocator.memory_allocated() == 3 * MIB


def test_a_layout_is_saved_and_put_back() -> None:
    allocator = larder.Allocator()
    pool = allocator.new_pool()
    with pool:
        weights = allocator.malloc(3 * MIB)
        layout = pool.checkpoint()
        scratch = allocator.malloc(5 * MIB)
    assert [address for address, _ in layout.live] == [weights]
    freed, created = pool.restore(layout)
    assert set(freed) == {weights, scratch} and created == [weights]
    assert pool.has_live([weights])
    other = allocator.new_pool()
    with pytest.raises(larder.PoolError, match="another pool"):
        other.restore(layout)


def test_a_pool_that_is_gone_gives_its_memory_back() -> None:
    allocator = larder.Allocator()
    pool = allocator.new_pool()
    with pool:
        allocator.free(allocator.malloc(3 * MIB))
    assert allocator.memory_reserved() == 20 * MIB
    del pool
    assert allocator.memory_reserved() == 0


def test_threads_share_an_allocator() -> None:
    allocator = larder.Allocator()

    def work(stream: int) -> None:
        for step in range(2000):
            allocator.free(allocator.malloc(512 * (1 + step % 7), stream))

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    allocator.check()
    assert allocator.memory_allocated() == 0
    assert allocator.memory_stats()["allocation.all.allocated"] == 8000


def test_the_history_has_pythons_stacks() -> None:
    allocator = larder.Allocator()
    allocator.record_history()

    def train() -> None:
        with allocator.alloc(MIB):
            pass

    with allocator.annotation("step"):
        train()
    snapshot = allocator.snapshot()
    (entry,) = [entry for entry in snapshot.trace() if entry["action"] == "alloc"]
    assert entry["frames"][0]["name"] == "train", "the package's own frames are left out"
    assert entry["frames"][0]["filename"] == __file__
    annotations = snapshot.to_dict()["external_annotations"]
    assert [(one["name"], one["stage"]) for one in annotations] == [
        ("step", "START"),
        ("step", "END"),
    ]
    allocator.stop_history()
    assert allocator.snapshot().trace() == []


def test_a_history_can_be_short_and_without_stacks() -> None:
    allocator = larder.Allocator()
    allocator.record_history(stacks="never", max_entries=2)
    for _ in range(5):
        allocator.free(allocator.malloc(512))
    trace = allocator.snapshot().trace()
    assert [entry["action"] for entry in trace] == ["free_requested", "free_completed"]
    assert not trace[0].get("frames")
    with pytest.raises(larder.UsageError, match="there is no level 'some'"):
        allocator.record_history(stacks="some")


def test_what_is_only_for_simulated_gpus_and_repr() -> None:
    allocator = larder.Allocator(memory="1536MiB", policy="torch-2.11")
    assert repr(allocator) == (
        "<larder.Allocator on sim:1536MiB, policy torch-2.11: 0 bytes allocated, 0 bytes reserved>"
    )
    base, size = allocator.base_allocation(allocator.malloc(512))
    assert size == 2 * MIB and base > 0


def test_allocators_can_be_subclassed() -> None:
    class Mine(larder.Allocator):
        pass

    mine: Mine = Mine(memory="1GiB")
    assert isinstance(mine, Mine)
