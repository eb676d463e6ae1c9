"""Runs programs of other people's libraries (clients.py, serving.py) natively, on Larder and under the policy tight, each in
processes of its own, compares what they computed, held and took, and writes docs/programs.md.

It is a part of run.py: `run.py clients`.
"""

import json
import statistics
import subprocess
import sys
import time

import clients

COLUMNS = ("native", "larder", "larder, tight")
# The engine as its users start it first, and the words for it.
ENGINES = {
    "vLLM, graphs, a process of its own": (),
    "vLLM, graphs, sleep mode": ("--inside", "--sleep"),
    "vLLM, eager, inside": ("--inside", "--eager"),
}
# What a program needs, and what does not hold; written out where the table has it.
NEEDS = {
    "memory_saver_preload": "its hook stands before cudaMalloc alone, and Larder's memory comes from the driver: use `hook_mode=\"torch\"`",
    "cupy": "or `larder.cupy.install()`: [neighbours.md](neighbours.md)",
    "numba": "or `larder.numba`: [neighbours.md](neighbours.md)",
}
LIMIT_S = 280
AT_ONCE = 4


def run(options, start, outcome):
    """Small programs side by side; the engine alone, since it takes half the card and is timed."""
    results, waiting = {}, [name for name in clients.CLIENTS]
    while waiting:
        batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        more = {"memory_saver_preload": preloaded()}
        started = {
            (name, allocator): start(allocator, "clients.py", name, more=more.get(name))
            for name in batch
            for allocator in COLUMNS
        }
        for key, process in started.items():
            results[key] = outcome(process, " on ".join(key), limit_s=LIMIT_S)
    for name, words in ENGINES.items():
        for allocator in COLUMNS:
            process = start(allocator, "serving.py", *words)
            results[name, allocator] = outcome(process, f"{name} on {allocator}", limit_s=LIMIT_S)
            print(json.dumps({f"{name}, {allocator}": results[name, allocator]}), flush=True)
    (options.out / "clients.json").write_text(json.dumps({", ".join(key): result for key, result in results.items()}))
    (options.out / "programs.md").write_text("\n".join(page(results)) + "\n")
    return results


def preloaded():
    """What torch_memory_saver's own starter puts in front."""
    look = "import torch_memory_saver.utils as u; print(u.get_binary_path_from_package('torch_memory_saver_hook_mode_preload'))"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    return {"LD_PRELOAD": found.stdout.strip()} if found.returncode == 0 else None


PREAMBLE = """# What people run

Programs of libraries that nobody here wrote, each in processes of its own: with PyTorch's own allocator, by `python -m larder`, and with
`--policy tight`. They are `torch/card/clients.py` and, for vLLM, `torch/card/serving.py`; this page is written by

```sh
cargo xtask gpu --bundle                       # with a network; then take target/gpu, target/bundle and torch/card to the card
OUT=results target/gpu/run.sh torch clients    # there: writes results/programs.md
```

What is held is the most that PyTorch's statistics say was reserved; of vLLM, which runs alone, what NVML says that the whole card
holds. Results are compared to the bit: losses, digests of arrays, tokens.
"""


def page(results):
    """docs/programs.md."""
    yield PREAMBLE
    yield f"{card()}, {time.strftime('%Y-%m-%d')}:\n"
    yield from table(results)
    slept = [line for line in sleeps(results)]
    if slept:
        yield "\nvLLM's sleep mode:\n\n| allocator | gives back | sleep | wake | tokens after |\n|---|---|---|---|---|"
        yield from slept


def card():
    look = "import torch; print(torch.cuda.get_device_name(), 'and PyTorch', torch.__version__)"
    return subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.strip()


def sleeps(results):
    for name in ENGINES:
        for allocator in COLUMNS:
            result = results.get((name, allocator))
            if not result or "sleep" not in result:
                continue
            slept = result["sleep"]
            same = "the same" if [slept["digest_after"]] == result["results"] else "NOT the same"
            times = f"{slept['sleep_s']:.2f} s | {slept['wake_s']:.2f} s"
            yield f"| {allocator} | {slept['given_back_mib']:,} MiB | {times} | {same} |"


def table(results):
    yield "| program | version | native | Larder | tight | results | time, Larder to native | what it needs |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in [*clients.CLIENTS, *ENGINES]:
        native, larder, tight = (results.get((name, allocator)) for allocator in COLUMNS)
        if native is not None and "missing" in native:
            yield f"| {name} | not tried: {native['missing']} is not installed | | | | | | |"
            continue
        version = next((result["version"] for result in (native, larder, tight) if result), "")
        held = " | ".join(map(held_words, (native, larder, tight)))
        needs = NEEDS.get(name, "")
        yield f"| {name} | {version} | {held} | {same_words(native, larder, tight)} | {time_words(native, larder)} | {needs} |"


def held_words(result):
    if result is None:
        return "fails"
    held_mib = result["held_mib"] if "held_mib" in result else result["held_bytes"] / 2**20
    return f"{held_mib:,.0f} MiB"


def same_words(native, larder, tight):
    if native is None:
        return "native fails"
    differ = [
        name
        for name, result in (("Larder", larder), ("tight", tight))
        if result is not None and result["results"] != native["results"]
    ]
    words = f"{' and '.join(differ)}: not the same" if differ else "the same"
    unmanaged = [result for result in (larder, tight) if result is not None and not runs_on_larder(result)]
    return f"{words}; NOT on Larder" if unmanaged else words


def runs_on_larder(result):
    return result["look"]["on_larder"] if "look" in result else result["on_larder"]


def time_words(native, larder):
    if native is None or larder is None:
        return ""
    if "tokens_a_second" in native:
        rates = [statistics.median(result["tokens_a_second"]) for result in (native, larder)]
        return f"{rates[1] / rates[0]:.3f} of its {rates[0]:,.0f} tokens a second"
    return f"{larder['step_ms'] / native['step_ms']:.2f}" if native["step_ms"] else ""


def show(results):
    print()
    print("\n".join(table(results)))
    print("\n".join(sleeps(results)))
