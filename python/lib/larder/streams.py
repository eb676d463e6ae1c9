"""Streams of whichever library, as the driver knows them."""

from __future__ import annotations

from typing import Any

from larder.errors import UsageError

__all__ = ["DEFAULT", "handle_of", "raw_handle_of"]

DEFAULT = 0

# What CUDA calls the default stream where it is named, and the per-thread one.
_LEGACY, _PER_THREAD = 1, 2


def handle_of(stream: Any) -> int:
    """The driver's handle of a stream: a number, or a stream of PyTorch, CuPy, Numba, RMM, or
    whoever has `__cuda_stream__`. None is the default stream.

    Raises `UsageError` for what is no stream, and for the per-thread default stream: each thread
    has another under that one name, so that nothing can be kept for it.
    """
    handle = raw_handle_of(stream)
    if handle == _PER_THREAD:
        raise UsageError(
            "the per-thread default stream is another one in each thread under one name, and no "
            "memory can be kept for "
            "it: use the default stream, or streams that are made"
        )
    return handle


def raw_handle_of(stream: Any) -> int:
    """As `handle_of`; the per-thread default stream is the one of the thread that uses the
    handle.
    """
    handle = _said_by(stream)
    return DEFAULT if handle == _LEGACY else handle


def _said_by(stream: Any) -> int:
    if stream is None:
        return DEFAULT
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if hasattr(stream, "ptr"):
        return int(stream.ptr)
    if hasattr(stream, "handle"):
        # Numba's, whose handle is a number, or something of ctypes around one.
        return int(getattr(stream.handle, "value", stream.handle) or DEFAULT)
    raise UsageError(f"{type(stream).__name__} is no stream: it has no __cuda_stream__")
