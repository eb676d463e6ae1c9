"""What Larder has to know of an installed PyTorch: its version, and how it was built."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from larder.errors import InstallError

__all__ = ["KNOWN", "TorchFacts"]

KNOWN = ((2, 11), (2, 15))
"""The oldest and the newest PyTorch that the C++ part is tested with."""


class TorchFacts(NamedTuple):
    """What the compiler has to know of a PyTorch."""

    version: str
    folder: Path
    cuda: str
    cxx11_abi: bool

    @classmethod
    def of(cls, torch: ModuleType) -> TorchFacts:
        """The facts about an imported PyTorch."""
        if torch.__file__ is None:
            raise InstallError("torch has no folder: it is not an installed PyTorch")
        return cls(
            version=str(torch.__version__),
            folder=Path(torch.__file__).parent,
            cuda=str(torch.version.cuda),
            cxx11_abi=bool(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)),
        )

    @property
    def release(self) -> tuple[int, int]:
        """Its major and its minor version."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        if match is None:
            raise InstallError(f"torch says that it is version '{self.version}', which is none")
        return int(match[1]), int(match[2])

    def libraries(self) -> list[Path]:
        """The libraries that the C++ part is linked to."""
        found = [self.folder / "lib" / name for name in ("libc10_cuda.so", "libc10.so")]
        for library in found:
            if not library.is_file():
                raise InstallError(f"torch {self.version} has no {library}")
        return found
