"""The cache that PyTorch's memory comes from, as other libraries of the process take theirs from
it.

`larder.cupy`, `larder.numba` and `larder.rmm` are made of this. What they take is counted in
PyTorch's statistics and shown in its snapshots, and what one gives back serves another.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from larder import torch as larder_torch
from larder.errors import AddressError, DeviceError, InstallError, OutOfMemoryError, UsageError
from larder.streams import raw_handle_of

__all__ = ["Block", "drop", "drop_on", "forget", "opened", "record_use", "take"]

_library: ctypes.CDLL | None = None


def opened() -> ctypes.CDLL:
    """The C++ part, once PyTorch runs on Larder and its devices are open.

    Raises `InstallError` with one sentence where PyTorch does not.
    """
    global _library
    if _library is None:
        # Under `python -m larder`, this is what puts Larder in PyTorch's place.
        torch = larder_torch._import_torch()
        if not larder_torch.is_installed():
            raise InstallError(
                "there is no cache to share: PyTorch's memory in this process is not Larder's; "
                "start the program by "
                "`python -m larder`, or call larder.torch.install() first"
            )
        library = larder_torch._installed()
        _declare(library)
        torch.cuda.init()
        _library = library
    return _library


def _close_in_child() -> None:
    """A forked process cannot use its parent's devices, and PyTorch says so when it is asked to
    open them.
    """
    global _library
    _library = None


os.register_at_fork(after_in_child=_close_in_child)


def _declare(library: ctypes.CDLL) -> None:
    """Says what the functions of the C++ part take."""
    library.larder_torch_take.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
    library.larder_torch_take.restype = ctypes.c_void_p
    library.larder_torch_was_out_of_memory.argtypes = []
    library.larder_torch_was_out_of_memory.restype = ctypes.c_int
    library.larder_torch_put.argtypes = [ctypes.c_void_p]
    library.larder_torch_put.restype = ctypes.c_int
    library.larder_torch_record_use.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.larder_torch_record_use.restype = ctypes.c_int


def take(device: int, size: int, stream: int) -> int:
    """The address of memory for work on a stream, which is its handle; 0 for no bytes.

    Raises `OutOfMemoryError`, or what else was wrong as `Error`.
    """
    if size == 0:
        return 0
    if size < 0:
        raise UsageError(f"a size is a number of bytes, not {size}")
    library = opened()
    address: int | None = library.larder_torch_take(device, size, stream)
    if address:
        return address
    said = library.larder_torch_last_error().decode(errors="replace")
    if library.larder_torch_was_out_of_memory():
        raise OutOfMemoryError(said, requested_bytes=size)
    raise DeviceError(said)


def record_use(address: int, stream: int) -> None:
    """Another stream works on it too: given back, it serves nobody before the work that is on the
    stream then.
    """
    if address and opened().larder_torch_record_use(address, stream) != 0:
        raise AddressError(opened().larder_torch_last_error().decode(errors="replace"))


# What follows is for destructors, which must not raise: what goes wrong is said. Once the process
# is so far gone that this module is, or in a forked one, nobody is left to serve.


def drop(address: int) -> None:
    """Gives memory back to the stream that it was taken for."""
    library = _library
    if library is not None and address and library.larder_torch_put(address) != 0:
        _complain("memory could not be given back", library)


def drop_on(address: int, stream: Any) -> None:
    """As `drop`, where the last work on the memory is on this stream, which may be another than it
    was taken for.
    """
    library = _library
    if library is None or not address:
        return
    if library.larder_torch_record_use(address, raw_handle_of(stream)) != 0:
        _complain("a stream's use of memory could not be noted", library)
    drop(address)


def forget(device: int, stream: int) -> None:
    """A stream is about to be destroyed; see `larder.torch.forget_stream`."""
    library = _library
    if library is not None and library.larder_torch_forget_stream(device, stream) != 0:
        _complain("a stream could not be forgotten", library)


def _complain(what: str, library: ctypes.CDLL) -> None:
    said = library.larder_torch_last_error().decode(errors="replace")
    print(f"larder: {what}: {said}", file=sys.stderr)


class Block:
    """Owns memory that was taken, and gives it back when nobody refers to it any more."""

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address

    # Whoever is left when the interpreter ends has no module to look into.
    def __del__(self, drop: Callable[[int], None] = drop) -> None:
        drop(self.address)
