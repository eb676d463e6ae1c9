"""The C++ part that a wheel brings: which is taken, and that nothing is compiled then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import larder
from larder import backend, prebuilt
from larder.errors import InstallError, SettingsError
from larder.torch_facts import TorchFacts
from stand_in import STAND_IN, FakeTorch, Run, Script

VERSION = (
    'extern "C" __attribute__((visibility("default"))) const char *larder_torch_version() '
    '{{ return "{}"; }}\n'
)
INSTALL = "import larder; larder.torch.install(); print(larder.torch.is_installed())"


class Brought:
    """A package's folder of parts, and a PyTorch that is told of it."""

    def __init__(self, torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.torch = torch
        self.folder = tmp_path / "prebuilt"
        self.folder.mkdir()
        self.no_compilers = {"PATH": str(tmp_path / "nothing")}
        self.patch = monkeypatch
        monkeypatch.setattr(prebuilt, "FOLDER", self.folder)

    def make(self, version: str, parts: dict[str, str]) -> None:
        """A PyTorch of this version, and parts that say of themselves for which they were built."""
        self.torch.make(version=version)
        self.patch.setattr(backend, "SOURCES", self.torch.sources)
        facts = TorchFacts("2.11.0", self.torch.folder / "torch", "13.0", True)
        for name, built_for in parts.items():
            (self.torch.sources / "backend.cpp").write_text(STAND_IN + VERSION.format(built_for))
            shutil.move(backend.build(facts), self.folder / f"torch-{name}.so")
        (self.torch.sources / "backend.cpp").write_text(STAND_IN)
        shutil.rmtree(backend.cache_folder(), ignore_errors=True)
        with (self.torch.folder / "torch" / "__init__.py").open("a") as file:
            file.write(f"import larder.prebuilt\nlarder.prebuilt.FOLDER = {str(self.folder)!r}\n")


@pytest.fixture
def brought(fake_torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Brought:
    return Brought(fake_torch, tmp_path, monkeypatch)


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.11.3+cu126", "2.11.0"])
def test_a_part_of_the_minor_version_is_taken_and_nothing_compiled(
    run_python: Run, script: Script, brought: Brought, version: str
) -> None:
    brought.make(version, {"2.11": "2.11", "2.12": "2.12"})
    done = run_python(script(INSTALL), environment=brought.no_compilers)
    assert done.stdout == "True\n", done.stderr
    assert brought.torch.versions() == {larder.__version__}, (
        "the part calls the package's own library"
    )
    done = run_python(
        "-m",
        "larder",
        script("import torch, larder; print(larder.torch.is_installed())"),
        environment=brought.no_compilers,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert not backend.cache_folder().exists()


def test_a_part_that_was_built_for_another_torch_is_refused(
    run_python: Run, script: Script, brought: Brought
) -> None:
    brought.make("2.11.0+cu130", {"2.11": "2.12"})
    done = run_python("-m", "larder", "-c", "import torch; print('went on')")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"larder: {brought.folder}/torch-2.11.so says that it was built for torch 2.12, and this "
        f"is torch 2.11.0+cu130: "
        "install larder anew, or set LARDER_COMPILE=1, which compiles the C++ part here\n"
    )
    assert brought.torch.installs() == []
    (brought.folder / "torch-2.11.so").write_text("no library")
    done = run_python("-m", "larder", "-c", "import torch; print('went on')")
    assert (done.returncode, done.stdout) == (
        1,
        "",
    ) and "the C++ part cannot be loaded: " in done.stderr


def test_an_unknown_torch_is_compiled_or_refused(
    run_python: Run, script: Script, brought: Brought
) -> None:
    brought.make("2.16.0+cu130", {"2.11": "2.11", "2.12": "2.12"})
    done = run_python(
        "-m", "larder", "-c", "import torch; print('went on')", environment=brought.no_compilers
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "larder: there is no C++ compiler, and the package brings the C++ part for torch 2.11 "
        "and 2.12, and not for "
        "torch 2.16.0+cu130: install g++"
    )
    done = run_python(script(INSTALL))
    assert done.stdout == "True\n" and "compiling the C++ part for torch 2.16.0" in done.stderr


def test_what_is_between_releases_is_compiled(
    brought: Brought, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch-2.11.so", "torch-2.9.so", "torch-2.11.so.old", "notes"):
        (brought.folder / name).touch()
    assert prebuilt.versions() == ["2.9", "2.11"]

    def path(version: str, cxx11_abi: bool = True) -> str | None:
        return prebuilt.path_for(TorchFacts(version, Path(), "13.0", cxx11_abi))

    assert path("2.11.4+cu128") == str(brought.folder / "torch-2.11.so")
    for version in ("2.11.0a0+git1234", "2.11.0.dev20260101", "2.11.0rc1", "2.12.0", "main"):
        assert path(version) is None, version
    assert path("2.11.0", cxx11_abi=False) is None
    monkeypatch.setattr(prebuilt, "FOLDER", brought.folder / "nowhere")
    assert prebuilt.versions() == [] and path("2.11.0") is None


def test_it_can_be_compiled_all_the_same(
    run_python: Run, script: Script, brought: Brought, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought.make("2.11.0+cu130", {"2.11": "2.11"})
    done = run_python(script(INSTALL), environment={"LARDER_COMPILE": "1"})
    assert done.stdout == "True\n" and "compiling the C++ part for torch 2.11.0" in done.stderr
    done = run_python(
        script(INSTALL), environment={"LARDER_COMPILE": "1", "CXX": "no-such-compiler"}
    )
    assert "CXX names 'no-such-compiler'" in done.stderr
    monkeypatch.setenv("LARDER_COMPILE", "yes")
    with pytest.raises(SettingsError, match="LARDER_COMPILE is 'yes', and it takes 1, .* or 0"):
        prebuilt.path_for(TorchFacts("2.11.0", Path(), "13.0", True))
    monkeypatch.setenv("LARDER_COMPILE", "1")
    monkeypatch.setenv("PATH", brought.no_compilers["PATH"])
    with pytest.raises(
        InstallError,
        match="no C\\+\\+ compiler, and the C\\+\\+ part is to be compiled for torch 2.11.1:",
    ):
        backend.compiler(TorchFacts("2.11.1", Path(), "13.0", True))


def test_asked_to_compile_it_says_that_nothing_needs_it(run_python: Run, brought: Brought) -> None:
    brought.make("2.11.0+cu130", {"2.11": "2.11"})
    done = run_python("-m", "larder", "--compile", environment=brought.no_compilers)
    assert done.stdout == f"{brought.folder}/torch-2.11.so\n"
    assert (
        done.stderr == "larder: nothing needs compiling: the package brings the C++ part for torch "
        "2.11.0+cu130\n"
    )


def test_nothing_is_imported_that_a_start_does_not_need(run_python: Run) -> None:
    """A program pays for what comes before it; what PyTorch imports by itself is no matter behind
    `import torch`.
    """
    show = "; import sys; print(*sorted(set(sys.modules) - before))"
    done = run_python("-c", "import sys; before = set(sys.modules); import larder.__main__" + show)
    ours = {"__main__", "children", "environment", "errors"}
    modules = set(done.stdout.split())
    assert {name for name in modules if name.startswith("larder")} == {
        "larder",
        *(f"larder.{name}" for name in ours),
    }
    assert not modules & {
        "ctypes",
        "dataclasses",
        "hashlib",
        "inspect",
        "json",
        "pathlib",
        "re",
        "subprocess",
        "typing",
    }


def test_all_names_of_the_package_are_there() -> None:
    assert set(larder.__all__) <= set(dir(larder))
    for name in larder.__all__:
        assert getattr(larder, name) is not None
    with pytest.raises(AttributeError, match="module 'larder' has no attribute 'nonsense'"):
        getattr(larder, "nonsense")  # noqa: B009
