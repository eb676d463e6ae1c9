"""Numba's device arrays in the cache that PyTorch uses: a memory manager for Numba.

    NUMBA_CUDA_MEMORY_MANAGER=larder.numba python -m larder program.py

or, before Numba's first use of the GPU:

    import larder.numba
    numba.cuda.set_memory_manager(larder.numba.Manager)

Numba does not say for which stream it wants memory. It is the default stream, or what
`allocating_on` says.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import threading
from collections.abc import Iterator
from typing import Any

from larder import cache
from larder.errors import AddressError, InstallError, OutOfMemoryError, UsageError
from larder.streams import handle_of

try:
    from numba.cuda import HostOnlyCUDAMemoryManager, MemoryPointer
    from numba.cuda.cudadrv import driver
except ImportError as error:
    raise InstallError(
        f"Numba's CUDA part cannot be imported ({error}): pip install numba-cuda"
    ) from error

__all__ = ["Manager", "allocating_on", "record_stream"]

# As the driver counts its errors.
_INVALID_VALUE, _OUT_OF_MEMORY = 1, 2

_thread = threading.local()


@contextlib.contextmanager
def allocating_on(stream: Any) -> Iterator[None]:
    """What this thread's Numba allocates inside is for work on this stream, and goes back to it.

    `stream` is Numba's, PyTorch's, or a handle. Where it is destroyed later,
    `larder.torch.forget_stream` comes first.
    """
    handle = handle_of(stream)
    before = _current()
    _thread.stream = handle
    try:
        yield
    finally:
        _thread.stream = before


def record_stream(array: Any, stream: Any) -> None:
    """Says that another stream than the array's own works on it, as `torch.Tensor.record_stream`
    does.

    Given back, its memory serves nobody before the work that is on that stream then. Streams that
    Numba makes wait for the default stream and it for them, so that arrays of the default stream
    need this for others' streams alone.
    """
    pointer = getattr(array, "gpu_data", None)
    if pointer is None:
        raise UsageError(f"{type(array).__name__} is no device array of Numba's")
    address = int(pointer.owner.device_pointer)
    try:
        cache.record_use(address, handle_of(stream))
    except AddressError as error:
        raise UsageError(
            "the array's memory is not Larder's: it came from others, or before the manager"
        ) from error


def _current() -> int:
    handle: int = getattr(_thread, "stream", 0)
    return handle


class Manager(driver.GetIpcHandleMixin, HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Gives Numba memory of the device from the cache that PyTorch uses; of the host it is Numba's
    own.
    """

    @property
    def interface_version(self) -> int:
        return 1

    def initialize(self) -> None:
        """Numba is about to use a device. Raises `InstallError` where PyTorch's memory is not
        Larder's.
        """
        cache.opened()
        if importlib.import_module("numba").config.CUDA_PER_THREAD_DEFAULT_STREAM:
            # No memory can be kept for that one, which says so.
            handle_of(2)

    def memalloc(self, size: int) -> Any:
        if size <= 0:
            raise driver.CudaAPIError(_INVALID_VALUE, f"no memory of {size} bytes can be had")
        try:
            address = cache.take(self.context.device.id, size, _current())
        except OutOfMemoryError as error:
            raise driver.CudaAPIError(_OUT_OF_MEMORY, str(error)) from error
        finalizer = functools.partial(cache.drop, address)
        return MemoryPointer(self.context, ctypes.c_void_p(address), size, finalizer=finalizer)

    def get_memory_info(self) -> Any:
        """What is free on the device and what it has, as the driver says it; what is cached is not
        free.
        """
        free, total = importlib.import_module("torch").cuda.mem_get_info(self.context.device.id)
        return driver.MemoryInfo(free=free, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        try:
            return super().get_ipc_handle(memory)
        except driver.CudaAPIError as error:
            raise driver.CudaAPIError(
                error.code,
                f"{error.msg}: memory of expandable segments has no such handle; allocate it under "
                "larder.torch.plain_memory(), or set "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, unless the policy is tight",
            ) from error


# By this name Numba finds it in a module that NUMBA_CUDA_MEMORY_MANAGER names.
_numba_memory_manager = Manager
