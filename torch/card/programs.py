"""Runs programs of other people's libraries (clients.py, serving.py) natively, on Larder and under
the policy tight, each in processes of its own, compares what they computed, held and took, and
writes docs/programs.md.

It is a part of run.py: `run.py clients`.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import clients
from processes import in_turns, prepared, start

COLUMNS = ("native", "larder", "larder, tight")
# Ours keeps pinned memory of the host too.
PINNED = {"LARDER_CONF": "pinned:larder"}
# The engine as its users start it first: what it is called, the words for it, and how many turns it
# has.
ENGINES = {
    "vllm_graphs": ("vLLM, graphs, a process of its own", (), 7),
    "vllm_sleep": ("vLLM, graphs, sleep mode", ("--inside", "--sleep"), 5),
    "vllm_eager": ("vLLM, eager, inside", ("--inside", "--eager", "--rounds", "1"), 5),
}
# What a program needs, and what does not hold; written out where the table has it.
NEEDS = {
    "memory_saver_preload": "`LD_PRELOAD` of its library, as natively; pools and graphs then "
    "have plain segments, through it",
    "cupy": "or `larder.cupy.install()`: [neighbours.md](neighbours.md)",
    "numba": "or `larder.numba`: [neighbours.md](neighbours.md)",
}
# How long a batch of small programs may take together, and all engines.
BATCH_LIMIT_S, ENGINE_LIMIT_S = 200, 500
AT_ONCE = 9
NAMES = [*clients.CLIENTS, *ENGINES]


def run(options):
    """The engines are prepared side by side and take turns; so are small programs, each of which
    has one turn. What an earlier run left in the folder counts where a program is not run again."""
    kept = options.out / "clients.json"
    results = (
        {tuple(key.split(": ")): result for key, result in json.loads(kept.read_text()).items()}
        if kept.exists()
        else {}
    )

    def keep(key, result):
        results[key] = result
        print(json.dumps({": ".join(key): result}), flush=True)
        kept.write_text(json.dumps({": ".join(key): result for key, result in results.items()}))
        (options.out / "programs.md").write_text("\n".join(page(results)) + "\n")

    engines, ready = prepared_engines(options)
    for name, (_, _, turns) in ENGINES.items():
        for key, result in in_turns(
            {key: engines[key] for key in engines if key[0] == name}, ready, turns
        ).items():
            keep(key, result)
    waiting = [name for name in clients.CLIENTS if name in (options.only or NAMES)]
    more = {"memory_saver_preload": preloaded()}
    while waiting:
        batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        started = {
            (name, allocator): start(
                allocator,
                "clients.py",
                name,
                "--wait",
                more={**PINNED, **(more.get(name) or {})},
                limit_s=BATCH_LIMIT_S,
            )
            for name in batch
            for allocator in COLUMNS
        }
        for key, result in in_turns(started, prepared(started), 0).items():
            keep(key, result)
    return results


def prepared_engines(options):
    """The engines that are asked for, on each allocator, and those of them that are ready; what
    takes too long is ended. The native ones come first, and the others find what they compiled."""
    names = [name for name in ENGINES if name in (options.only or NAMES)]
    engines, ready = {}, {}
    for allocators in (COLUMNS[:1], COLUMNS[1:]):
        started = {
            (name, allocator): start_engine(name, allocator)
            for name in names
            for allocator in allocators
        }
        engines |= started
        ready |= prepared(started)
    return engines, ready


def start_engine(name, allocator):
    _, words, turns = ENGINES[name]
    cache = os.path.join(tempfile.gettempdir(), f"larder-{name}")
    more = {"VLLM_CACHE_ROOT": cache, **PINNED}
    words = (*words, "--turns", str(turns), "--wait")
    return start(allocator, "serving.py", *words, more=more, limit_s=ENGINE_LIMIT_S)


def preloaded():
    """What torch_memory_saver's own starter puts in front."""
    look = (
        "import torch_memory_saver.utils as u; "
        "print(u.get_binary_path_from_package('torch_memory_saver_hook_mode_preload'))"
    )
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    return {"LD_PRELOAD": found.stdout.strip()} if found.returncode == 0 else None


PREAMBLE = """# What people run

Programs of libraries that nobody here wrote, each in processes of its own: with PyTorch's own
allocator, by `python -m larder`, and with `--policy tight`, both with `LARDER_CONF=pinned:larder`.
They are `torch/card/clients.py` and, for vLLM, `torch/card/serving.py`; this page is written by

```sh
# with a network; then take target/gpu, target/bundle and torch/card to the card
cargo xtask gpu --bundle
# there: writes results/programs.md
OUT=results target/gpu/run.sh torch clients
```

What is held is the most that PyTorch's statistics say was reserved; of vLLM what NVML says that its
process holds of the card. Pinned memory of the host is the most that its statistics say was held,
natively and on Larder. Programs are prepared side by side and timed alone: small ones for a
dozen steps, which take some milliseconds, so that their times are rough; the engines in turns of
three rounds of 128 requests (eager: one), of which the fastest counts, since a virtual machine is
slow now and then for a second; the rate is the median of the turns. Results are compared to the
bit: losses, digests of arrays, tokens.
"""


def page(results):
    """docs/programs.md."""
    yield PREAMBLE
    yield f"{card()}, {time.strftime('%Y-%m-%d')}:\n"
    yield from table(results)
    slept = [line for line in sleeps(results)]
    if slept:
        yield (
            "\nvLLM's sleep mode:\n\n| allocator | awake | gives back | holds asleep | sleep | "
            "wake | tokens after |"
        )
        yield "|---|---|---|---|---|---|---|"
        yield from slept


@functools.cache
def card():
    look = "import torch; print(torch.cuda.get_device_name(), 'and PyTorch', torch.__version__)"
    return subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True
    ).stdout.strip()


def sleeps(results):
    for name in ENGINES:
        for allocator in COLUMNS:
            result = results.get((name, allocator))
            if not result or "sleep" not in result:
                continue
            slept = result["sleep"]
            same = "the same" if [slept["digest_after"]] == result["results"] else "NOT the same"
            times = f"{slept['sleep_s']:.2f} s | {slept['wake_s']:.2f} s"
            awake_mib, given_mib = result["held_mib"], slept["given_back_mib"]
            held = f"{awake_mib:,} MiB | {given_mib:,} MiB | {awake_mib - given_mib:,} MiB"
            yield f"| {allocator} | {held} | {times} | {same} |"


def table(results):
    yield (
        "| program | version | native | Larder | tight | pinned: native, Larder | results | speed "
        "to native's: Larder, tight | what it needs |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for name in NAMES:
        if not any(key[0] == name for key in results):
            continue
        native, larder, tight = (results.get((name, allocator)) for allocator in COLUMNS)
        if native is not None and "missing" in native:
            yield f"| {name} | not tried: {native['missing']} is not installed | | | | | | | |"
            continue
        version = next((result["version"] for result in (native, larder, tight) if result), "")
        held = " | ".join(map(held_words, (native, larder, tight)))
        needs = NEEDS.get(name, "")
        title, *_ = ENGINES.get(name, (name,))
        yield (
            f"| {title} | {version} | {held} | {pinned_words(native, larder)} | "
            f"{same_words(native, larder, tight)} | "
            f"{speed_words(native, larder, tight)} | {needs} |"
        )


def held_words(result):
    if result is None:
        return "fails"
    held_mib = result["held_mib"] if "held_mib" in result else result["held_bytes"] / 2**20
    return f"{held_mib:,.0f} MiB"


def pinned_words(*results):
    """What was held of the host's pinned memory, where there was any."""
    held = [result.get("pinned_bytes") if result else None for result in results]
    if not any(held):
        return ""
    return ", ".join("-" if size is None else f"{size / 2**20:,.1f} MiB" for size in held)


def same_words(native, larder, tight):
    if native is None:
        return "native fails"
    differ = [
        name
        for name, result in (("Larder", larder), ("tight", tight))
        if result is not None and result["results"] != native["results"]
    ]
    words = f"{' and '.join(differ)}: not the same" if differ else "the same"
    unmanaged = [
        result for result in (larder, tight) if result is not None and not runs_on_larder(result)
    ]
    return f"{words}; NOT on Larder" if unmanaged else words


def runs_on_larder(result):
    return result["look"]["on_larder"] if "look" in result else result["on_larder"]


def speed_words(native, larder, tight):
    """How fast the two are, where native is 1."""
    if native is None:
        return ""
    ratios = [
        speed(result) / speed(native) if result and speed(native) else None
        for result in (larder, tight)
    ]
    if not any(ratios):
        return ""
    words = ", ".join("" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
    if "tokens_a_second" not in native:
        return words
    rates = native["tokens_a_second"]
    return (
        f"{words}; native {speed(native):,.0f} tokens a second, its turns {min(rates):,.0f} "
        f"to {max(rates):,.0f}"
    )


def speed(result):
    """Tokens a second, or steps a millisecond; 0 where nothing was timed."""
    if "tokens_a_second" in result:
        return statistics.median(result["tokens_a_second"])
    return 1 / result["step_ms"] if result["step_ms"] else 0


def show(results):
    print()
    print("\n".join(table(results)))
    print("\n".join(sleeps(results)))
