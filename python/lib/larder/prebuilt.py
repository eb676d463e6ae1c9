"""The C++ part as a wheel brings it: built beforehand for each PyTorch that is known, so that
nothing is compiled.

A package that was built where it is used brings none, and all of them are compiled
(`larder.backend`).
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING

from larder.errors import InstallError, SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from larder.torch_facts import TorchFacts

__all__ = ["check", "path_for", "versions"]

FOLDER: str | Path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_prebuilt")
VARIABLE = "LARDER_COMPILE"
"""Has the C++ part compiled all the same."""


def versions() -> list[str]:
    """The PyTorchs for which there is one, the oldest first."""
    try:
        names = os.listdir(FOLDER)
    except OSError:
        return []
    found = [match[1] for name in names if (match := re.fullmatch(r"torch-(\d+\.\d+)\.so", name))]
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def path_for(torch: TorchFacts) -> str | None:
    """The library for this PyTorch; none where one has to be compiled.

    A minor version's interface is that of all its releases. What was built in between is none of
    them.
    """
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\.post\d+)?(\+.*)?", torch.version)
    if _compiles_all_the_same() or release is None or not torch.cxx11_abi:
        return None
    return _file(release[1]) if release[1] in versions() else None


def check(library: ctypes.CDLL, path: str, torch: TorchFacts) -> None:
    """Refuses a library that says it was built for another PyTorch than this one."""
    try:
        tells = library.larder_torch_version
    except AttributeError as error:
        raise InstallError(f"{path} is not Larder's C++ part: {error}") from error
    tells.argtypes = []
    tells.restype = ctypes.c_char_p
    built_for = tells().decode(errors="replace")
    major, minor = torch.release
    if built_for != f"{major}.{minor}":
        raise InstallError(
            f"{path} says that it was built for torch {built_for}, and this is torch "
            f"{torch.version}: install larder "
            f"anew, or set {VARIABLE}=1, which compiles the C++ part here"
        )


def _file(version: str) -> str:
    return os.path.join(FOLDER, f"torch-{version}.so")


def _compiles_all_the_same() -> bool:
    text = os.environ.get(VARIABLE, "")
    if text not in ("", "0", "1"):
        raise SettingsError(
            f"{VARIABLE} is '{text}', and it takes 1, which has the C++ part compiled, or 0"
        )
    return text == "1"
