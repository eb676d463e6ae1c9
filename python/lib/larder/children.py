"""Child processes: an environment in which each of them has Larder in PyTorch too.

`LARDER_INSTALL=1` says so, and the folder `_bootstrap` comes first on PYTHONPATH, so that Python
runs the `sitecustomize.py` there as it starts.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

__all__ = ["BOOTSTRAP", "arrange"]

BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bootstrap")


def arrange(environment: MutableMapping[str, str]) -> None:
    """Has every Python that is started in this environment install Larder."""
    environment["LARDER_INSTALL"] = "1"
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in paths if path and path != BOOTSTRAP]
    environment["PYTHONPATH"] = os.pathsep.join([BOOTSTRAP, *others])
