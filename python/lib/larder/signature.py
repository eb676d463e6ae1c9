"""Signature: what a snapshot that PyTorch takes on Larder says of Larder, among the settings, where
Larder's own snapshots say it: who decides, and what each device has. Without it a reader would take
the snapshot for one of PyTorch's own allocator, and guess the cap.
"""

from __future__ import annotations

import functools
import re
from types import ModuleType
from typing import Any

__all__ = ["arrange", "policy_named"]

TAKES = "_cuda_memorySnapshot"


def arrange(torch: ModuleType, policy: str) -> None:
    """Has every snapshot that PyTorch takes in this process signed. All of Python's ways to one,
    `torch.cuda.memory._dump_snapshot` among them, lead through one function."""
    native = getattr(torch, "_C", None)
    take = getattr(native, TAKES, None)
    if take is None:
        return

    @functools.wraps(take)
    def take_signed(*words: Any, **more: Any) -> Any:
        taken = take(*words, **more)
        settings = taken.get("allocator_settings") if isinstance(taken, dict) else None
        if isinstance(settings, dict):
            settings["larder_policy"] = policy
            settings["larder_devices"] = _devices(torch)
        return taken

    setattr(native, TAKES, take_signed)


def policy_named(own_settings: str, release: tuple[int, ...]) -> str:
    """The policy that a process has with these settings of LARDER_CONF, by its whole name."""
    named = re.findall(r"(?:^|,)\s*policy\s*:\s*([^,\s]+)", own_settings)
    policy = named[-1] if named else "larder"
    return f"torch-{release[0]}.{release[1]}" if policy == "torch" else policy


def _devices(torch: ModuleType) -> list[dict[str, Any]]:
    """What each device has, and how much of it the program may hold."""
    if not torch.cuda.is_initialized():
        return []
    devices = []
    for device in range(torch.cuda.device_count()):
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        fraction = torch._C._cuda_getMemoryFraction(device)
        cap_bytes = int(fraction * total_bytes) if fraction < 1 else None
        devices.append({"device": device, "total_bytes": total_bytes, "cap_bytes": cap_bytes})
    return devices
