"""The types that the package declares are those that it has, and the examples in its texts are
true.
"""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import larder

PACKAGE = Path(larder.__file__).parent
PYTHON = Path(__file__).resolve().parents[1]
MODULES = ["allocator", "settings", "snapshot", "workload"]


def mypy(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=PYTHON, capture_output=True, text=True
    )


def test_mypy_finds_nothing(tmp_path: Path) -> None:
    """In the package as it is installed, and in these tests, which use it as programs do."""
    options = ["--config-file", str(PYTHON / "pyproject.toml"), "--cache-dir", str(tmp_path)]
    done = mypy("mypy", *options, "-p", "larder")
    assert done.returncode == 0, done.stdout
    done = mypy("mypy", *options, str(PYTHON / "tests"))
    assert done.returncode == 0, done.stdout


def test_the_stubs_of_the_native_module_are_true() -> None:
    done = mypy("mypy.stubtest", "larder._native")
    assert done.returncode == 0, done.stdout


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"larder.{name}"))
    assert failed == 0
    assert tried > 0 or name == "workload"


def test_the_examples_in_the_reference_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PYTHON.parent)
    page = (PYTHON.parent / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```pycon\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "docs/python.md", None, 0)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples)
    assert result.failed == 0 and result.attempted > 20


def test_all_that_is_public_is_documented() -> None:
    page = (PYTHON.parent / "docs" / "python.md").read_text()
    for name in larder.__all__:
        thing = getattr(larder, name)
        if callable(thing) or name == "torch":
            assert thing.__doc__, name
        assert re.search(rf"\b{re.escape(name)}\b", page), f"docs/python.md does not name {name}"
    for name, method in vars(larder.Allocator).items():
        if callable(method) and not name.startswith("_"):
            assert method.__doc__, name
    for name in dir(larder.Allocator):
        if not name.startswith("_"):
            assert getattr(larder.Allocator, name).__doc__, name
