"""Programs in processes of their own, on one allocator or another: started, waited for, and run in
turns.

Each prints one line of JSON last. One that others are compared with says `ready` once it is
prepared, and goes on at each line.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

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


def start(allocator, script, *words, more=None, limit_s=None):
    """Starts a program with an allocator; it is ended when it takes longer than its limit."""
    before, changes = ALLOCATORS[allocator]
    environment = {
        **os.environ,
        **changes,
        **(more or {}),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [sys.executable, *before, str(HERE / script), *words]
    pipe = subprocess.PIPE
    # What a program says besides must not fill a pipe that nobody reads while it is prepared.
    said = tempfile.TemporaryFile("w+")
    process = subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=said, text=True
    )
    process.said = said
    if limit_s:
        watch = threading.Timer(limit_s, process.kill)
        watch.daemon = True
        watch.start()
    return process


def said_by(process):
    process.said.seek(0)
    return process.said.read()[-2500:]


def outcome(process, what, limit_s=200):
    """The last line that a program printed, as JSON; None with the reason on the screen if it
    failed.
    """
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
    """Sends a program on, and waits until it is at rest again: what it said then, or none if it
    ended.
    """
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    # A library may print what looks like JSON to a hasty reader.
    return line_of(process, ("ready", '{"'))


def end_of(process):
    """Waits for a program that was told all it needs: its exit code."""
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass
    try:
        return process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def take_turns(started, turns):
    """Runs programs that are ready turn by turn, with nothing else at work, so that what the
    machine does meanwhile falls on all of them alike. The first to go is another one each time."""
    alive = dict(started)
    for turn in range(turns):
        order = list(alive)
        shift = turn % len(order) if order else 0
        for key in order[shift:] + order[:shift]:
            if go(alive[key]) is None:
                del alive[key]
    return {key: json.loads(go(process) or "null") for key, process in alive.items()}


def prepared(started):
    """Of programs that were started side by side those that come to say that they are ready."""
    return {key: process for key, process in started.items() if line_of(process, "ready")}


def in_turns(started, ready, turns):
    """Programs that were started side by side, of which some are ready, turn by turn: what each
    came to.
    """
    outcomes = take_turns({key: process for key, process in ready.items() if key in started}, turns)
    for key, process in started.items():
        if end_of(process) != 0 or outcomes.get(key) is None:
            print(f"FAILED {key}\n{said_by(process)}", flush=True)
            outcomes[key] = None
    return {key: outcomes[key] for key in started}
