"""A wheel of Larder where nothing can be compiled: installed, used by a PyTorch program, and its
start-up timed.

    python install.py [WHEEL] [--times N] [--no-limit]

The Python that runs it has PyTorch and a GPU, or a stand-in for one. PATH has nothing but programs
that write down that they were called and fail, under the names of compilers and of what brings
them; where the system lets it, there is no network. Exit code 1 if something does not hold, or a
start takes more than 50 ms longer than without Larder.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
STUBS = (
    "gcc g++ cc c++ cpp clang clang++ icpx nvcc cicc ptxas ninja make cmake meson ld ld.lld "
    "ld.gold as ar "
    "cargo rustc rustup maturin zig pip pip3 uv conda curl wget git apt apt-get"
).split()
MOST_LONGER_MS = 50

PROGRAM = """
import json, sys, torch
on_card = torch.arange(1 << 20, dtype=torch.int32).cuda()
parts = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 3, 30)]
intact = bool((on_card.cpu() == torch.arange(1 << 20, dtype=torch.int32)).all())
stats = torch.cuda.memory_stats()
segments = torch.cuda.memory_snapshot()
mapped = [line.split()[-1] for line in open("/proc/self/maps")]
loaded = [path for path in mapped if "/_prebuilt/" in path or "/backend-" in path]
larder = sys.modules.get("larder")
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "intact": intact,
    "installed": larder is not None and larder.torch.is_installed(),
    "part": loaded[0] if loaded else None,
    "allocated": stats["allocated_bytes.all.current"],
    "reserved": stats["reserved_bytes.all.current"],
    "in snapshot": sum(segment["total_size"] for segment in segments),
    "expandable": all(segment.get("is_expandable", False) for segment in segments),
}))
"""


class Place:
    """A folder with the wheel installed, and an environment in which nothing else is to be had."""

    def __init__(self, folder, wheel):
        self.site = folder / "site"
        self.cache = folder / "cache"
        self.calls = folder / "calls"
        self.stubs = folder / "bin"
        self.stubs.mkdir()
        for name in STUBS:
            stub = self.stubs / name
            stub.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.calls}"\nexit 1\n')
            stub.chmod(0o755)
        hidden = (
            "CXX",
            "CC",
            "CUDA_HOME",
            "CUDA_PATH",
            "LARDER_CONF",
            "PYTORCH_ALLOC_CONF",
            "PYTORCH_CUDA_ALLOC_CONF",
        )
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment |= {
            "PATH": str(self.stubs),
            "HOME": str(folder),
            "LARDER_CACHE": str(self.cache),
        }
        self.environment["PYTHONPATH"] = str(self.site)
        self.prefix = offline_prefix()
        words = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--target",
            self.site,
            wheel,
        ]
        subprocess.run(words, env=self.environment, check=True)
        # pip asks which rustc there is, to tell it to the package index.
        self.called()

    def run(self, words, **variables):
        return self.start([*self.prefix, sys.executable, *words], variables)

    def run_undisturbed(self, words, **variables):
        """Where time is taken: a network of its own takes the system some to set up."""
        return self.start([sys.executable, *words], variables)

    def start(self, words, variables):
        return subprocess.run(
            words, env=self.environment | variables, capture_output=True, text=True
        )

    def called(self):
        """What was called since it was asked last."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return lines


def offline_prefix():
    """What starts a program without a network, if the system lets us."""
    unshare = shutil.which("unshare")
    words = [unshare, "--map-root-user", "--net", "--"]
    if (
        unshare
        and subprocess.run([*words, sys.executable, "-c", ""], capture_output=True).returncode == 0
    ):
        return words
    return []


def told(done):
    """What a program printed last, as JSON; an empty answer if it failed."""
    if done.returncode != 0:
        print(f"exit {done.returncode}: {done.stderr[-2000:]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


# What Larder does in a program once torch is imported, and what the first tensor takes, in ms.
INSTALL = """
import time, torch
begin = time.perf_counter()
import larder.torch
larder.torch._install_in_child()
print(1e3 * (time.perf_counter() - begin))
"""
FIRST_TENSOR = """
import time, torch
torch.cuda.init()
begin = time.perf_counter()
torch.empty(1, device="cuda")
print(1e3 * (time.perf_counter() - begin))
"""
BEFORE_TIMES = 20


def start_ups(place, times):
    """How many ms longer a start takes on Larder, part by part: until the program begins, when
    torch is imported, and at the first tensor. Importing torch takes seconds, now more and now
    less, by more than all of it: so it is left out."""
    sides = ([], ["-m", "larder"])
    turns = [
        [timed(place, [*side, "-c", "pass"]) for side in sides] for _ in range(BEFORE_TIMES + 1)
    ]
    # The first of each reads files that the next ones find in memory.
    alone_ms = statistics.median(native for native, _ in turns[1:])
    what = f"until the program begins, which Python alone takes {alone_ms:.1f} ms for"
    yield what, [ours - native for native, ours in turns[1:]]
    shown = [[said_ms(place, [*side, "-c", FIRST_TENSOR]) for side in sides] for _ in range(times)]
    yield (
        ("when torch is imported"),
        [said_ms(place, ["-c", INSTALL], LARDER_INSTALL="1") for _ in range(times)],
    )
    yield "at the first tensor", [ours - native for native, ours in shown]


def timed(place, words):
    """Milliseconds that a program takes."""
    begin = time.perf_counter()
    done = place.run_undisturbed(words)
    if done.returncode != 0:
        raise SystemExit(f"{words} failed: {done.stderr[-2000:]}")
    return 1e3 * (time.perf_counter() - begin)


def said_ms(place, words, **variables):
    """Milliseconds that a program says."""
    done = place.run_undisturbed(words, **variables)
    if done.returncode != 0:
        raise SystemExit(f"{words} failed: {done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


def newest_wheel():
    wheels = [
        wheel
        for folder in (HERE, HERE / "../../target/wheels")
        for wheel in folder.glob("larder-*manylinux*.whl")
    ]
    if not wheels:
        raise SystemExit("there is no wheel beside this program or in target/wheels: name one")
    return max(wheels, key=lambda wheel: wheel.stat().st_mtime)


def check(place):
    """What holds of the program, each with a word on it."""
    native = told(place.run(["-c", PROGRAM]))
    native_calls = place.called()
    ours = told(place.run(["-m", "larder", "-c", PROGRAM]))
    calls = place.called()
    cached = place.cache.exists()
    again = place.run(["-m", "larder", "--compile"])
    compiled = place.called()
    forced = place.run(["-m", "larder", "-c", "import torch"], LARDER_COMPILE="1")
    forced_calls = place.called()
    part = ours.get("part") or "none"
    yield (
        (f"torch {ours.get('torch')} for CUDA {ours.get('cuda')} runs natively and on Larder"),
        native.get("intact") and ours.get("intact"),
    )
    yield (
        (f"Larder is installed, by the part {pathlib.Path(part).name}"),
        ours.get("installed") and "/_prebuilt/" in part,
    )
    yield (
        f"statistics and snapshots are Larder's: {ours.get('reserved', 0) >> 20} MiB reserved, "
        f"natively {native.get('reserved', 0) >> 20}",
        ours.get("expandable")
        and not native.get("expandable")
        and ours["reserved"] == ours["in snapshot"] != native["reserved"],
    )
    yield f"no compiler is called: {calls or 'none'} (natively {native_calls or 'none'})", not calls
    yield (
        ("nothing needs compiling"),
        again.returncode == 0 and "/_prebuilt/" in again.stdout and not compiled,
    )
    yield "nothing is written into the cache", not cached
    yield (
        (f"a compiler that is called shows: {forced_calls[:1]}")[:90],
        forced.returncode == 1 and bool(forced_calls),
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", nargs="?", type=pathlib.Path)
    parser.add_argument(
        "--times", type=int, default=3, help="how often starts that import torch are timed"
    )
    parser.add_argument(
        "--no-limit",
        action="store_true",
        help="a start may take as long as it likes, as on a busy machine",
    )
    options = parser.parse_args()
    wheel = (options.wheel or newest_wheel()).resolve()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(pathlib.Path(folder), wheel)
        print(
            f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, "
            f"{'without' if place.prefix else 'with'} a network"
        )
        held = True
        for what, holds in check(place):
            print(f"{'ok ' if holds else 'NOT'} {what}", flush=True)
            held = held and bool(holds)
        longer_ms = 0
        for part, figures in start_ups(place, options.times) if options.times else ():
            longer_ms += statistics.median(figures)
            print(f"a start, {part}: {statistics.median(figures):+.1f} ms on Larder", flush=True)
        if options.times:
            print(f"a start, in all: {longer_ms:+.1f} ms on Larder, {MOST_LONGER_MS} at most")
            held = held and (options.no_limit or longer_ms <= MOST_LONGER_MS)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
