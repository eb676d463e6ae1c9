"""What the tests share: the recorded programs, small stand-ins for PyTorch, and other Pythons to
start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import larder
from stand_in import FakeTorch, Run, Script

REPOSITORY = Path(__file__).resolve().parents[2]

VARIABLES = (
    "CUDA_HOME",
    "CUDA_PATH",
    "CXX",
    "CXXFLAGS",
    "LARDER_CACHE",
    "LARDER_COMPILE",
    "LARDER_CONF",
    "LARDER_DEVICE",
    "LARDER_INSTALL",
    "PYTHONPATH",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the settings of whoever runs it, nor writes into their cache."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LARDER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def workloads() -> Path:
    """The recorded programs of the repository."""
    return REPOSITORY / "workloads"


@pytest.fixture
def fake_torch(tmp_path: Path) -> FakeTorch:
    """A stand-in for PyTorch, to be made as the test wants it."""
    return FakeTorch(tmp_path / "site")


@pytest.fixture
def run_python(tmp_path: Path, fake_torch: FakeTorch) -> Run:
    """Starts Python with some words, the stand-in for PyTorch on its path, in a folder of the
    test.
    """
    home = Path(larder.__file__).parents[1]

    def run(
        *words: str, environment: dict[str, str] | None = None, input: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        paths = [str(fake_torch.folder), str(home)]
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "STAND_IN_DIARY": str(fake_torch.diary),
        }
        variables.update(environment or {})
        return subprocess.run(
            [sys.executable, *words],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            input=input,
        )

    return run


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Writes a script into the test's folder."""

    def write(text: str, name: str = "script.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    return write
