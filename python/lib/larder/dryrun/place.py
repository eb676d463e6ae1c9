"""Where the libraries of a dry run are: what plays the card, and the part for each PyTorch."""

from __future__ import annotations

import os
import re

from larder.errors import InstallError

__all__ = ["library", "part"]

VARIABLE = "LARDER_DRYRUN_FOLDER"
"""A folder with the libraries, in place of the package's own."""

INSIDE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_dryrun")


def _folder() -> str:
    return os.environ.get(VARIABLE, INSIDE)


def library() -> str:
    """The library that plays the card."""
    path = os.path.join(_folder(), "liblarder_dryrun.so")
    if not os.path.isfile(path):
        raise InstallError(
            f"there is no {path}, which plays the card: the wheel brings it, and in a checkout "
            f"`cargo xtask dryrun` builds it and {VARIABLE} names its folder"
        )
    return path


def part(version: str) -> str:
    """The part that knows values, for this PyTorch."""
    release = re.match(r"(\d+\.\d+)\.", version)
    path = os.path.join(_folder(), f"dry-{release[1] if release else version}.so")
    if not os.path.isfile(path):
        known = sorted(name for name in os.listdir(_folder()) if name.startswith("dry-"))
        known = [name.removeprefix("dry-").removesuffix(".so") for name in known]
        raise InstallError(
            f"a dry run knows PyTorch {', '.join(known) or 'in no version'}, and this is torch "
            f"{version}"
        )
    return path
