"""RMM's buffers in the cache that PyTorch uses.

    import larder.rmm
    larder.rmm.install()

From then on RMM, and what is built on it, takes memory for the stream that it names from Larder.
"""

from __future__ import annotations

import importlib
from typing import Any

from larder import cache
from larder.errors import AddressError, InstallError, UsageError
from larder.streams import handle_of

__all__ = ["install", "is_installed", "record_stream", "resource", "uninstall"]

# Ours by device. They are kept for good: RMM's buffers call them by their bare address when they
# go.
_resources: dict[int, Any] = {}
_before: dict[int, Any] = {}


def resource(device: int | None = None) -> Any:
    """A device resource of RMM's over the cache that PyTorch uses, of one device; the current one
    if none is named.

    Raises `InstallError` with one sentence if RMM is not there, or if PyTorch's memory is not
    Larder's.
    """
    rmm = _rmm()
    cache.opened()
    torch = importlib.import_module("torch")
    index = torch.cuda.current_device() if device is None else device
    if index not in _resources:
        # RMM wants it made where it is used.
        with torch.cuda.device(index):
            _resources[index] = _make_resource(rmm, index)
    return _resources[index]


def is_installed() -> bool:
    """Whether RMM takes the memory of all devices from Larder."""
    mr = _rmm().mr
    return bool(_before) and all(
        mr.get_per_device_resource(device) is _resources[device] for device in _before
    )


def install() -> None:
    """Has RMM take the memory of all devices from the cache that PyTorch uses. Doing it again does
    nothing.

    Buffers that are there already stay where they are. Raises what `resource` raises.
    """
    if is_installed():
        return
    mr = _rmm().mr
    cache.opened()
    for device in range(importlib.import_module("torch").cuda.device_count()):
        ours, current = resource(device), mr.get_per_device_resource(device)
        if current is not ours:
            mr.set_per_device_resource(device, ours)
            _before[device] = current


def uninstall() -> None:
    """Has RMM take its memory as it did before `install`. Buffers that are there stay good."""
    if not _before:
        return
    mr = _rmm().mr
    for device, before in _before.items():
        if mr.get_per_device_resource(device) is _resources[device]:
            mr.set_per_device_resource(device, before)
    _before.clear()


def record_stream(buffer: Any, stream: Any) -> None:
    """Says that another stream than the buffer's own works on it, as `torch.Tensor.record_stream`
    does.

    Given back, its memory serves nobody before the work that is on the other stream then. `stream`
    is anybody's: RMM's, PyTorch's, or a handle.
    """
    address = getattr(buffer, "ptr", None)
    if not isinstance(address, int):
        raise UsageError(f"{type(buffer).__name__} is no buffer of RMM's: it has no ptr")
    try:
        cache.record_use(address, handle_of(stream))
    except AddressError as error:
        raise UsageError(
            "the buffer's memory is not Larder's: it was made before larder.rmm.install(), or by "
            "others"
        ) from error


def _rmm() -> Any:
    try:
        rmm = importlib.import_module("rmm")
        importlib.import_module("rmm.mr")
        return rmm
    except ImportError as error:
        raise InstallError(f"RMM cannot be imported ({error}): pip install rmm-cu13") from error


def _make_resource(rmm: Any, device: int) -> Any:
    # What is raised here goes through C++, which keeps a MemoryError one, as Larder's is.
    def allocate(size: int, stream: Any) -> int:
        return cache.take(device, size, handle_of(stream))

    # RMM says on which stream the buffer was used last. Nothing may be raised here.
    def deallocate(address: int, _size: int, stream: Any) -> None:
        cache.drop_on(address, stream)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
