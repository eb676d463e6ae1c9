"""The C++ part where the package brings none for the PyTorch that is installed: compiled once, and
kept in a cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from larder import _native, prebuilt
from larder.errors import InstallError
from larder.torch_facts import KNOWN, TorchFacts

__all__ = ["build", "cache_folder"]

PACKAGE = Path(__file__).parent
SOURCES = PACKAGE / "_backend"
PLAIN_CUDA = PACKAGE / "_plain_cuda"


def cache_folder() -> Path:
    """Where compiled libraries are kept: LARDER_CACHE, or a folder in the user's cache."""
    try:
        if chosen := os.environ.get("LARDER_CACHE"):
            return Path(chosen).expanduser().absolute()
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser().absolute() / "larder"
    except RuntimeError as error:
        raise InstallError(
            "there is no home folder to keep the compiled C++ part in: set LARDER_CACHE to a folder"
        ) from error


def build(torch: TorchFacts) -> Path:
    """The library for this PyTorch, compiled if it is not in the cache."""
    folder = cache_folder()
    prefix = f"backend-{_word(torch.version)}"
    source = _source_digest()
    library = folder / f"{prefix}-{source}-{_digest(torch)}.so"
    if is_whole(library):
        return library
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(folder / f"{prefix}.lock"):
            # Another process may have made it meanwhile.
            if not is_whole(library):
                _compile(torch, library)
                _clear_away(folder, prefix, source)
    except OSError as error:
        raise InstallError(
            f"the compiled C++ part cannot be kept in {folder} ({error.strerror}): "
            "set LARDER_CACHE to another folder"
        ) from error
    return library


def is_whole(library: Path) -> bool:
    """Whether a library is there, from its beginning to its end. What a full disk or a crash cut
    off is not: a linker puts the table of sections last."""
    try:
        with open(library, "rb") as file:
            head = file.read(64)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        return False
    order = "<" if head[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", head, 40)
    entry_size, count = struct.unpack_from(f"{order}HH", head, 58)
    return bool(table > 0 and table + entry_size * count <= size)


def _clear_away(folder: Path, prefix: str, source: str) -> None:
    """Removes what was made for this PyTorch out of other sources, by another Larder. A process
    that has such a library loaded keeps it; one that is about to load it has it compiled anew."""
    for path in folder.glob(f"{prefix}-*"):
        if path.suffix in (".so", ".log", ".lock") and not path.name.startswith(
            f"{prefix}-{source}-"
        ):
            with contextlib.suppress(OSError):
                path.unlink()


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", text)


def _sources() -> list[Path]:
    sources = sorted(path for path in SOURCES.glob("*") if path.suffix in (".cpp", ".hpp", ".h"))
    if not (SOURCES / "backend.cpp") in sources:
        raise InstallError(f"the package has no {SOURCES / 'backend.cpp'}: install it anew")
    return sources


def _source_digest() -> str:
    """Names the text that the library is made of."""
    digest = hashlib.sha256(_native.__version__.encode())
    for source in [*_sources(), *sorted(PLAIN_CUDA.rglob("*.h"))]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


def _digest(torch: TorchFacts) -> str:
    """Names all else that the library is made of: another of any of these is another library."""
    files = [_native_library(), *torch.libraries()]
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    settings = [os.environ.get(name, "") for name in ("CXX", "CXXFLAGS", "CUDA_HOME", "CUDA_PATH")]
    return hashlib.sha256(repr((torch, facts, settings)).encode()).hexdigest()[:12]


def _native_library() -> Path:
    """The package's native module, which exports the C interface."""
    if _native.__file__ is None:
        raise InstallError("larder's native module is not a file")
    return Path(_native.__file__).resolve()


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lets one process at a time compile. Where a file system has no locks, all of them do, which
    is slow but right: each writes a file of its own and renames it."""
    import fcntl

    with open(path, "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _words(variable: str) -> list[str]:
    """The words of a variable, as a shell reads them."""
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        reason = str(error).lower()
        raise InstallError(f"{variable} cannot be split into words ({reason}): {text}") from None


def compiler(torch: TorchFacts) -> list[str]:
    """The C++ compiler's command: what CXX says, or the first that is there."""
    if chosen := _words("CXX"):
        if shutil.which(chosen[0]) is None:
            raise InstallError(f"CXX names '{chosen[0]}', which is not there: name a C++ compiler")
        return chosen
    for name in ("g++", "c++", "clang++"):
        if found := shutil.which(name):
            return [found]
    why = "the C++ part is compiled once for your PyTorch"
    if inside := prebuilt.versions():
        why = (
            f"the package brings the C++ part for torch {_listed(inside)}, and not for torch "
            f"{torch.version}"
        )
        if torch.release in (tuple(map(int, version.split("."))) for version in inside):
            why = f"the C++ part is to be compiled for torch {torch.version}"
    raise InstallError(
        f"there is no C++ compiler, and {why}: "
        "install g++ (on Debian and Ubuntu: apt install g++), or name one by CXX"
    )


def _listed(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _targets(home: Path) -> Iterator[Path]:
    """Where a CUDA of NVIDIA's own layout has the headers for this machine."""
    names = (
        ("sbsa-linux", "aarch64-linux") if platform.machine() == "aarch64" else ("x86_64-linux",)
    )
    for name in names:
        yield home / "targets" / name / "include"


def _candidates(torch: TorchFacts) -> Iterator[Path]:
    """Folders in which CUDA's headers may be."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "include"
            yield from _targets(Path(home))
    major = torch.cuda.split(".")[0]
    places = [torch.folder.parent, *(Path(entry) for entry in sys.path if entry)]
    for place in dict.fromkeys(places):
        yield place / "nvidia" / f"cu{major}" / "include"
        yield place / "nvidia" / "cuda_runtime" / "include"
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)):
        yield Path(prefix) / "include"
        yield from _targets(Path(prefix))


def _cuda_major(folder: Path) -> str | None:
    """The version of CUDA whose headers are in a folder; none if there are none."""
    header = folder / "cuda_runtime_api.h"
    try:
        match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text(errors="replace"))
    except OSError:
        return None
    return str(int(match[1]) // 1000) if match else None


def cuda_folders(torch: TorchFacts) -> list[Path]:
    """The folders of CUDA's headers, in the order in which they are to be searched."""
    major = torch.cuda.split(".")[0]
    for folder in _candidates(torch):
        if _cuda_major(folder) != major or not (folder / "cuda.h").is_file():
            continue
        if (folder / "crt" / "host_defines.h").is_file():
            return [folder]
        return [PLAIN_CUDA, folder]
    raise InstallError(
        f"the headers of CUDA {major}, for which torch {torch.version} is made, are not found: "
        f"pip install nvidia-cuda-runtime{'' if int(major) > 12 else '-cu' + major}, "
        "or name CUDA's folder by CUDA_HOME"
    )


def command(torch: TorchFacts, out: Path) -> list[str]:
    """The compiler's whole command line."""
    include = torch.folder / "include"
    words = [
        *compiler(torch),
        "-std=c++20",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-pthread",
    ]
    words.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}")
    if not (include / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h").is_file():
        words.append("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE")
    for folder in [SOURCES, *cuda_folders(torch), include]:
        words += ["-I" if folder == SOURCES else "-isystem", str(folder)]
    words += _words("CXXFLAGS")
    words.append(str(SOURCES / "backend.cpp"))
    words += [str(library) for library in torch.libraries()]
    words += _standard_library()
    words += [str(_native_library()), f"-Wl,-rpath,{torch.folder / 'lib'}", "-o", str(out)]
    return words


def _standard_library() -> list[str]:
    """The C++ library that PyTorch runs with in this process. Some compilers would put one of their
    own into what they make, and two of them in one process do not know of each other's state."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = (line.split(maxsplit=5)[-1] for line in lines if "/libstdc++.so.6" in line)
    return [path for path in dict.fromkeys(found) if Path(path).is_file()][:1]


def _compile(torch: TorchFacts, library: Path) -> None:
    part = library.with_name(f".{library.name}.{os.getpid()}")
    words = command(torch, part)
    print(f"larder: compiling the C++ part for torch {torch.version} (once)", file=sys.stderr)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            log = library.with_suffix(".log")
            log.write_text(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")
            raise InstallError(_complaint(torch, done.stderr, log))
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, library)
        library.with_suffix(".log").unlink(missing_ok=True)
    finally:
        part.unlink(missing_ok=True)


def _complaint(torch: TorchFacts, said: str, log: Path) -> str:
    """Why it could not be compiled, as one sentence."""
    lines = said.splitlines()
    line = next(
        (line for line in lines if "error:" in line), lines[-1] if lines else "the compiler failed"
    )
    sentence = (
        f"the C++ part cannot be compiled for torch {torch.version} ({line.strip()}); the "
        f"whole log is {log}"
    )
    oldest, newest = KNOWN
    if torch.release > newest:
        sentence += f"; Larder knows torch {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return sentence
