"""What the environment asks of Larder in a process with PyTorch; checked before anything is
touched.

Mostly it asks for nothing, and then the native module, which takes some milliseconds to load, is
left alone.
"""

from __future__ import annotations

import os

from larder.errors import SettingsError, UsageError

__all__ = ["check_device", "check_own", "check_torch", "torch_variables"]

DEVICE = "LARDER_DEVICE"
OWN = "LARDER_CONF"


def check_device() -> None:
    """Refuses a LARDER_DEVICE: which GPUs there are is PyTorch's matter."""
    text = _plain(DEVICE, os.environ.get(DEVICE, "cuda"))
    # "cuda" is what it is without a word. "process" is the device beside a PyTorch in a test
    # without a GPU.
    if text in ("cuda", "process"):
        return
    from larder import _native

    try:
        kind = _native.device_kind(text)
    except UsageError:
        raise SettingsError(
            f"{DEVICE} is '{text}', which is no device: unset it, PyTorch itself chooses its GPUs"
        ) from None
    if kind == "cuda":
        raise SettingsError(
            f"{DEVICE} is '{text}', and PyTorch itself chooses its GPUs: unset it, and say by "
            "CUDA_VISIBLE_DEVICES which there are"
        )
    raise SettingsError(
        f"{DEVICE} is '{text}', and PyTorch programs need a real GPU: unset it; simulated ones "
        f"are for "
        "larder.Allocator, larder.replay and their like"
    )


def check_own(name: str, text: str) -> None:
    """Refuses settings that are not Larder's own; `name` says where they are from."""
    if not text:
        return
    from larder import _native

    _native.check_own_settings(name, _plain(name, text))


def check_torch() -> None:
    """Refuses PyTorch's settings where they cannot be, as far as they are known here."""
    if not any(name.endswith("_ALLOC_CONF") for name in os.environ):
        return
    from larder import _native

    name = next((name for name in _native.TORCH_VARIABLES if name in os.environ), None)
    if name is not None:
        _native.check_torch_settings(name, _plain(name, os.environ[name]))


def torch_variables() -> list[str]:
    """The variables that PyTorch's settings may be from. The oldest counts alone; without it
    PyTorch looks at that for AMD too, even where there is none, in one of the two steps in which it
    reads."""
    from larder import _native

    oldest, newest = _native.TORCH_VARIABLES
    if oldest in os.environ:
        return [oldest]
    return [name for name in ("PYTORCH_HIP_ALLOC_CONF", newest) if name in os.environ]


def _plain(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SettingsError(f"{name} is no text in UTF-8") from None
    return text
