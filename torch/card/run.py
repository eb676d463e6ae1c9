"""Runs everything on a card: the same programs on PyTorch's own allocator and on Larder, each in a process
of its own, and prints tables last.

    python run.py [PART ...] [--short] [--seconds N] [--out FOLDER]

Parts: workloads, large, deeds, tests, race, pressure, symmetric, picture. Without any, all of them. --seconds says how long each race goes
on. picture draws what a program holds over time, as tight.svg in the folder.
pressure writes the recordings of programs that ran out of memory to pressure.tar in the folder.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

import picture

HERE = pathlib.Path(__file__).parent
PLAIN = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}

# How a program is started with each allocator: the words before the script, and the environment.
ALLOCATORS = {
    "native": ([], {}),
    "native again": ([], {}),
    "larder": (["-m", "larder"], {}),
    "larder, plain": (["-m", "larder"], PLAIN),
    "native, expandable": ([], EXPANDABLE),
    "larder, tight": (["-m", "larder", "--policy", "tight"], {}),
    "cudaMallocAsync": ([], ASYNC),
}
OURS = [allocator for allocator in ALLOCATORS if allocator.startswith("larder")]

# How many steps a program makes at a time: about an eighth of a second's.
STEPS_A_TURN = {
    "gpt2_train": 7,
    "gpt2_varlen": 5,
    "gradient_checkpointing": 3,
    "generation": 3,
    "streams": 30,
    "graphs": 200,
    "resnet_varbatch": 5,
    "small_kernels": 5,
    "small_tensors": 20,
    "compiled": 60,
    "empty": 6,
}
WORKLOADS = list(STEPS_A_TURN)
TURNS = 24
# So many workloads are prepared at once, each with every allocator.
PREPARED_AT_ONCE = 4
LARGE = ["mixture_of_experts", "language_model", "serving"]
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


def outcome(process, what, limit_s=200):
    """The last line that a program printed, as JSON; None with the reason on the screen if it failed."""
    try:
        printed, _ = process.communicate("go\n", timeout=limit_s)
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


def go(process):
    """Sends a program on, and waits until it is at rest again: what it said then, or none if it ended."""
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    return line_of(process, ("ready", "{"))


def take_turns(started, turns):
    """Runs programs that are ready turn by turn, with nothing else at work, so that what the machine does
    meanwhile falls on all of them alike. The first to go is another one each time."""
    alive = dict(started)
    for turn in range(turns):
        order = list(alive)
        shift = turn % len(order) if order else 0
        for key in order[shift:] + order[:shift]:
            if go(alive[key]) is None:
                del alive[key]
    return {key: json.loads(go(process) or "null") for key, process in alive.items()}


def run_workloads(options):
    """Prepares programs side by side, since they take long to start, and runs them in turns."""
    waiting, results = list(options.only or WORKLOADS), {}
    turns = 3 if options.short else TURNS
    while waiting:
        batch, waiting = waiting[:PREPARED_AT_ONCE], waiting[PREPARED_AT_ONCE:]
        started = {
            workload: {allocator: start_workload(workload, allocator, turns) for allocator in ALLOCATORS}
            for workload in batch
        }
        for workload, processes in started.items():
            ready = {key: process for key, process in processes.items() if line_of(process, "ready")}
            outcomes = take_turns(ready, turns)
            for allocator, process in processes.items():
                results[workload, allocator] = outcomes.get(allocator)
                process.stdin.close()
                if process.wait(timeout=60) != 0 or results[workload, allocator] is None:
                    print(f"FAILED {workload} on {allocator}\n{said_by(process)}", flush=True)
    times = {f"{workload}, {allocator}": result for (workload, allocator), result in results.items()}
    (options.out / "workloads.json").write_text(json.dumps(times))
    return results


def start_workload(workload, allocator, turns):
    words = (workload, "--wait", "--turns", str(turns), "--steps", str(STEPS_A_TURN[workload]))
    return start(allocator, "workloads.py", *words)


def undisturbed_ms(result):
    """What a step takes when nothing else slows the machine down, which never makes it faster: the lower tenth
    of the times. Steps whose work differs count apart, and the first of a turn, which also wakes the card, not."""
    alike, index = collections.defaultdict(list), 0
    for turn in result["turn_times_ms"]:
        for position, time_ms in enumerate(turn):
            if position > 0:
                alike[index % result["cycle"]].append(time_ms)
            index += 1
    return statistics.mean(sorted(times_ms)[len(times_ms) // 10] for times_ms in alike.values())


def median_ms(result):
    return statistics.median(time_ms for turn in result["turn_times_ms"] for time_ms in turn[1:])


def turns_won(result, native):
    """In how many turns a step took less than with native."""
    turns = zip(result["turn_times_ms"], native["turn_times_ms"])
    won = [statistics.median(one[1:]) < statistics.median(other[1:]) for one, other in turns]
    return f"{sum(won)} of {len(won)}"


def show_workloads(results):
    print(
        "\n| workload | allocator | ms a step | undisturbed | to native | faster than native in turns "
        "| peak reserved MiB | peak active MiB | results |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for (workload, allocator), result in results.items():
        native = results.get((workload, "native"))
        if result is None or native is None:
            print(f"| {workload} | {allocator} | failed | | | | | | |")
            continue
        again = results.get((workload, "native again"))
        steady = again is not None and again["results"] == native["results"]
        same = "the same to the bit" if result["results"] == native["results"] else "not the same"
        note = same if steady else f"{same}; native does not repeat itself"
        missing = set(native["keys"]) - set(result["keys"])
        if missing and allocator.startswith("larder"):
            note += f"; missing keys {sorted(missing)}"
        ratio = undisturbed_ms(result) / undisturbed_ms(native)
        won = "" if allocator == "native" else turns_won(result, native)
        print(
            f"| {workload} | {allocator} | {median_ms(result):.3f} | {undisturbed_ms(result):.3f} | {ratio:.3f} "
            f"| {won} | {result['reserved_peak'] / 2**20:.0f} | {result['active_peak'] / 2**20:.0f} | {note} |"
        )


def run_large(options):
    """Programs of about 50 GiB, one after the other, since two may not fit; and once more with hardly more memory
    than they use. Each says its row as it ends, because whoever stops a run of minutes wants what there is."""
    steps = ("--steps", "4") if options.short else ()
    results = {}

    def measure(program, allocator, what, *words):
        process = start(allocator, "large.py", program, *steps, *words)
        results[program, what] = outcome(process, f"{program} on {what}")
        print(large_row(results, program, what), flush=True)

    for program in LARGE:
        for allocator in ("native", "native, expandable", "larder, tight", "native again"):
            measure(program, allocator, allocator)
        tight = results[program, "larder, tight"]
        if tight is None:
            continue
        cap_bytes = int(1.05 * tight["active_peak"])
        for allocator in ("native", "larder, tight"):
            measure(program, allocator, f"{allocator}, in 1.05 of peak active", "--cap", str(cap_bytes))
    return results


def large_row(results, program, allocator):
    result, native = results[program, allocator], results.get((program, "native"))
    if result is None:
        return f"| {program} | {allocator} | failed | | | | | | | | |"
    median = statistics.median(result["times_ms"])
    ratio = f"{median / statistics.median(native['times_ms']):.3f}" if native else ""
    reserved, active = result["reserved_peak"] / 2**20, result["active_peak"] / 2**20
    return (
        f"| {program} | {allocator} | {median:.1f} | {ratio} | {max(result['times_ms']):.1f} "
        f"| {result['first_ms'] / 1e3:.2f} | {result['calls_a_step']:.1f} | {result['retries']} "
        f"| {reserved:.0f} | {active:.0f} | {reserved / active:.4f} |"
    )


def show_large(results):
    print(
        "\n| program | allocator | ms a step | to native | worst step | first ten steps s | device calls a step "
        "| retries | peak reserved MiB | peak active MiB | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for program, allocator in results:
        print(large_row(results, program, allocator))


def run_deeds(_):
    started = {
        (deed, allocator): start(allocator, "deeds.py", deed)
        for allocator in ("native", *OURS)
        for deed in DEEDS
        if deed != "nccl_pool"
    }
    results = {key: outcome(process, " on ".join(key)) for key, process in started.items()}
    # Two at once would use the same port.
    for allocator in ("native", *OURS):
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
    for allocator in ("native", *OURS):
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


def run_race(options):
    """One after the other: each has threads enough to fill the machine."""
    seconds = 5 if options.short else options.seconds
    results = {}
    for allocator in ("native", "native, expandable", *OURS):
        process = start(allocator, "race.py", "--seconds", str(seconds))
        results["race", allocator] = outcome(process, f"race on {allocator}", limit_s=seconds + 120)
    return results


def run_pressure(options):
    """Programs that run out of memory, recorded by PyTorch's own allocator; all recordings in one file."""
    listed = subprocess.run([sys.executable, str(HERE / "pressure.py")], check=True, capture_output=True, text=True)
    results = {}
    with tempfile.TemporaryDirectory() as folder, tarfile.open(options.out / "pressure.tar", "w") as tar:
        for name, conf in json.loads(listed.stdout).items():
            files = [pathlib.Path(folder) / f"{name}.{ending}" for ending in ("pickle.gz", "json")]
            command = [sys.executable, str(HERE / "pressure.py"), name, *map(str, files)]
            environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
            ran = subprocess.run(command, env=environment, capture_output=True, text=True)
            said = (ran.stdout if ran.returncode == 0 else ran.stderr).strip().splitlines()[-1:]
            results[name] = {"ended": ran.returncode, "said": " ".join(said)}
            for file in files if ran.returncode == 0 else []:
                tar.add(file, arcname=file.name)
    return results


def show_pressure(results):
    print("\n| recorded | ended | what the card did |")
    print("|---|---|---|")
    for name, result in results.items():
        print(f"| {name} | {result['ended']} | {result['said']} |")


def run_symmetric(_options):
    """Two ranks on the one card, and NCCL and NVSHMEM with one each."""
    results = {}
    for allocator in ("native", "larder"):
        before, changes = ALLOCATORS[allocator]
        command = [sys.executable, *before, str(HERE / "symmetric.py")]
        ran = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True, timeout=1200)
        lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        results[allocator] = {"ended": ran.returncode, "parts": lines, "said": ran.stderr[-2500:]}
    return results


def show_symmetric(results):
    print("\n| allocator | part | what was seen |")
    print("|---|---|---|")
    for allocator, result in results.items():
        for line in result["parts"]:
            seen = ", ".join(f"{name} {value}" for name, value in line.items() if name not in ("larder", "part"))
            print(f"| {allocator} | {line['part']} | {seen} |")
        if result["ended"] != 0:
            print(f"{allocator} ended with {result['ended']}: {result['said']}")


def run_picture(options):
    """What serving holds after each step, with one allocator after the other."""
    results = {}
    for allocator in ("native", "native, expandable", "larder, tight"):
        process = start(allocator, "large.py", "serving", "--steps", str(10 if options.short else 190))
        results[allocator] = outcome(process, f"serving on {allocator}", limit_s=300)
    if all(results.values()):
        named = {allocator.removeprefix("larder, "): result for allocator, result in results.items()}
        (options.out / "tight.svg").write_text(picture.draw(named))
    return results


def show_picture(results):
    for allocator, result in results.items():
        peak = "failed" if result is None else f"{result['reserved_peak'] / 2**30:.1f} GiB held at the peak"
        print(f"serving on {allocator}: {peak}")


PARTS = {
    "workloads": (run_workloads, show_workloads),
    "large": (run_large, show_large),
    "deeds": (run_deeds, show_deeds),
    "tests": (run_tests, show_tests),
    "race": (run_race, show_deeds),
    "pressure": (run_pressure, show_pressure),
    "symmetric": (run_symmetric, show_symmetric),
    "picture": (run_picture, show_picture),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--short", action="store_true", help="few turns, to see whether it runs")
    parser.add_argument("--seconds", type=float, default=20, help="how long each race goes on")
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
