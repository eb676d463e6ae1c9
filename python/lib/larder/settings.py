"""Settings and sizes, as people write them in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from larder import _native

__all__ = ["Settings", "memory_bytes", "settings_text"]

Settings = Union[str, Mapping[str, object]]
"""Settings: the text of PYTORCH_CUDA_ALLOC_CONF, or a dictionary."""


def settings_text(settings: Settings) -> str:
    """The text that settings stand for.

    >>> settings_text({"expandable_segments": True, "max_split_size_mb": 128})
    'expandable_segments:True,max_split_size_mb:128'
    >>> settings_text({"roundup_power2_divisions": {"256": 1, ">": 4}})
    'roundup_power2_divisions:[256:1,>:4]'
    """
    if isinstance(settings, str):
        return settings
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings are a text or a dictionary, not {type(settings).__name__}")
    return ",".join(f"{key}:{_value(value)}" for key, value in settings.items())


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "[" + ",".join(f"{key}:{inner}" for key, inner in value.items()) + "]"
    return str(value)


def memory_bytes(memory: int | str) -> int:
    """How much memory a device has, out of a number of bytes or a text.

    >>> memory_bytes("24GiB")
    25769803776
    """
    if isinstance(memory, bool) or not isinstance(memory, (int, str)):
        raise TypeError(
            f"memory is a number of bytes or a text such as '80GiB', not {type(memory).__name__}"
        )
    return _native.parse_size(str(memory))
