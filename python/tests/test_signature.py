"""The signature that PyTorch's own snapshots get on Larder, and what the commands make of it."""

from __future__ import annotations

import pathlib
import pickle
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import larder
import pytest
from larder import signature

MIB = 1 << 20


def stand_in(fraction: float) -> Any:
    """A `torch` that takes snapshots, with one card of 1 GiB."""
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,"}
    taken = {"segments": [], "device_traces": [[]], "allocator_settings": settings}
    native = SimpleNamespace(
        _cuda_memorySnapshot=lambda pool=None: pickle.loads(pickle.dumps(taken)),
        _cuda_getMemoryFraction=lambda device: fraction,
    )
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda device: SimpleNamespace(total_memory=1 << 30),
    )
    return SimpleNamespace(_C=native, cuda=cuda)


@pytest.mark.parametrize(("fraction", "cap"), [(1.0, None), (0.1, int(0.1 * (1 << 30)))])
def test_a_snapshot_of_pytorch_says_who_decides_and_what_there_is(
    fraction: float, cap: int | None
) -> None:
    torch = stand_in(fraction)
    signature.arrange(cast(ModuleType, torch), "tight")
    settings = torch._C._cuda_memorySnapshot(None)["allocator_settings"]
    assert settings["larder_policy"] == "tight"
    device = {"device": 0, "total_bytes": 1 << 30, "cap_bytes": cap}
    assert settings["larder_devices"] == [device]


def test_the_policy_is_that_of_the_settings() -> None:
    named = signature.policy_named
    assert named("", (2, 11)) == "larder"
    assert named("tight_soft:1.1, policy : tight", (2, 11)) == "tight"
    assert named("policy:torch", (2, 13)) == "torch-2.13"


def test_a_cap_that_a_call_set_is_known_to_the_byte(tmp_path: pathlib.Path) -> None:
    """With two failures in one program the file tells of the second."""
    path = tmp_path / "second.pickle"
    allocator = larder.Allocator("sim:1GiB", settings=f"oom_snapshot:{path},policy:torch-2.11")
    allocator.set_memory_fraction(0.4)
    cap = int(0.4 * (1 << 30))
    for size in (500 * MIB, 700 * MIB):
        with pytest.raises(larder.OutOfMemoryError):
            allocator.malloc(size)
    found = larder.explain(path)
    assert found is not None and found.data["failure"]["requested_bytes"] == 700 * MIB
    assert (found.data["allowed_bytes"], found.data["caps"]) == (cap, None)
    assert "recorded memory fraction of 0.4," in str(found)
    first = larder.explain(path, failure=1)
    assert first is not None and first.data["failure"]["requested_bytes"] == 500 * MIB
