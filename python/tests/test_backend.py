"""The C++ part: compiled once, kept, and compiled anew where anything of it is another."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import stat
import subprocess
from pathlib import Path

import pytest

import larder
from larder import backend
from larder.errors import InstallError
from larder.torch_facts import TorchFacts
from stand_in import FakeTorch


@pytest.fixture
def facts(fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> TorchFacts:
    fake_torch.make()
    monkeypatch.setattr(backend, "SOURCES", fake_torch.sources)
    return TorchFacts("2.11.0+cu130", fake_torch.folder / "torch", "13.0", True)


@pytest.fixture
def wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that counts how often it is called; the file that it writes to."""
    calls = tmp_path / "calls"
    path = tmp_path / "counting compiler"
    path.write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\nexec g++ "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", f"'{path}'")
    return calls


def test_it_is_compiled_once(
    facts: TorchFacts, wrapper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = backend.build(facts)
    assert library.parent == backend.cache_folder()
    assert library.name.startswith("backend-2.11.0_cu130-")
    assert (
        capsys.readouterr().err == "larder: compiling the C++ part for torch 2.11.0+cu130 (once)\n"
    )
    assert backend.build(facts) == library
    assert len(wrapper.read_text().splitlines()) == 1
    assert capsys.readouterr().err == ""
    names = {path.name for path in library.parent.iterdir()}
    assert names == {library.name, "backend-2.11.0_cu130.lock"}, "nothing half made is left"
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700


def test_it_is_compiled_anew_for_what_is_new(
    facts: TorchFacts, fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [backend.build(facts)]
    library = fake_torch.folder / "torch" / "lib" / "libc10_cuda.so"
    os.utime(library, (1, 1))
    made.append(backend.build(facts))
    monkeypatch.setenv("CXXFLAGS", "-O1")
    made.append(backend.build(facts))
    assert len(set(made)) == 3
    assert all(path.is_file() for path in made), "another installation may have need of them"


def test_what_other_sources_became_is_cleared_away(
    facts: TorchFacts, fake_torch: FakeTorch
) -> None:
    other_torch = backend.build(TorchFacts("2.12.0", facts.folder, facts.cuda, True))
    old = [
        backend.build(facts),
        *(backend.cache_folder() / f"backend-2.11.0_cu130-0123.{end}" for end in ("lock", "log")),
    ]
    for path in old[1:]:
        path.touch()
    (fake_torch.sources / "backend_part.hpp").write_text("// Another part.\n")
    new = backend.build(facts)
    assert not any(path.exists() for path in old)
    assert {path.name for path in backend.cache_folder().glob("*.so")} == {
        new.name,
        other_torch.name,
    }


@pytest.mark.parametrize("length", [0, 40, 64, 0.5, -1])
def test_a_library_that_was_cut_off_is_compiled_anew(
    facts: TorchFacts, wrapper: Path, length: float
) -> None:
    library = backend.build(facts)
    whole = library.read_bytes()
    cut = whole[: int(len(whole) * length)] if isinstance(length, float) else whole[:length]
    # Another file of this name: what is loaded in this process must stay as it is.
    library.unlink()
    library.write_bytes(cut)
    assert not backend.is_whole(library)
    assert backend.build(facts) == library
    assert backend.is_whole(library) and len(wrapper.read_text().splitlines()) == 2
    ctypes.CDLL(str(library))


def test_a_log_goes_when_its_fault_does(
    facts: TorchFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "compiler"
    path.write_text(
        '#!/bin/sh\ntest -e works && exec g++ "$@"\necho "errors.hpp: note" >&2; echo "x: error: '
        'no" >&2; exit 1\n'
    )
    path.chmod(0o700)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InstallError, match=r"\(x: error: no\)"):
        backend.build(facts)
    assert len(list(backend.cache_folder().glob("*.log"))) == 1
    (tmp_path / "works").touch()
    backend.build(facts)
    assert list(backend.cache_folder().glob("*.log")) == []


@pytest.mark.parametrize("variable", ["CXX", "CXXFLAGS"])
def test_a_variable_that_is_not_words_is_named(
    facts: TorchFacts, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, 'g++ "')
    with pytest.raises(
        InstallError, match=rf"^{variable} cannot be split into words \(no closing quotation\): g"
    ):
        backend.build(facts)


def test_the_native_module_exports_the_whole_c_interface() -> None:
    header = (Path(backend.__file__).parent / "_backend" / "larder.h").read_text()
    # A declaration begins its line with the type; a call in a comment or a member does not.
    declared = re.findall(r"^[a-z][\w *]*?\b(larder_\w+)\(", header, re.MULTILINE)
    assert len(declared) > 50
    library = ctypes.CDLL(larder.library_path())
    missing = [name for name in declared if not hasattr(library, name)]
    assert missing == []
    library.larder_version.restype = ctypes.c_char_p
    assert library.larder_version().decode() == larder.__version__


def test_it_is_linked_to_the_native_module_by_name(facts: TorchFacts) -> None:
    library = backend.build(facts)
    words = ["readelf", "-d", str(library)]
    facts_of_it = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "[liblarder.so]" in facts_of_it


def test_the_compiler_is_told_what_torch_is_like(facts: TorchFacts) -> None:
    words = backend.command(facts, Path("out.so"))
    assert "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE" in words, "this torch has no cuda_cmake_macros.h"
    assert "-D_GLIBCXX_USE_CXX11_ABI=1" in words
    macros = facts.folder / "include" / "c10" / "cuda" / "impl"
    macros.mkdir(parents=True)
    (macros / "cuda_cmake_macros.h").write_text("")
    older = TorchFacts(facts.version, facts.folder, facts.cuda, cxx11_abi=False)
    words = backend.command(older, Path("out.so"))
    assert "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE" not in words
    assert "-D_GLIBCXX_USE_CXX11_ABI=0" in words


def test_what_does_not_compile_leaves_a_log_and_nothing_else(
    facts: TorchFacts, fake_torch: FakeTorch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fake_torch.sources / "backend.cpp").write_text("int f() { return missing; }\n")
    with pytest.raises(InstallError) as caught:
        backend.build(facts)
    sentence = str(caught.value)
    (log,) = backend.cache_folder().glob("*.log")
    assert sentence.startswith("the C++ part cannot be compiled for torch 2.11.0+cu130 (")
    assert "missing" in sentence and f"the whole log is {log}" in sentence and "\n" not in sentence
    assert "missing" in log.read_text() and "-shared" in log.read_text()
    assert not list(backend.cache_folder().glob("*.so")) and not list(
        backend.cache_folder().glob(".*")
    )


def test_a_torch_from_the_future_is_tried(facts: TorchFacts, fake_torch: FakeTorch) -> None:
    newer = TorchFacts("3.7.0", facts.folder, facts.cuda, True)
    assert backend.build(newer).is_file()
    (fake_torch.sources / "backend.cpp").write_text("int f() { return missing; }\n")
    with pytest.raises(InstallError, match=r"; Larder knows torch 2\.11 to 2\.15$"):
        backend.build(newer)


def test_without_a_compiler_it_says_what_to_install(
    facts: TorchFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match=r"there is no C\+\+ compiler, .* install g\+\+"):
        backend.build(facts)
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(InstallError, match="CXX names 'no-such-compiler', which is not there"):
        backend.build(facts)
    assert not list(backend.cache_folder().glob("*.so"))


def test_a_library_in_the_cache_needs_no_compiler(
    facts: TorchFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = backend.build(facts)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backend.build(facts) == library


def test_the_cache_is_where_it_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LARDER_CACHE", str(tmp_path / "here"))
    assert backend.cache_folder() == tmp_path / "here"
    monkeypatch.delenv("LARDER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    assert backend.cache_folder() == tmp_path / "there" / "larder"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert backend.cache_folder() == tmp_path / ".cache" / "larder"
    monkeypatch.setenv("LARDER_CACHE", "~no-such-user/cache")
    with pytest.raises(InstallError, match="there is no home folder"):
        backend.cache_folder()


def test_a_cache_that_cannot_be_written_is_named(
    facts: TorchFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LARDER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        InstallError, match=r"cannot be kept in .*file/cache .*set LARDER_CACHE to another"
    ):
        backend.build(facts)


def cuda(folder: Path, version: int, crt: bool = True) -> Path:
    """A folder with CUDA's headers of a version."""
    (folder / "crt").mkdir(parents=True)
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    (folder / "cuda.h").write_text("")
    if crt:
        (folder / "crt" / "host_defines.h").write_text("")
    return folder


def test_cudas_headers_are_those_of_torchs_version(
    fake_torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A version that no machine has, so that none of its own is found.
    facts = TorchFacts("2.11.0", fake_torch.folder / "torch", "99.0", True)
    old = cuda(tmp_path / "old" / "include", 98080)
    monkeypatch.setenv("CUDA_HOME", str(old.parent))
    with pytest.raises(
        InstallError, match="the headers of CUDA 99, for which torch 2.11.0 is made, are not found"
    ):
        backend.cuda_folders(facts)
    wheel = cuda(fake_torch.folder / "nvidia" / "cu99" / "include", 99000, crt=False)
    assert backend.cuda_folders(facts) == [backend.PLAIN_CUDA, wheel]
    own = cuda(tmp_path / "own" / "include", 99020)
    monkeypatch.setenv("CUDA_HOME", str(own.parent))
    assert backend.cuda_folders(facts) == [own]


@pytest.mark.parametrize(
    ("machine", "target"), [("x86_64", "x86_64-linux"), ("aarch64", "sbsa-linux")]
)
def test_cudas_headers_are_those_of_the_machine(
    fake_torch: FakeTorch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    target: str,
) -> None:
    facts = TorchFacts("2.11.0", fake_torch.folder / "torch", "99.0", True)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    folders = [
        cuda(tmp_path / "home" / "targets" / name / "include", 99000)
        for name in ("x86_64-linux", "sbsa-linux")
    ]
    (right,) = [folder for folder in folders if target in str(folder)]
    assert backend.cuda_folders(facts) == [right]


def test_the_package_brings_its_sources() -> None:
    """What a user's machine compiles is in the package, as it is in the repository."""
    repository = Path(__file__).resolve().parents[2]
    wanted = sorted((repository / "torch").glob("backend*.[ch]pp"))
    wanted.append(repository / "crates" / "larder-c" / "include" / "larder.h")
    packaged = Path(backend.__file__).parent / "_backend"
    assert {path.name for path in packaged.iterdir()} == {path.name for path in wanted}
    for path in wanted:
        assert (packaged / path.name).read_bytes() == path.read_bytes()


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(InstallError, match="version 'main', which is none"):
        TorchFacts("main", Path(), "13.0", True).release  # noqa: B018
