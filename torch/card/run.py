"""Runs everything on a card: the same programs on PyTorch's own allocator and on Larder, each in a process
of its own, and prints tables last.

    python run.py [PART ...] [--short] [--out FOLDER]

Parts: workloads, empty, deeds, tests. Without any, all of them.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}

# How a program is started with each allocator: the words before the script, and the environment.
ALLOCATORS = {
    "native": ([], {}),
    "native again": ([], {}),
    "larder": (["-m", "larder"], {}),
    "native, expandable": ([], EXPANDABLE),
    "larder, expandable": (["-m", "larder"], EXPANDABLE),
    "cudaMallocAsync": ([], ASYNC),
}

WORKLOADS = [
    "gpt2_train",
    "gpt2_varlen",
    "gradient_checkpointing",
    "generation",
    "streams",
    "graphs",
    "resnet_varbatch",
    "small_kernels",
    "small_tensors",
    "compiled",
]
DEEDS = ["out_of_memory", "snapshot", "sharing", "nccl_pool", "pluggable"]


def start(allocator, script, *words):
    before, changes = ALLOCATORS[allocator]
    environment = {**os.environ, **changes, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, *before, str(HERE / script), *words]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def outcome(process, what):
    """The last line that a program printed, as JSON; None with the reason on the screen if it failed."""
    try:
        printed, said = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, said = process.communicate()
        said += "\nit took too long"
    if process.returncode != 0:
        print(f"FAILED {what}: exit {process.returncode}\n{said[-2500:]}", flush=True)
        return None
    return json.loads(printed.strip().splitlines()[-1])


def run_workloads(options):
    results = {}
    for workload in options.only or WORKLOADS:
        steps = "12" if options.short else {"compiled": "80", "small_tensors": "150"}.get(workload, "60")
        for allocator in ALLOCATORS:
            process = start(allocator, "workloads.py", workload, "--steps", steps)
            results[workload, allocator] = outcome(process, f"{workload} on {allocator}")
    return results


def show_workloads(results):
    print("\n| workload | allocator | ms a step | to native | peak reserved MiB | peak active MiB | results |")
    print("|---|---|---|---|---|---|---|")
    for (workload, allocator), result in results.items():
        native = results.get((workload, "native"))
        if result is None or native is None:
            print(f"| {workload} | {allocator} | failed | | | | |")
            continue
        again = results.get((workload, "native again"))
        steady = again is not None and again["results"] == native["results"]
        same = "the same to the bit" if result["results"] == native["results"] else "not the same"
        note = same if steady else f"{same}; native does not repeat itself"
        missing = set(native["keys"]) - set(result["keys"])
        if missing and allocator.startswith("larder"):
            note += f"; missing keys {sorted(missing)}"
        print(
            f"| {workload} | {allocator} | {result['step_ms']:.3f} "
            f"| {result['step_ms'] / native['step_ms']:.3f} | {result['reserved_peak'] / 2**20:.0f} "
            f"| {result['active_peak'] / 2**20:.0f} | {note} |"
        )


def run_empty(options):
    rounds = {}
    for _ in range(1 if options.short else 3):
        for allocator in ALLOCATORS:
            result = outcome(start(allocator, "workloads.py", "empty"), f"torch.empty on {allocator}")
            rounds.setdefault(allocator, []).append(result["empty_ns"] if result else float("nan"))
    return {allocator: min(times) for allocator, times in rounds.items()}


def show_empty(results):
    print("\n| allocator | torch.empty of 4 KiB and its free, ns |")
    print("|---|---|")
    for allocator, time_ns in results.items():
        print(f"| {allocator} | {time_ns:.0f} |")


def run_deeds(_):
    results = {}
    for deed in DEEDS:
        for allocator in ("native", "larder", "larder, expandable"):
            results[deed, allocator] = outcome(start(allocator, "deeds.py", deed), f"{deed} on {allocator}")
    return results


def show_deeds(results):
    print("\n| deed | allocator | outcome |")
    print("|---|---|---|")
    for (deed, allocator), result in results.items():
        print(f"| {deed} | {allocator} | {'failed' if result is None else json.dumps(result)} |")


def run_tests(options):
    results = {}
    for allocator in ("native", "larder", "larder, expandable"):
        before, changes = ALLOCATORS[allocator]
        command = [sys.executable, *before, "-m", "unittest", "discover", "-v", "-s", str(HERE.parent / "tests")]
        begin = time.time()
        done = subprocess.run(
            command, env={**os.environ, **changes}, capture_output=True, text=True, timeout=500
        )
        log = options.out / f"tests-{allocator.replace(', ', '-')}.log"
        log.write_text(done.stdout + done.stderr)
        verdicts = re.findall(r"^(\w+) \((\S+)\)(?:\n.*)? \.\.\. (\w+)", done.stderr, re.M)
        results[allocator] = {
            "ended": done.returncode,
            "seconds": time.time() - begin,
            "verdicts": {f"{where}": verdict for _, where, verdict in verdicts},
            "summary": done.stderr.strip().splitlines()[-1:],
        }
    return results


def show_tests(results):
    print("\n| allocator | tests | passed | seconds | summary |")
    print("|---|---|---|---|---|")
    for allocator, result in results.items():
        passed = sum(verdict == "ok" for verdict in result["verdicts"].values())
        print(
            f"| {allocator} | {len(result['verdicts'])} | {passed} | {result['seconds']:.0f} "
            f"| {' '.join(result['summary'])} |"
        )
    native = results["native"]["verdicts"]
    for allocator, result in results.items():
        for name, verdict in result["verdicts"].items():
            if verdict not in ("ok", "skipped") and native.get(name) == "ok":
                print(f"{allocator}: {name}: {verdict}, where native passes")
        for name, verdict in native.items():
            if verdict not in ("ok", "skipped") and allocator == "native":
                print(f"native: {name}: {verdict}")


PARTS = {
    "workloads": (run_workloads, show_workloads),
    "empty": (run_empty, show_empty),
    "deeds": (run_deeds, show_deeds),
    "tests": (run_tests, show_tests),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--short", action="store_true", help="few steps, to see whether it runs")
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, help="these workloads alone")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", ".")))
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    results = {}
    for part in parts:
        begin = time.time()
        results[part] = PARTS[part][0](options)
        print(f"{part}: {time.time() - begin:.0f} s", flush=True)
    for part in parts:
        PARTS[part][1](results[part])


if __name__ == "__main__":
    main()
