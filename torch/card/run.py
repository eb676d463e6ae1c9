"""Runs everything on a card: the same programs on PyTorch's own allocator and on Larder, each in a
process of its own, and prints tables last.

    python run.py [PART ...] [--short] [--seconds N] [--out FOLDER]

Parts: workloads, large, costs, replays, deeds, tests, race, pressure, symmetric, picture, clients,
neighbours. Without any, all of them. --seconds says how long each race goes on. costs times mallocs
and the driver's calls, which the other parts leave alone. replays records programs of one stream
under tight and replays them there on the simulated GPU. picture draws what a program holds over
time, as tight.svg in the folder. pressure writes the recordings of programs that ran out of memory
to pressure.tar in the folder. clients writes programs.md there, neighbours what they said.
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
import programs
import stopwatch
from processes import (
    ALLOCATORS,
    OURS,
    end_of,
    in_turns,
    line_of,
    outcome,
    prepared,
    said_by,
    start,
    take_turns,
)

HERE = pathlib.Path(__file__).parent
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
# With whom what memory costs is compared, and how many steps a small program makes at a time for
# it: those whose shapes differ make all of them.
COMPARED = ("native", "native, expandable", "larder", "larder, tight")
COST_TURNS, COST_STEPS = 3, {"gpt2_varlen": 24, "resnet_varbatch": 24, "compiled": 8}
# Programs of one stream, of which nothing depends on when the card is done.
ONE_STREAM = (
    "gpt2_train gpt2_varlen gradient_checkpointing generation resnet_varbatch small_kernels"
).split()
DEEDS = [
    "out_of_memory",
    "snapshot",
    "sharing",
    "exported",
    "graph_statistics",
    "nccl_pool",
    "pluggable",
]


def chosen(options, programs):
    return [program for program in programs if program in (options.only or programs)]


def run_workloads(options):
    """Prepares programs side by side, since they take long to start, and runs them in turns."""
    waiting, results = chosen(options, WORKLOADS), {}
    turns = 3 if options.short else TURNS
    while waiting:
        batch, waiting = waiting[:PREPARED_AT_ONCE], waiting[PREPARED_AT_ONCE:]
        started = {
            workload: {
                (workload, allocator): start_workload(workload, allocator, turns)
                for allocator in ALLOCATORS
            }
            for workload in batch
        }
        for processes in started.values():
            results |= in_turns(processes, prepared(processes), turns)
    times = {
        f"{workload}, {allocator}": result for (workload, allocator), result in results.items()
    }
    (options.out / "workloads.json").write_text(json.dumps(times))
    return results


def start_workload(workload, allocator, turns):
    words = (workload, "--wait", "--turns", str(turns), "--steps", str(STEPS_A_TURN[workload]))
    return start(allocator, "workloads.py", *words)


def undisturbed_ms(result):
    """What a step takes when nothing else slows the machine down, which never makes it faster: the
    lower tenth of the times. Steps whose work differs count apart, and the first of a turn, which
    also wakes the card, not."""
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
        "\n| workload | allocator | ms a step | undisturbed | to native | faster than native in "
        "turns "
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
            f"| {workload} | {allocator} | {median_ms(result):.3f} | "
            f"{undisturbed_ms(result):.3f} | {ratio:.3f} "
            f"| {won} | {result['reserved_peak'] / 2**20:.0f} | "
            f"{result['active_peak'] / 2**20:.0f} | {note} |"
        )


def run_large(options):
    """Programs of about 50 GiB, one after the other, since two may not fit; and once more with
    hardly more memory than they use. Each says its row as it ends, because whoever stops a run of
    minutes wants what there is."""
    steps = ("--steps", "4") if options.short else ()
    results = {}

    def measure(program, allocator, what, *words):
        process = start(allocator, "large.py", program, *steps, *words)
        results[program, what] = outcome(process, f"{program} on {what}")
        print(large_row(results, program, what), flush=True)

    for program in chosen(options, LARGE):
        for allocator in ("native", "native, expandable", "larder, tight", "native again"):
            measure(program, allocator, allocator)
        tight = results[program, "larder, tight"]
        if tight is None:
            continue
        cap_bytes = int(1.05 * tight["active_peak"])
        for allocator in ("native", "larder, tight"):
            measure(
                program, allocator, f"{allocator}, in 1.05 of peak active", "--cap", str(cap_bytes)
            )
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
        "\n| program | allocator | ms a step | to native | worst step | first ten steps s | "
        "device calls a step "
        "| retries | peak reserved MiB | peak active MiB | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for program, allocator in results:
        print(large_row(results, program, allocator))


def run_costs(options):
    """What mallocs and the driver's calls take: large programs are prepared side by side and run
    one after the other, small ones in turns. Each says its row as it ends."""
    library = str(stopwatch.build(options.out))
    front = " ".join(filter(None, [library, os.environ.get("LD_PRELOAD")]))
    more = {"LD_PRELOAD": front, "STOPWATCH": library}
    results = {}

    def keep(program, allocator, result):
        results[program, allocator] = result
        print(costs_row(program, allocator, result), flush=True)

    large = [(program, allocator) for program in chosen(options, LARGE) for allocator in COMPARED]
    started = {key: start(key[1], "large.py", key[0], "--wait", more=more) for key in large}
    for key, process in started.items():
        line_of(process, "ready")
    for (program, allocator), process in started.items():
        keep(program, allocator, outcome(process, f"{program} on {allocator}"))
    waiting = chosen(options, WORKLOADS)
    while waiting:
        batch, waiting = waiting[:PREPARED_AT_ONCE], waiting[PREPARED_AT_ONCE:]
        started = {
            (key, allocator): start_costed(key, allocator, more)
            for key in batch
            for allocator in COMPARED
        }
        for process in started.values():
            line_of(process, "ready")
        for (workload, allocator), process in started.items():
            outcomes = take_turns({allocator: process}, COST_TURNS)
            if end_of(process) != 0:
                print(f"FAILED {workload} on {allocator}\n{said_by(process)}", flush=True)
            keep(workload, allocator, outcomes.get(allocator))
    (options.out / "costs.json").write_text(
        json.dumps({", ".join(key): result for key, result in results.items()})
    )
    return results


def start_costed(workload, allocator, more):
    steps = COST_STEPS.get(workload, 5)
    words = ("--wait", "--turns", str(COST_TURNS), "--steps", str(steps))
    return start(allocator, "workloads.py", workload, *words, more=more)


def costs_row(program, allocator, result):
    if result is None:
        return f"| {program} | {allocator} | failed | | | | | | |"
    settling, middle, last = result["costs"]
    later_steps = middle["steps"] + last["steps"]

    def later(kind, figure):
        return middle[kind][figure] + last[kind][figure]

    worst_us = [
        max(stage["mallocs"]["worst_ns"] for stage in stages) / 1e3
        for stages in ([settling], [middle, last])
    ]
    return (
        f"| {program} | {allocator} | {worst_us[0]:.0f} | {worst_us[1]:.0f} "
        f"| {later('mallocs', 'count') / later_steps:.0f} "
        f"| {later('mallocs', 'total_ns') / max(later('mallocs', 'count'), 1):.0f} "
        f"| {later('calls', 'count') / later_steps:.2f} | "
        f"{later('calls', 'total_ns') / later_steps / 1e6:.3f} "
        f"| {last['calls']['count'] / last['steps']:.2f} |"
    )


def show_costs(results):
    print(
        "\n| program | allocator | worst malloc of the first ten steps us | after them us | "
        "mallocs a step | ns each "
        "| driver calls a step | ms of them a step | calls a step at the end |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for (program, allocator), result in results.items():
        print(costs_row(program, allocator, result))


def run_replays(options):
    """Records programs under tight, side by side, and replays each on a simulated GPU of the same
    memory.
    """
    recorded = {workload: ("workloads.py", workload, "--turns", "2") for workload in ONE_STREAM}
    recorded |= {program: ("large.py", program, "--steps", "16") for program in LARGE}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        # Two large ones may not fit.
        for names in (chosen(options, ONE_STREAM), *([name] for name in chosen(options, LARGE))):
            files = {name: os.path.join(folder, f"{name}.pickle") for name in names}
            started = {
                name: start("larder, tight", *recorded[name], "--record", files[name])
                for name in names
            }
            for name, process in started.items():
                results[name] = outcome(process, f"{name}, recorded")
                if results[name] is not None:
                    results[name]["replayed"] = replayed(files[name])
                print(replays_row(name, results[name]), flush=True)
    return results


def replayed(file):
    import larder
    import torch

    memory = torch.cuda.get_device_properties(0).total_memory
    passed = larder.replay(file, policy="tight", memory=memory, settings="").passes[0]
    return {"reserved_peak": passed.peak_reserved_bytes, "active_peak": passed.peak_active_bytes}


def replays_row(program, result):
    if result is None:
        return f"| {program} | failed | | | |"
    figures = [
        run[peak]
        for peak in ("reserved_peak", "active_peak")
        for run in (result, result["replayed"])
    ]
    same = figures[0] == figures[1] and figures[2] == figures[3]
    return (
        f"| {program} | {' | '.join(map(str, figures))} | "
        f"{'to the byte' if same else 'NOT the same'} |"
    )


def show_replays(results):
    print(
        "\n| program under tight | peak reserved, card | replayed | peak active, card | replayed "
        "| the same |"
    )
    print("|---|---|---|---|---|---|")
    for program, result in results.items():
        print(replays_row(program, result))


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
        command = [
            sys.executable,
            *before,
            "-m",
            "unittest",
            "discover",
            "-v",
            "-s",
            folder,
            "-t",
            folder,
        ]
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
        verdicts = re.findall(
            r"^\w+ \((\S+)\)(?:\n.*)? \.\.\. (?:.*\n)*?.*?\b(ok|FAIL|ERROR|skipped)\b", said, re.M
        )
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
            f"| {allocator} | {len(result['verdicts'])} | {passed} | "
            f"{' '.join(result['summary'])} |"
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
    """Programs that run out of memory, recorded by PyTorch's own allocator; all recordings in one
    file.
    """
    listed = subprocess.run(
        [sys.executable, str(HERE / "pressure.py")], check=True, capture_output=True, text=True
    )
    results = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(options.out / "pressure.tar", "w") as tar,
    ):
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
        ran = subprocess.run(
            command, env={**os.environ, **changes}, capture_output=True, text=True, timeout=1200
        )
        lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        results[allocator] = {"ended": ran.returncode, "parts": lines, "said": ran.stderr[-2500:]}
    return results


def show_symmetric(results):
    print("\n| allocator | part | what was seen |")
    print("|---|---|---|")
    for allocator, result in results.items():
        for line in result["parts"]:
            seen = ", ".join(
                f"{name} {value}" for name, value in line.items() if name not in ("larder", "part")
            )
            print(f"| {allocator} | {line['part']} | {seen} |")
        if result["ended"] != 0:
            print(f"{allocator} ended with {result['ended']}: {result['said']}")


def run_picture(options):
    """What serving holds after each step, with one allocator after the other."""
    results = {}
    for allocator in ("native", "native, expandable", "larder, tight"):
        process = start(
            allocator, "large.py", "serving", "--steps", str(10 if options.short else 190)
        )
        results[allocator] = outcome(process, f"serving on {allocator}", limit_s=300)
    if all(results.values()):
        named = {
            allocator.removeprefix("larder, "): result for allocator, result in results.items()
        }
        (options.out / "tight.svg").write_text(picture.draw(named))
    return results


def show_picture(results):
    for allocator, result in results.items():
        peak = (
            "failed"
            if result is None
            else f"{result['reserved_peak'] / 2**30:.1f} GiB held at the peak"
        )
        print(f"serving on {allocator}: {peak}")


def run_clients(options):
    """Programs of other people's libraries."""
    return programs.run(options)


def run_neighbours(options):
    """CuPy, Numba and RMM in PyTorch's cache; a library that is not there is a failure. It ends by
    itself, whatever hangs; all that it says is in the folder."""
    results = {}
    for allocator in ("larder", "larder, tight"):
        before, changes = ALLOCATORS[allocator]
        command = [
            sys.executable,
            *before,
            str(HERE / "neighbours.py"),
            "--need",
            "cupy",
            "numba",
            "rmm",
        ]
        said = options.out / f"neighbours-{allocator.rpartition(' ')[2]}.txt"
        with said.open("w") as file:
            ran = subprocess.run(command, env={**os.environ, **changes}, stdout=file, stderr=file)
        results[allocator] = {"ended": ran.returncode, "said": said.read_text()}
    return results


def show_neighbours(results):
    for allocator, result in results.items():
        said = result["said"] if result["ended"] != 0 else result["said"].rpartition("\n\n")[2]
        print(f"\nneighbours on {allocator}: exit {result['ended']}\n{said[-8000:]}")


PARTS = {
    "workloads": (run_workloads, show_workloads),
    "large": (run_large, show_large),
    "costs": (run_costs, show_costs),
    "replays": (run_replays, show_replays),
    "deeds": (run_deeds, show_deeds),
    "tests": (run_tests, show_tests),
    "race": (run_race, show_deeds),
    "pressure": (run_pressure, show_pressure),
    "symmetric": (run_symmetric, show_symmetric),
    "picture": (run_picture, show_picture),
    "clients": (run_clients, programs.show),
    "neighbours": (run_neighbours, show_neighbours),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--short", action="store_true", help="few turns, to see whether it runs")
    parser.add_argument("--seconds", type=float, default=20, help="how long each race goes on")
    names = [*WORKLOADS, *LARGE, *programs.NAMES]
    parser.add_argument("--only", nargs="*", choices=names, help="these programs alone")
    out = pathlib.Path(os.environ.get("OUT", "."))
    parser.add_argument("--out", type=pathlib.Path, default=out)
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
