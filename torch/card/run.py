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
import tempfile
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
STEPS = {
    "gpt2_train": "50",
    "gpt2_varlen": "40",
    "gradient_checkpointing": "30",
    "generation": "20",
    "resnet_varbatch": "40",
    "small_kernels": "60",
    "small_tensors": "150",
    "graphs": "300",
    "streams": "100",
    "compiled": "120",
}
PREPARED_AT_ONCE = 18
DEEDS = ["out_of_memory", "snapshot", "sharing", "nccl_pool", "pluggable"]


def start(allocator, script, *words):
    before, changes = ALLOCATORS[allocator]
    environment = {**os.environ, **changes, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, *before, str(HERE / script), *words]
    pipe = subprocess.PIPE
    # What a program says besides must not fill a pipe that nobody reads while it is prepared.
    said = tempfile.TemporaryFile("w+")
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=said, text=True)
    process.said = said
    return process


def said_by(process):
    process.said.seek(0)
    return process.said.read()[-2500:]


def outcome(process, what):
    """The last line that a program printed, as JSON; None with the reason on the screen if it failed."""
    try:
        printed, _ = process.communicate("go\n", timeout=200)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, _ = process.communicate()
        print(f"{what} took too long", flush=True)
    if process.returncode != 0:
        print(f"FAILED {what}: exit {process.returncode}\n{said_by(process)}", flush=True)
        return None
    return json.loads(printed.strip().splitlines()[-1])


def line_of(process, wanted):
    """The next line that begins as wanted; none if the program ended before."""
    for line in process.stdout:
        if line.startswith(wanted):
            return line
    return None


def run_all(tasks):
    """Prepares programs side by side, since they take long to start, and runs them one by one, with nothing
    else at work."""
    waiting, results = list(tasks), {}
    while waiting:
        batch, waiting = waiting[:PREPARED_AT_ONCE], waiting[PREPARED_AT_ONCE:]
        started = {key: start(allocator, script, *words) for key, allocator, script, words in batch}
        is_ready = {key: line_of(process, "ready") is not None for key, process in started.items()}
        for key, process in started.items():
            line = None
            if is_ready[key]:
                process.stdin.write("go\n")
                process.stdin.flush()
                line = line_of(process, "{")
            results[key] = json.loads(line) if line else None
            if line is None:
                print(f"FAILED {' on '.join(key)}\n{said_by(process)}", flush=True)
        for key, process in started.items():
            process.stdin.close()
            if process.wait(timeout=60) != 0 and results[key] is not None:
                print(f"{' on '.join(key)}: exit {process.returncode}\n{said_by(process)}", flush=True)
    return results


def run_workloads(options):
    tasks = []
    for workload in options.only or WORKLOADS:
        steps = "20" if options.short else STEPS[workload]
        for allocator in ALLOCATORS:
            words = (workload, "--wait", "--steps", steps)
            tasks.append(((workload, allocator), allocator, "workloads.py", words))
    return run_all(tasks)


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
    rounds = range(1 if options.short else 2)
    tasks = [
        ((f"torch.empty {number}", allocator), allocator, "workloads.py", ("empty", "--wait"))
        for number in rounds
        for allocator in ALLOCATORS
    ]
    times = {}
    for (_, allocator), result in run_all(tasks).items():
        times.setdefault(allocator, []).append(result["empty_ns"] if result else float("nan"))
    return {allocator: min(several) for allocator, several in times.items()}


def show_empty(results):
    print("\n| allocator | torch.empty of 4 KiB and its free, ns |")
    print("|---|---|")
    for allocator, time_ns in results.items():
        print(f"| {allocator} | {time_ns:.0f} |")


def run_deeds(_):
    started = {
        (deed, allocator): start(allocator, "deeds.py", deed)
        for allocator in ("native", "larder", "larder, expandable")
        for deed in DEEDS
        if deed != "nccl_pool"
    }
    results = {key: outcome(process, " on ".join(key)) for key, process in started.items()}
    # Two at once would use the same port.
    for allocator in ("native", "larder", "larder, expandable"):
        key = ("nccl_pool", allocator)
        results[key] = outcome(start(allocator, "deeds.py", "nccl_pool"), " on ".join(key))
    return results


def show_deeds(results):
    print("\n| deed | allocator | outcome |")
    print("|---|---|---|")
    for (deed, allocator), result in results.items():
        print(f"| {deed} | {allocator} | {'failed' if result is None else json.dumps(result)} |")


def run_tests(options):
    """The tests on all allocators at the same time; they do not measure."""
    started = {}
    for allocator in ("native", "larder", "larder, expandable"):
        before, changes = ALLOCATORS[allocator]
        folder = str(HERE.parent / "tests")
        command = [sys.executable, *before, "-m", "unittest", "discover", "-v", "-s", folder, "-t", folder]
        log = open(options.out / f"tests-{allocator.replace(', ', '-')}.log", "w+")
        process = subprocess.Popen(command, env={**os.environ, **changes}, stdout=log, stderr=log)
        started[allocator] = (process, log)
    results = {}
    for allocator, (process, log) in started.items():
        try:
            process.wait(timeout=400)
        except subprocess.TimeoutExpired:
            process.kill()
        log.seek(0)
        said = log.read()
        verdicts = re.findall(r"^\w+ \((\S+)\)(?:\n.*)? \.\.\. (?:.*\n)*?.*?\b(ok|FAIL|ERROR|skipped)\b", said, re.M)
        results[allocator] = {
            "ended": process.returncode,
            "verdicts": dict(verdicts),
            "summary": said.strip().splitlines()[-1:],
        }
    return results


def show_tests(results):
    print("\n| allocator | tests | passed | summary |")
    print("|---|---|---|---|")
    for allocator, result in results.items():
        passed = sum(verdict == "ok" for verdict in result["verdicts"].values())
        print(
            f"| {allocator} | {len(result['verdicts'])} | {passed} | {' '.join(result['summary'])} |"
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
