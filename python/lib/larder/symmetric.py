"""Symmetric pools under PyTorch: the same offsets on every rank, over PyTorch's own symmetric
memory.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

from larder.errors import DivergenceError, Error, ExchangeError, PoolError, UsageError
from larder.source import Position

__all__ = ["Exchange", "SymmetricPool", "make"]

Exchange = Callable[[bytes], "list[bytes]"]
"""Gives what this rank says to all ranks, and returns what each of them said, in their order."""

SEAL_BYTES = 1024

_EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def _declare(library: ctypes.CDLL) -> None:
    """Says what the functions of the C++ part take."""
    numbers = ctypes.POINTER(ctypes.c_uint64)
    library.larder_torch_ask_for_symmetric.argtypes = [ctypes.c_size_t]
    library.larder_torch_ask_for_symmetric.restype = None
    library.larder_torch_symmetric_was_made.argtypes = []
    library.larder_torch_symmetric_was_made.restype = ctypes.c_int
    library.larder_torch_position_of.argtypes = [ctypes.c_void_p, numbers]
    library.larder_torch_position_of.restype = ctypes.c_int
    library.larder_torch_seal.argtypes = [
        ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, _EXCHANGE, numbers,
    ]  # fmt: skip
    library.larder_torch_seal.restype = ctypes.c_int
    library.larder_torch_trim.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, numbers]
    library.larder_torch_trim.restype = ctypes.c_int


def make(
    library: ctypes.CDLL, group: Any, device: Any, growth: int, exchange: Exchange | None
) -> SymmetricPool:
    """Makes the pool of a group; see `larder.torch.symmetric_pool`."""
    if growth < 0:
        raise UsageError(f"growth is a number of bytes, not {growth}")
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    memory = importlib.import_module("torch.distributed._symmetric_memory")
    if group is None:
        group = distributed.group.WORLD
    if group is None:
        raise UsageError("torch.distributed has no process group yet: init_process_group makes one")
    device = (
        torch.device("cuda", torch.cuda.current_device())
        if device is None
        else torch.device(device)
    )
    _declare(library)
    # PyTorch makes the pool, and the C++ part makes it a symmetric one.
    allocator = memory.get_mempool_allocator(device)
    library.larder_torch_ask_for_symmetric(growth)
    was_made = False
    try:
        with torch.cuda.device(device):
            pool = torch.cuda.MemPool(allocator)
    finally:
        was_made = bool(library.larder_torch_symmetric_was_made())
    if not was_made:
        raise PoolError(
            "PyTorch made the pool with no allocator of its own, so that it is not symmetric"
        )
    return SymmetricPool(library, pool, group, device, exchange)


class SymmetricPool:
    """Symmetric memory with the same offsets on every rank. Inside `with pool:` the thread's
    tensors come from it.

    Use on another stream than the default one makes that wait for the default stream, and a free
    makes the default stream wait for all streams that used the tensor. Tensors of one segment share
    its signal pad, so that collectives on them must follow one another on one stream.
    """

    def __init__(
        self, library: ctypes.CDLL, pool: Any, group: Any, device: Any, exchange: Exchange | None
    ) -> None:
        self._library = library
        self._group = group
        self._device = device
        self._exchange = exchange or self._gather
        self._scopes: list[Any] = []
        self.pool = pool
        """PyTorch's pool, for `torch.cuda.use_mem_pool` and its snapshot."""

    def __enter__(self) -> SymmetricPool:
        torch = importlib.import_module("torch")
        scope = torch.cuda.use_mem_pool(self.pool, device=self._device)
        scope.__enter__()
        self._scopes.append(scope)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scopes.pop().__exit__(kind, error, traceback)

    def position_of(self, tensor: Any) -> Position:
        """Where a tensor's memory lies: the same on every rank that made the same calls."""
        found = (ctypes.c_uint64 * 3)()
        if self._library.larder_torch_position_of(tensor.untyped_storage().data_ptr(), found) != 0:
            raise PoolError(self._said())
        return Position(*found)

    def seal(self) -> int:
        """Compares the calls of all ranks, each of which calls this at the same point, and says how
        many there are.

        If they differ every rank gets the same `DivergenceError`, which names the first call that
        does.
        """
        if self._scopes:
            # What an exchange allocates would be a call of this rank's own.
            raise UsageError("a pool is sealed outside of its `with`")
        raised: list[BaseException] = []
        ranks = self._ranks()

        def exchange(_data: int, said: int, heard: int) -> bool:
            try:
                answers = self._exchange(ctypes.string_at(said, SEAL_BYTES))
                if len(answers) != ranks or any(len(answer) != SEAL_BYTES for answer in answers):
                    raise ExchangeError(
                        f"the exchange returned something else than {SEAL_BYTES} bytes of each rank"
                    )
                ctypes.memmove(heard, b"".join(answers), ranks * SEAL_BYTES)
            except BaseException as error:  # noqa: BLE001 (it goes on below, past the C++ part)
                raised.append(error)
                return False
            return True

        calls = ctypes.c_uint64()
        number, other = self.pool.id
        code = self._library.larder_torch_seal(
            self._device.index, number, other, ranks, _EXCHANGE(exchange), ctypes.byref(calls)
        )
        if raised:
            raise raised[0]
        if code != 0:
            raise _divergence(self._said())
        return calls.value

    def rendezvous(self, tensor: Any) -> Any:
        """Seals the pool, and then does what `torch.distributed._symmetric_memory.rendezvous`
        does.
        """
        self.seal()
        memory = importlib.import_module("torch.distributed._symmetric_memory")
        return memory.rendezvous(tensor, self._group)

    def get_buffer(self, handle: Any, rank: int, tensor: Any) -> Any:
        """The tensor that another rank has where this one has `tensor`, through the handle of its
        rendezvous.

        PyTorch's own `handle.get_buffer` counts from where the segment begins, which tensors here
        share.
        """
        if not tensor.is_contiguous():
            raise UsageError("get_buffer is for contiguous tensors")
        within = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
        begin = (self.position_of(tensor).offset + within) // tensor.element_size()
        return handle.get_buffer(rank, tuple(tensor.shape), tensor.dtype, begin)

    def trim(self) -> int:
        """Gives back the segments in which there is no tensor, and says how many. All ranks have to
        do it.
        """
        segments = ctypes.c_uint64()
        if (
            self._library.larder_torch_trim(
                self._device.index, *self.pool.id, ctypes.byref(segments)
            )
            != 0
        ):
            raise PoolError(self._said())
        return segments.value

    def _ranks(self) -> int:
        return int(importlib.import_module("torch.distributed").get_world_size(self._group))

    def _gather(self, said: bytes) -> list[bytes]:
        heard: list[Any] = [None] * self._ranks()
        importlib.import_module("torch.distributed").all_gather_object(
            heard, said, group=self._group
        )
        return heard

    def _said(self) -> str:
        said = self._library.larder_torch_last_error()
        return said.decode(errors="replace") if said else "the C++ part says nothing"


def _divergence(sentence: str) -> Error:
    """The error that a sentence of the C++ part stands for."""
    _, found, rest = sentence.partition(" part at call ")
    if found:
        number, _, _ = rest.partition(":")
        return DivergenceError(sentence, call=int(number) if number.isdigit() else None)
    if "parted before call" in sentence:
        return DivergenceError(sentence)
    return ExchangeError(sentence) if "could not compare" in sentence else PoolError(sentence)
