"""What can go wrong. What Larder refuses is a `larder.Error`, and its text is one sentence.

An argument of a type that a call does not take is a `TypeError`, and a path that leads nowhere an
`OSError`, as everywhere in Python.
"""

from __future__ import annotations

__all__ = [
    "AddressError",
    "DeviceError",
    "DivergenceError",
    "Error",
    "ExchangeError",
    "FileError",
    "InstallError",
    "OutOfMemoryError",
    "PoolError",
    "SettingsError",
    "UsageError",
]


class Error(RuntimeError):
    """Why a call failed. Whatever the case, nothing is half done."""


class OutOfMemoryError(Error, MemoryError):
    """A request could not be met, whatever was tried. The numbers are attributes."""

    def __init__(
        self,
        message: str,
        *,
        requested_bytes: int = 0,
        tried_bytes: int = 0,
        free_bytes: int = 0,
        total_bytes: int = 0,
        allocated_bytes: int = 0,
        reserved_bytes: int = 0,
        private_free_bytes: int = 0,
        cap_bytes: int | None = None,
        largest_free_block_bytes: int = 0,
    ) -> None:
        super().__init__(message)
        self.requested_bytes = requested_bytes
        """What the program asked for."""
        self.tried_bytes = tried_bytes
        """What the device was asked for."""
        self.free_bytes = free_bytes
        """What nobody holds of the device."""
        self.total_bytes = total_bytes
        """All that the device has."""
        self.allocated_bytes = allocated_bytes
        """What is live."""
        self.reserved_bytes = reserved_bytes
        """What the allocator holds of the device."""
        self.private_free_bytes = private_free_bytes
        """What is free in private pools, where others do not get it."""
        self.cap_bytes = cap_bytes
        """The cap on what may be held, if there is one."""
        self.largest_free_block_bytes = largest_free_block_bytes
        """The largest cached block that is free."""


class AddressError(Error, ValueError):
    """The address is not that of a live allocation: never handed out, or freed already."""


class PoolError(Error):
    """A private pool cannot be used in this way."""


class SettingsError(Error, ValueError):
    """A settings text cannot be read, or asks for what cannot be."""


class DeviceError(Error):
    """The device refused a call, or is not there."""


class DivergenceError(Error):
    """The ranks of a symmetric pool did not make the same calls. Every rank is told the same."""

    def __init__(
        self,
        message: str,
        *,
        call: int | None = None,
        ranks: list[tuple[str, str]] | None = None,
        odd_ranks: list[int] | None = None,
    ) -> None:
        super().__init__(message)
        self.call = call
        """The number of the first call that differs; none if some rank no longer remembers it."""
        self.ranks = ranks or []
        """What each rank did there, as "request 4096" or "free 17", and its stack if it kept a
        history.
        """
        self.odd_ranks = odd_ranks or []
        """The ranks that did what fewer of them did than anything else."""


class ExchangeError(Error):
    """The ranks of a symmetric pool could not compare their calls."""


class UsageError(Error, ValueError):
    """An argument is not one that the call takes."""


class FileError(Error, ValueError):
    """A file is not what it should be."""


class InstallError(Error):
    """Larder cannot take the place of PyTorch's allocator, and did not."""
