"""CuPy's arrays in the cache that PyTorch uses.

    import larder.cupy
    larder.cupy.install()

From then on CuPy takes memory for its current stream from Larder, and gives it back to that stream
when the array goes.
"""

from __future__ import annotations

import importlib
from typing import Any

from larder import cache
from larder.errors import InstallError, OutOfMemoryError, UsageError
from larder.streams import handle_of

__all__ = ["install", "is_installed", "record_stream", "uninstall"]

_allocator: Any = None
_before: Any = None
# Streams of CuPy's that memory was taken for, and their devices: they are forgotten when CuPy
# destroys them.
_streams: dict[int, int] = {}
_follows_streams = False


def is_installed() -> bool:
    """Whether CuPy takes its memory from Larder."""
    return _allocator is not None and _cupy().cuda.get_allocator() is _allocator


def install() -> None:
    """Has CuPy take its memory from the cache that PyTorch uses in this process. Doing it again
    does nothing.

    Arrays that are there already stay where they are. Raises `InstallError` with one sentence if
    CuPy is not there, or if PyTorch's memory is not Larder's.
    """
    global _allocator, _before
    cupy = _cupy()
    if is_installed():
        return
    cache.opened()
    _follow_streams(cupy)
    before = cupy.cuda.get_allocator()
    allocator = _make_allocator(cupy)
    cupy.cuda.set_allocator(allocator)
    _allocator, _before = allocator, before


def uninstall() -> None:
    """Has CuPy take its memory as it did before `install`. Arrays that are there stay good."""
    global _allocator, _before
    if is_installed():
        _cupy().cuda.set_allocator(_before)
    _allocator = _before = None


def record_stream(array: Any, stream: Any) -> None:
    """Says that another stream than the array's own works on it, as `torch.Tensor.record_stream`
    does.

    An array's own stream is the one that was current when it was made. Given back, its memory
    serves nobody before the work that is on the other stream then. `stream` is anybody's: CuPy's,
    PyTorch's, or a handle.
    """
    owner = getattr(getattr(getattr(array, "data", None), "mem", None), "_owner", None)
    if not isinstance(owner, cache.Block):
        raise UsageError(
            "the array's memory is not Larder's: it was made before larder.cupy.install(), or by "
            "others"
        )
    cache.record_use(owner.address, handle_of(stream))


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise InstallError(
            f"CuPy cannot be imported ({error}): pip install cupy-cuda13x"
        ) from error


def _make_allocator(cupy: Any) -> Any:
    """The function that CuPy calls for memory."""
    unowned, pointer = cupy.cuda.UnownedMemory, cupy.cuda.MemoryPointer
    current_stream, current_device = cupy.cuda.get_current_stream, cupy.cuda.runtime.getDevice
    full = cupy.cuda.memory.OutOfMemoryError

    def allocate(size: int) -> Any:
        device = current_device()
        if size == 0:
            return pointer(unowned(0, 0, None, device), 0)
        stream = handle_of(current_stream().ptr)
        try:
            address = cache.take(device, size, stream)
        except OutOfMemoryError as error:
            raise _out_of_memory(full, size, error) from error
        if stream:
            _streams[stream] = device
        return pointer(unowned(address, size, cache.Block(address), device), 0)

    return allocate


def _out_of_memory(kind: Any, size: int, error: OutOfMemoryError) -> Any:
    """CuPy's own error, with what Larder says of it."""
    found = kind(size, -1)
    found.args = (f"{found}. {error}",)
    return found


def _follow_streams(cupy: Any) -> None:
    """Forgets a stream of CuPy's before CuPy destroys it: its handle may be another's next, and no
    call may be made about it."""
    global _follows_streams
    if _follows_streams:
        return
    kind = cupy.cuda.Stream
    end = kind.__del__

    # Whoever is left when the interpreter ends has no module to look into.
    def forget_and_end(
        stream: Any, streams: dict[int, int] = _streams, forget: Any = cache.forget
    ) -> None:
        # A stream of somebody else's goes on.
        if getattr(stream, "_foreign_stream_ref", None) is None:
            device = streams.pop(getattr(stream, "ptr", 0), None)
            if device is not None:
                forget(device, stream.ptr)
        end(stream)

    kind.__del__ = forget_and_end
    _follows_streams = True
