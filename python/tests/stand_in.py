"""Stand-ins: a package `torch` that is not PyTorch, and a C++ part that has no PyTorch behind
it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import larder

Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""Starts a Python with some words."""

Script = Callable[..., str]
"""Writes a script; its name."""

# What Larder's C++ part exports, without PyTorch behind it. It tells what it was installed with,
# and calls the library that it is linked to.
STAND_IN = r"""
#include <cuda_runtime_api.h>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include "larder.h"
#pragma GCC visibility push(default)
static bool installed = false;
static const char *refusal = "";
extern "C" int larder_torch_install(const char *settings) {
    if (const char *reason = std::getenv("STAND_IN_REFUSES")) {
        refusal = reason;
        return 1;
    }
    if (const char *path = std::getenv("STAND_IN_DIARY"))
        if (std::FILE *diary = std::fopen(path, "a")) {
            const char *conf = std::getenv("LARDER_CONF");
            const char *said = settings ? settings : conf ? conf : "-";
            std::fprintf(diary, "%d %s %s\n", getpid(), larder_version(), said);
            std::fclose(diary);
        }
    installed = true;
    return 0;
}
extern "C" int larder_torch_forget_stream(int device, void *stream) {
    refusal = "stream 0 cannot be used so";
    return device == 0 && stream != nullptr ? 0 : 1;
}
static int plain = 0;
extern "C" int larder_torch_plain_begin() { plain += 1; return 0; }
extern "C" int larder_torch_plain_end() {
    refusal = "plain memory was not begun";
    return plain-- > 0 ? 0 : 1;
}
static void say(const char *what, const char *text, int number) {
    std::printf("%s %s %d\n", what, text ? text : "-", number);
    std::fflush(stdout);
}
extern "C" int larder_torch_region_begin(const char *tag, int keep) {
    say("begin", tag, keep);
    return 0;
}
extern "C" int larder_torch_region_end(const char *tag) { say("end", tag, 0); return 0; }
extern "C" int larder_torch_regions_leave() { say("leave", "", 0); return 0; }
extern "C" int larder_torch_regions_return() { say("return", "", 0); return 0; }
extern "C" int larder_torch_sleep(int device, const char *tags, int keep, unsigned long long *out) {
    say("sleep", tags, 10 * device + keep);
    for (int at = 0; at < 3; ++at) out[at] = at + 1;
    return 0;
}
extern "C" int larder_torch_wake(int device, const char *tags) {
    say("wake", tags, device);
    refusal = "all sleeps on";
    return device == 9;
}
extern "C" int larder_torch_sleep_stats(int device, unsigned long long *out) {
    for (int at = 0; at < 5; ++at) out[at] = 10 * device + at;
    return 0;
}
extern "C" int larder_torch_set_keep_limit(int device, unsigned long long limit) {
    say("limit", "", 10 * device + static_cast<int>(limit));
    return 0;
}
extern "C" const char *larder_torch_last_error() { return refusal; }
extern "C" int larder_torch_is_installed() { return installed; }
"""

INIT = """
__version__ = {version!r}
class version:
    __version__ = {version!r}
    cuda = {cuda!r}
    hip = {hip!r}
class _C:
    _GLIBCXX_USE_CXX11_ABI = True
class cuda:
    @staticmethod
    def is_initialized():
        return {used!r}
    @staticmethod
    def init():
        pass
    @staticmethod
    def current_device():
        return 1
    @staticmethod
    def get_allocator_backend():
        # As in PyTorch, without CUDA there is nobody to ask.
        assert version.cuda is not None
        return {allocator!r}
import pathlib
import larder.backend
larder.backend.SOURCES = pathlib.Path({sources!r})
"""


class FakeTorch:
    """A folder with a package `torch` that looks like PyTorch to whoever does not look twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = folder / "sources"
        self.diary = folder / "diary"

    def make(
        self,
        version: str = "2.11.0+cu130",
        cuda: str | None = "13.0",
        hip: str | None = None,
        used: bool = False,
        allocator: str = "native",
        source: str = STAND_IN,
    ) -> FakeTorch:
        package = self.folder / "torch"
        (package / "lib").mkdir(parents=True)
        (package / "include").mkdir()
        self.sources.mkdir()
        (self.sources / "backend.cpp").write_text(source)
        shutil.copy(Path(larder.__file__).parent / "_backend" / "larder.h", self.sources)
        for name in ("libc10.so", "libc10_cuda.so"):
            words = [
                "g++",
                "-shared",
                "-fPIC",
                "-x",
                "c++",
                os.devnull,
                f"-Wl,-soname,{name}",
                "-o",
            ]
            subprocess.run([*words, str(package / "lib" / name)], check=True)
        include = self.folder / "nvidia" / "cu13" / "include"
        include.mkdir(parents=True)
        (include / "cuda_runtime_api.h").write_text(
            '#define CUDART_VERSION 13000\n#include "crt/host_defines.h"\n__host__ int '
            "larder_test_only();\n"
        )
        (include / "cuda.h").write_text("")
        text = INIT.format(
            version=version,
            cuda=cuda,
            hip=hip,
            used=used,
            allocator=allocator,
            sources=str(self.sources),
        )
        (package / "__init__.py").write_text(text)
        return self

    def installs(self) -> list[str]:
        """What each installation had for LARDER_CONF."""
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        return [line.split(" ", 2)[2] for line in lines]

    def processes(self) -> set[int]:
        """Which processes installed Larder."""
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        return {int(line.split(" ", 1)[0]) for line in lines}

    def versions(self) -> set[str]:
        """The versions of the libraries that were called."""
        return {line.split(" ", 2)[1] for line in self.diary.read_text().splitlines()}
