"""What must hold where libraries share one cache, each as a function of the libraries that are here
and the options of neighbours.py, which runs them. Each returns a sentence about what was seen, or
raises what is not so."""

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading

import torch

import exchange
import larder.torch
from exchange import MIB
from libraries import Failure, count_wrong, expect, first_line, of_torch


class Skipped(Exception):
    """What this machine cannot show."""


def counts():
    stats = torch.cuda.memory_stats()
    return {
        "calls": stats["num_device_alloc"] + stats["num_device_free"],
        "reserved": stats["reserved_bytes.all.current"],
        "allocated": stats["allocated_bytes.all.current"],
        "requested": stats["requested_bytes.all.current"],
    }


def start_anew():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def pairs(libraries):
    """Each library with PyTorch, both ways round, and with the next one."""
    first, *others = libraries
    for other in others:
        yield first, other
        yield other, first
    yield from zip(others, others[1:], strict=False)


def serves(libraries, _options):
    """What one gives back is what the other gets, on the same stream, with no call of the
    driver.
    """
    said = []
    for giver, taker in pairs(libraries):
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            for size in (600, 3 * MIB, 40 * MIB):
                serves_once(giver, taker, stream, size)
        said.append(f"{giver.name} to {taker.name}")
    return f"{', '.join(said)}: 0 calls of the driver"


def serves_once(giver, taker, stream, size):
    start_anew()
    made = giver.make(size, stream)
    giver.fill(made, 5, stream)
    address, before = giver.address(made), counts()
    del made
    made = taker.make(size, stream)
    who = f"{size} bytes of {giver.name} for {taker.name}"
    expect(counts()["calls"] == before["calls"], f"{who} cost a call of the driver")
    expect(taker.address(made) == address, f"{who} lie at another place")
    taker.fill(made, 6, stream)
    with torch.cuda.stream(stream):
        wrong = count_wrong(taker.words(made), 6)
    expect(wrong == 0, f"{who}: {wrong} words are wrong")


# So many cycles are a tenth of a second.
LATE = 200_000_000


def waits(libraries, _options):
    """On another stream nobody gets it too early, and what another stream works on is kept until
    that is done.
    """
    tries, kept, capped = 0, 0, 0
    for giver, taker in pairs(libraries):
        for has_room in (True, False):
            writes_late(giver, taker, has_room)
            capped += not has_room
        tries += 1
        kept += reads_late(giver, taker)
    return (
        f"0 words wrong; {capped} times there was no room but what another stream had; {kept} of "
        f"{tries} times its own "
        "stream got other memory while another one read it"
    )


def writes_late(giver, taker, has_room):
    """The giver's last work is still to come when the taker's begins on another stream; with room
    for both, or not.
    """
    size = 24 * MIB
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    start_anew()
    made = giver.make(size, first)
    torch.cuda.synchronize()
    cap = counts()["reserved"] + 2 * MIB
    if not has_room:
        torch.cuda.set_per_process_memory_fraction(cap / torch.cuda.mem_get_info()[1])
    try:
        with torch.cuda.stream(first):
            torch.cuda._sleep(LATE)
        giver.fill(made, 1, first)
        del made
        got = taker.make(size, second)
        taker.fill(got, 2, second)
        held = counts()["reserved"]
        expect(has_room or held <= cap, f"{held} bytes are held where {cap} are the most")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.synchronize()
    wrong = count_wrong(taker.words(got), 2)
    expect(
        wrong == 0,
        f"{giver.name}'s late work wrote over {wrong} words of {taker.name}'s on another stream",
    )


def reads_late(giver, taker):
    """Another stream reads after the giver has let go. Whether the giver's own stream got other
    memory meanwhile.
    """
    size = 24 * MIB
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    start_anew()
    read = torch.zeros(size // 8, dtype=torch.int64, device="cuda")
    made = giver.make(size, first)
    giver.fill(made, 3, first)
    address = giver.address(made)
    torch.cuda.synchronize()
    with torch.cuda.stream(second):
        words = giver.words(made)
        torch.cuda._sleep(LATE)
        read.copy_(words)
    giver.record_stream(made, second)
    del made, words
    got = taker.make(size, first)
    is_other = taker.address(got) != address
    taker.fill(got, 4, first)
    torch.cuda.synchronize()
    wrong = count_wrong(read, 3), count_wrong(taker.words(got), 4)
    expect(wrong == (0, 0), f"{wrong} words of {giver.name}'s and {taker.name}'s are wrong")
    del got
    # All is done: now it serves.
    before = counts()
    got = taker.make(size, first)
    expect(
        counts()["calls"] == before["calls"],
        f"{giver.name}'s memory did not come free for {taker.name}",
    )
    return is_other


def statistics(libraries, _options):
    """To the byte: what all hold together is what PyTorch says, and each block is in the snapshot
    where it is.
    """
    start_anew()
    before = counts()
    held = hold_random(libraries)
    after = counts()
    requested = sum(size for _, _, size in held)
    found = after["requested"] - before["requested"]
    expect(
        found == requested,
        f"the libraries hold {requested} bytes, and requested_bytes says {found}",
    )
    shown = shown_blocks()
    total = 0
    for library, made, size in held:
        block = shown.get(library.address(made))
        expect(block is not None, f"a block of {library.name}'s is not in the snapshot")
        expect(
            block["requested_size"] == size,
            f"{size} bytes of {library.name}'s are {block['requested_size']} there",
        )
        expect(block["size"] >= size, f"{size} bytes of {library.name}'s lie in {block['size']}")
        total += block["size"]
    found = after["allocated"] - before["allocated"]
    expect(
        found == total,
        f"the libraries' blocks have {total} bytes, and allocated_bytes says {found}",
    )
    count = len(held)
    made = None
    held.clear()
    for what in ("allocated", "requested"):
        left = counts()[what] - before[what]
        expect(left == 0, f"{left} bytes are left {what} when all is given back")
    return (
        f"{count} blocks: {requested} bytes requested, {total} allocated, 0 left; all to the byte"
    )


def hold_random(libraries):
    """Blocks of all libraries of all sizes, with holes between them."""
    stream, chance, held = torch.cuda.current_stream(), random.Random(1), []
    for index in range(200):
        library = libraries[index % len(libraries)]
        size = chance.choice(
            (1, 511, 512, 513, chance.randrange(1, 2 * MIB), chance.randrange(1, 48 * MIB))
        )
        held.append((library, library.make(size, stream), size))
        if chance.random() < 0.3:
            held.pop(chance.randrange(len(held)))
    return held


def shown_blocks():
    """What a snapshot shows as allocated, by address."""
    return {
        block["address"]: block
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def stacks(libraries, _options):
    """A snapshot names the Python function that asked, whichever library it asked; so does the
    history.
    """
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        stream = torch.cuda.current_stream()

        def asks_for_memory(library):
            return library.make(MIB + 512, stream)

        for library in libraries:
            made = asks_for_memory(library)
            address = library.address(made)
            names = names_in(shown_blocks()[address])
            expect("asks_for_memory" in names, f"the stack of {library.name}'s block is {names}")
            traces = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
            last = next(
                entry
                for entry in reversed(traces)
                if (entry["action"], entry["addr"]) == ("alloc", address)
            )
            names = names_in(last)
            expect(
                "asks_for_memory" in names,
                f"the stack of {library.name}'s request in the history is {names}",
            )
            del made
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return (
        f"{', '.join(library.name for library in libraries)}: the caller's name is in the "
        f"block's stack and in the history's"
    )


def names_in(shown):
    return [frame["name"] for frame in shown.get("frames", [])]


def exchanges(libraries, options):
    """Random requests of all libraries on four streams, whose contents are all compared."""
    ran, wrong = exchange.run(
        libraries, options.seed, options.exchanges, options.part_limit_s * 0.8
    )
    count = sum(ran.passed.values())
    expect(wrong == 0, f"seed {options.seed}: {wrong} words are wrong")
    expect(
        count >= options.exchanges,
        f"seed {options.seed}: only {count} exchanges in the time there is",
    )
    ways = ", ".join(f"{way} {times}" for way, times in sorted(ran.passed.items()))
    return (
        f"seed {options.seed}: {ran.contents.blocks} blocks, {count} exchanges ({ways}), 0 "
        f"words wrong"
    )


def threads(libraries, options):
    """Eight threads exchange at once, and give back what others took, while stacks are recorded,
    snapshots are taken, the cache is emptied and garbage is collected."""
    gc.collect()
    start_anew()
    before, limit_s = counts()["allocated"], options.part_limit_s * 0.8

    def meanwhile():
        torch.cuda.memory_snapshot()
        torch.cuda.empty_cache()
        gc.collect()

    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        blocks, wrong, times = exchange.run_threads(
            libraries, options.seed, 8, options.steps, limit_s, meanwhile
        )
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    expect(wrong == 0, f"seed {options.seed}: {wrong} words are wrong")
    gc.collect()
    left = counts()["allocated"] - before
    expect(left == 0, f"{left} bytes are left when all threads have given back")
    return (
        f"seed {options.seed}: 8 threads, {blocks} blocks, {times} snapshots meanwhile, 0 "
        f"words wrong, 0 bytes left"
    )


def graphs(libraries, _options):
    """Memory that a neighbour takes while PyTorch captures its stream is the graph's, and replays
    are right.
    """
    source = torch.zeros(1 << 16, device="cuda")
    done = []
    for library in libraries[1:]:
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = library.make(source.nbytes, stream)
            copy = library.words(made).view(torch.float32).copy_(source)
            result = copy + 1
        pools = pools_of(library, made)
        expect(
            pools == [tuple(graph.pool())],
            f"{library.name}'s block lies in {pools}, and the graph has {graph.pool()}",
        )
        for step in range(20):
            source.fill_(step)
            # What is eager must not come to lie in the graph's memory.
            eager = [library.make(source.nbytes, torch.cuda.current_stream()) for _ in range(4)]
            for each in eager:
                library.fill(each, -1, torch.cuda.current_stream())
            graph.replay()
            wrong = count_wrong(result, step + 1)
            expect(wrong == 0, f"{wrong} words of a graph with {library.name}'s memory are wrong")
            eager.clear()
            each = None
        done.append(library.name)
        del made, copy, result, graph
    return f"{', '.join(done)}: 20 replays each, 0 words wrong"


def pools_of(library, made):
    address = library.address(made)
    return [
        tuple(segment["segment_pool_id"])
        for segment in torch.cuda.memory_snapshot()
        if 0 <= address - segment["address"] < segment["total_size"]
    ]


def refuses(libraries, _options):
    """Errors are the library's own, no bytes are no memory, and out of memory leaves all well."""
    said = []
    stream = torch.cuda.current_stream()
    for library in libraries[1:]:
        before = counts()
        try:
            library.make(1 << 42, stream)
        except library.is_full as error:
            expect(
                "out of memory" in str(error).lower(), f"{library.name} says {first_line(error)}"
            )
            said.append(f"{library.name} {type(error).__name__}")
        else:
            raise Failure(f"{library.name} got four tebibytes")
        made = library.make(0, stream)
        expect(
            counts()["allocated"] == before["allocated"], f"no bytes of {library.name}'s are some"
        )
        made = library.make(MIB, stream)
        library.fill(made, 9, stream)
        expect(count_wrong(library.words(made), 9) == 0, f"{library.name} is not well after it")
        del made
    return ", ".join(said)


def streams(libraries, _options):
    """Streams that libraries make are destroyed, some before the memory that was taken for them
    goes back. What was cached for them is given back, and whoever has such a handle next is
    served."""
    said = []
    for library in libraries:
        if library.new_stream() is None:
            continue
        gc.collect()
        start_anew()
        before = counts()
        for turn in range(20):
            uses_stream(library, outlives=turn % 2 == 0)
        gc.collect()
        start_anew()
        for what in ("allocated", "reserved"):
            left = counts()[what] - before[what]
            expect(
                left == 0,
                f"{left} bytes are {what} for streams of {library.name}'s that are destroyed",
            )
        said.append(f"{library.name} 20")
    return f"{', '.join(said)} streams destroyed, 0 words wrong, 0 bytes left"


def uses_stream(library, outlives):
    """A stream with work to come, which is destroyed before its block goes back, or after."""
    stream = library.new_stream()
    made = library.make(3 * MIB, stream)
    with torch.cuda.stream(of_torch(stream)):
        torch.cuda._sleep(LATE // 100)
    library.fill(made, 8, stream)
    words = library.words(made)
    if not outlives:
        with torch.cuda.stream(of_torch(stream)):
            wrong = count_wrong(words, 8)
        made = words = None
    if not library.forgets_streams:
        larder.torch.forget_stream(stream)
    del stream
    if outlives:
        torch.cuda.synchronize()
        wrong = count_wrong(words, 8)
    expect(wrong == 0, f"{wrong} words of {library.name}'s are wrong on a stream of its own")


def callbacks(libraries, _options):
    """A stream calls Python functions, which wait for the interpreter, while a thread that has it
    gives memory back, and other streams are destroyed: nobody may wait for the interpreter and be
    waited for by whoever has it."""
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
    called, turns = [], 30
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
    calls, is_over = torch.cuda.Stream(), threading.Event()
    beside = threading.Thread(target=take_and_give, args=(is_over,), daemon=True)
    beside.start()
    for turn in range(turns):
        library = libraries[turn % len(libraries)]
        with torch.cuda.stream(calls):
            torch.cuda._sleep(LATE // 50)
            error = runtime.cudaLaunchHostFunc(ctypes.c_void_p(calls.cuda_stream), call, None)
        expect(error == 0, f"cudaLaunchHostFunc says {error}")
        made = library.make(3 * MIB, calls)
        made = None
        own = library.new_stream()
        if own is not None:
            made = library.make(3 * MIB, own)
            made = None
            if not library.forgets_streams:
                larder.torch.forget_stream(own)
        own = None
    torch.cuda.synchronize()
    is_over.set()
    beside.join()
    expect(len(called) == turns, f"{len(called)} of {turns} calls came")
    return (
        f"{turns} calls of a Python function by a stream, while memory was taken, given back "
        f"and forgotten"
    )


def take_and_give(is_over):
    """What PyTorch gives back it gives back with the interpreter's lock."""
    while not is_over.is_set():
        held = [torch.empty(MIB, device="cuda") for _ in range(4)]
        held.clear()


def kernels_run():
    """Whether PyTorch's own kernels do, all of them: a stand-in for a GPU knows few."""
    return bool((torch.arange(8, device="cuda").cpu() == torch.arange(8)).all())


def compiles(libraries, _options):
    """torch.compile goes on working beside them, with CUDA graphs and without."""
    if not kernels_run():
        raise Skipped("PyTorch's kernels do not run here")

    def step(x, weight):
        return torch.nn.functional.gelu(x @ weight).softmax(-1).sum(0)

    x, weight = torch.randn(256, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    wanted = step(x, weight)
    worst = 0.0
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(step, mode=mode)
        for _ in range(10):
            held = [library.make(3 * MIB, torch.cuda.current_stream()) for library in libraries]
            found = compiled(x, weight).clone()
            del held
            worst = max(worst, float((found - wanted).abs().max()))
        expect(worst < 1e-2, f"the results of mode {mode} differ by {worst}")
    return f"default and reduce-overhead: results differ from eager's by {worst:.1e} at most"


ENDING = """
import faulthandler, sys
faulthandler.dump_traceback_later({limit_s}, exit=True)
import torch
sys.path.insert(0, {folder!r})
import libraries
found, _ = libraries.find([])
kept = [library.make(1 << 20, torch.cuda.current_stream()) for library in found for _ in range(3)]
kept += [library.words(library.make(1 << 20, torch.cuda.current_stream())) for library in found]
for library in found:
    stream = library.new_stream()
    if stream is not None:
        kept.append((stream, library.make(1 << 20, stream)))
class Cycle: pass
for made in kept:
    cycle = Cycle()
    cycle.itself, cycle.made = cycle, made
sys.modules["kept"] = kept
print("holds", len(kept), len(found))
"""


def ends(libraries, options):
    """A process that ends with memory and streams in everybody's hands ends well."""
    limit_s = options.part_limit_s * 0.8
    code = ENDING.format(folder=os.path.dirname(os.path.abspath(__file__)), limit_s=limit_s * 0.8)
    command = [sys.executable, "-m", "larder", "-c", code]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"it has not ended after {limit_s:.0f} s: {error.stderr or b''!r}") from error
    expect(
        ran.returncode == 0,
        f"it ended with {ran.returncode}: {ran.stderr.strip().splitlines()[-8:]}",
    )
    words = ("larder:", "Exception", "Error")
    complaints = [line for line in ran.stderr.splitlines() if any(word in line for word in words)]
    expect(not complaints, f"it said {complaints[:3]}")
    held = ran.stdout.splitlines()[-1]
    expect(
        held.endswith(f" {len(libraries)}"),
        f"not all libraries were there: {ran.stdout.splitlines()}",
    )
    return f"exit code 0 with {held.split()[1]} blocks alive, and nothing said"
