"""CuPy, Numba and RMM in the cache that PyTorch uses, on a card.

    python -m larder neighbours.py [PART ...] [--seed N] [--exchanges N] [--need LIBRARY ...]

What one library gives back serves another on the same stream without a call of the driver, and on another stream when it
may; statistics and snapshots show all; contents are right. Parts: serves, waits, statistics, stacks, exchanges, graphs,
compiles, refuses, ends. A library that is not there is skipped in a sentence, or a failure if --need names it. A table is
printed last, and the exit status tells whether all of it held.
"""

import argparse
import collections
import os
import random
import subprocess
import sys
import time
import traceback
import warnings

import torch

import larder
import larder.torch

MIB = 1 << 20


class Failure(Exception):
    """Something is not as it should be."""


def expect(holds, sentence):
    if not holds:
        raise Failure(sentence)


class Handle:
    """A stream of PyTorch's, as other libraries take it."""

    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return (0, self.stream.cuda_stream)


class Torch:
    """A library: how it makes memory on a stream, and where that lies. This one is PyTorch itself."""

    name = "torch"
    is_full = torch.OutOfMemoryError

    def make(self, size, stream):
        with torch.cuda.stream(stream):
            return torch.empty(size, dtype=torch.uint8, device="cuda")

    def address(self, made):
        return made.data_ptr()

    def words(self, made):
        """The memory as whole words of 64 bits, as a tensor that keeps it alive."""
        return torch.as_tensor(made, device="cuda").view(torch.uint8)[: self.size(made) // 8 * 8].view(torch.int64)

    def size(self, made):
        return made.nbytes

    def fill(self, made, value, stream):
        with torch.cuda.stream(stream):
            self.words(made).fill_(value)

    def record_stream(self, made, stream):
        made.record_stream(stream)


class Cupy(Torch):
    name = "cupy"

    def __init__(self):
        import cupy

        import larder.cupy

        self.cupy, self.ours = cupy, larder.cupy
        self.is_full = cupy.cuda.memory.OutOfMemoryError
        larder.cupy.install()
        larder.cupy.install()
        expect(larder.cupy.is_installed(), "larder.cupy.install() did not install")

    def on(self, stream):
        return self.cupy.cuda.Stream.from_external(Handle(stream))

    def make(self, size, stream):
        with self.on(stream):
            return self.cupy.empty(size, dtype=self.cupy.uint8)

    def address(self, made):
        return made.data.ptr

    def fill(self, made, value, stream):
        with self.on(stream):
            made[: made.size // 8 * 8].view(self.cupy.int64).fill(value)

    def record_stream(self, made, stream):
        self.ours.record_stream(made, stream)


class Numba(Torch):
    name = "numba"

    def __init__(self):
        import numpy
        from numba import cuda

        import larder.numba

        self.cuda, self.numpy, self.ours = cuda, numpy, larder.numba
        self.is_full = cuda.cudadrv.driver.CudaAPIError
        cuda.set_memory_manager(larder.numba.Manager)
        warnings.filterwarnings("ignore", message="Grid size")
        self.kernel = self.compiled()

    def compiled(self):
        """A kernel that fills words, or none where Numba's compiler does not go with this driver."""
        cuda = self.cuda

        @cuda.jit
        def fill(words, value):
            start = cuda.grid(1)
            for index in range(start, words.size, cuda.gridsize(1)):
                words[index] = value

        try:
            words = cuda.device_array(16, dtype=self.numpy.int64)
            fill[1, 16](words, 7)
            expect((words.copy_to_host() == 7).all(), "Numba's kernel filled nothing")
            return fill
        except Failure:
            raise
        except Exception as error:
            print(f"Numba's kernels do not run here, and PyTorch fills its arrays: {first_line(error)}", flush=True)
            return None

    def make(self, size, stream):
        with self.ours.allocating_on(stream):
            return self.cuda.device_array(size, dtype=self.numpy.uint8)

    def address(self, made):
        return int(made.gpu_data.device_pointer)

    def fill(self, made, value, stream):
        if self.kernel is None:
            return super().fill(made, value, stream)
        words = made[: made.size // 8 * 8].view(self.numpy.int64)
        on = self.cuda.external_stream(stream.cuda_stream) if stream.cuda_stream else 0
        self.kernel[64, 256, on](words, value)

    def record_stream(self, made, stream):
        self.ours.record_stream(made, stream)


class Rmm(Torch):
    name = "rmm"
    is_full = MemoryError

    def __init__(self):
        import rmm
        from rmm.pylibrmm.stream import Stream

        import larder.rmm

        self.rmm, self.stream = rmm, Stream
        larder.rmm.install()
        larder.rmm.install()
        expect(larder.rmm.is_installed(), "larder.rmm.install() did not install")

    def make(self, size, stream):
        return self.rmm.DeviceBuffer(size=size, stream=self.stream(Handle(stream)))

    def address(self, made):
        return made.ptr

    def size(self, made):
        return made.size

    record_stream = None


def first_line(error):
    return f"{type(error).__name__}: {(str(error) or repr(error)).splitlines()[0]}"


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
    """What one gives back is what the other gets, on the same stream, with no call of the driver."""
    said = []
    for giver, taker in pairs(libraries):
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            for size in (600, 3 * MIB, 40 * MIB):
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
                    wrong = int((taker.words(made) != 6).sum())
                expect(wrong == 0, f"{who}: {wrong} words are wrong")
                del made
        said.append(f"{giver.name} to {taker.name}")
    return f"{', '.join(said)}: 0 calls"


# So many cycles are a tenth of a second.
LATE = 200_000_000


def waits(libraries, _options):
    """On another stream nobody gets it too early, and what another stream works on is kept until that is done."""
    tries, kept, capped = 0, 0, 0
    for giver, taker in pairs(libraries):
        for has_room in (True, False):
            writes_late(giver, taker, has_room)
            capped += not has_room
        if giver.record_stream is not None:
            tries += 1
            kept += reads_late(giver, taker)
    return (
        f"0 words wrong; {capped} times there was no room but what another stream had; {kept} of {tries} times its own "
        "stream got other memory while another one read it"
    )


def writes_late(giver, taker, has_room):
    """The giver's last work is still to come when the taker's begins on another stream; with room for both, or not."""
    size = 64 * MIB
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
    wrong = int((taker.words(got) != 2).sum())
    expect(wrong == 0, f"{giver.name}'s late work wrote over {wrong} words of {taker.name}'s on another stream")


def reads_late(giver, taker):
    """Another stream reads after the giver has let go. Whether the giver's own stream got other memory meanwhile."""
    size = 64 * MIB
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
    wrong = int((read != 3).sum()), int((taker.words(got) != 4).sum())
    expect(wrong == (0, 0), f"{wrong} words of {giver.name}'s and {taker.name}'s are wrong")
    del got
    # All is done: now it serves.
    before = counts()
    got = taker.make(size, first)
    expect(counts()["calls"] == before["calls"], f"{giver.name}'s memory did not come free for {taker.name}")
    return is_other


def statistics(libraries, _options):
    """To the byte: what all hold together is what PyTorch says, and each block is in the snapshot where it is."""
    start_anew()
    before = counts()
    stream = torch.cuda.current_stream()
    chance = random.Random(1)
    held = []
    for index in range(200):
        library = libraries[index % len(libraries)]
        size = chance.choice((1, 511, 512, 513, chance.randrange(1, 2 * MIB), chance.randrange(1, 48 * MIB)))
        held.append((library, library.make(size, stream), size))
        if chance.random() < 0.3:
            held.pop(chance.randrange(len(held)))
    after = counts()
    requested = sum(size for _, _, size in held)
    found = after["requested"] - before["requested"]
    expect(found == requested, f"the libraries hold {requested} bytes, and requested_bytes says {found}")
    shown = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                shown[block["address"]] = block
    total = 0
    for library, made, size in held:
        block = shown.get(library.address(made))
        expect(block is not None, f"a block of {library.name}'s is not in the snapshot")
        expect(block["requested_size"] == size, f"{size} bytes of {library.name}'s are {block['requested_size']} there")
        expect(block["size"] >= size, f"{size} bytes of {library.name}'s lie in {block['size']}")
        total += block["size"]
    found = after["allocated"] - before["allocated"]
    expect(found == total, f"the libraries' blocks have {total} bytes, and allocated_bytes says {found}")
    count = len(held)
    held.clear()
    made = None
    left = counts()["allocated"] - before["allocated"]
    expect(left == 0, f"{left} bytes are left when all is given back")
    return f"{count} blocks: {requested} bytes requested, {total} allocated, 0 left; all to the byte"


def stacks(libraries, _options):
    """A snapshot names the Python function that asked, whichever library it asked."""
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        stream = torch.cuda.current_stream()

        def asks_for_memory(library):
            return library.make(MIB + 512, stream)

        for library in libraries:
            made = asks_for_memory(library)
            block = next(
                block
                for segment in torch.cuda.memory_snapshot()
                for block in segment["blocks"]
                if block["address"] == library.address(made)
            )
            names = [frame["name"] for frame in block.get("frames", [])]
            expect("asks_for_memory" in names, f"the stack of {library.name}'s block is {names}")
            del made
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return f"{', '.join(library.name for library in libraries)}: the caller's name is in the block's stack"


class Exchange:
    """Random requests of all libraries on several streams; who had the memory before is remembered."""

    def __init__(self, libraries, seed):
        self.libraries, self.chance = libraries, random.Random(seed)
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
        self.wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in self.streams]
        self.live, self.last, self.blocks = [], {}, 0
        self.passed = collections.Counter()
        torch.cuda.synchronize()

    def make(self):
        library, at = self.chance.choice(self.libraries), self.chance.randrange(len(self.streams))
        size = 8 * self.chance.choice((self.chance.randrange(1, 4096), self.chance.randrange(1, MIB)))
        value, stream = self.chance.randrange(1, 1 << 40), self.streams[at]
        made = library.make(size, stream)
        address = library.address(made)
        former = self.last.pop(address, None)
        if former not in (None, library.name):
            self.passed[f"{former} to {library.name}"] += 1
        if self.chance.random() < 0.05:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(self.chance.randrange(1_000_000))
        library.fill(made, value, stream)
        self.live.append((library, made, at, value))
        self.blocks += 1

    def check_and_drop(self):
        library, made, at, value = self.live.pop(self.chance.randrange(len(self.live)))
        reader = at
        if library.record_stream is not None and self.chance.random() < 0.4:
            reader = self.chance.randrange(len(self.streams))
        if reader != at:
            self.streams[reader].wait_stream(self.streams[at])
        with torch.cuda.stream(self.streams[reader]):
            words = library.words(made)
            self.wrong[reader] += (words != value).sum()
        if reader != at:
            library.record_stream(made, self.streams[reader])
        self.last[library.address(made)] = library.name

    def run(self, wanted, limit_s=120):
        until = time.monotonic() + limit_s
        while sum(self.passed.values()) < wanted and time.monotonic() < until:
            if len(self.live) < 24 and self.chance.random() < 0.55 or not self.live:
                self.make()
            else:
                self.check_and_drop()
        while self.live:
            self.check_and_drop()
        torch.cuda.synchronize()
        return sum(int(wrong) for wrong in self.wrong)


def exchanges(libraries, options):
    exchange = Exchange(libraries, options.seed)
    wrong = exchange.run(options.exchanges)
    count = sum(exchange.passed.values())
    expect(wrong == 0, f"seed {options.seed}: {wrong} words are wrong")
    expect(count >= options.exchanges, f"seed {options.seed}: only {count} exchanges in the time there is")
    ways = ", ".join(f"{way} {times}" for way, times in sorted(exchange.passed.items()))
    return f"seed {options.seed}: {exchange.blocks} blocks, {count} exchanges ({ways}), 0 words wrong"


def graphs(libraries, _options):
    """Memory that a neighbour takes while PyTorch captures its stream is the graph's, and replays are right."""
    source = torch.arange(1 << 16, dtype=torch.int64, device="cuda")
    done = []
    for library in libraries[1:]:
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = library.make(source.nbytes, stream)
            library.words(made).copy_(source * 3)
            result = library.words(made) + 1
        pools = pools_of(library, made)
        expect(pools == [tuple(graph.pool())], f"{library.name}'s block lies in {pools}, and the graph has {graph.pool()}")
        for step in range(20):
            source.fill_(step)
            # What is eager must not come to lie in the graph's memory.
            eager = [library.make(source.nbytes, torch.cuda.current_stream()) for _ in range(4)]
            for each in eager:
                library.fill(each, -1, torch.cuda.current_stream())
            graph.replay()
            wrong = int((result != step * 3 + 1).sum())
            expect(wrong == 0, f"{wrong} words of a graph with {library.name}'s memory are wrong")
            eager.clear()
            each = None
        done.append(library.name)
        del made, result, graph
    return f"{', '.join(done)}: 20 replays each, 0 words wrong"


def pools_of(library, made):
    address = library.address(made)
    return [
        tuple(segment["segment_pool_id"])
        for segment in torch.cuda.memory_snapshot()
        if 0 <= address - segment["address"] < segment["total_size"]
    ]


def compiles(libraries, _options):
    """torch.compile goes on working beside them, with CUDA graphs and without."""

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


def refuses(libraries, _options):
    """Errors are the library's own, no bytes are no memory, and out of memory leaves all well."""
    said = []
    stream = torch.cuda.current_stream()
    for library in libraries[1:]:
        before = counts()
        try:
            library.make(1 << 42, stream)
        except library.is_full as error:
            expect("out of memory" in str(error).lower(), f"{library.name} says {first_line(error)}")
            said.append(f"{library.name} {type(error).__name__}")
        else:
            raise Failure(f"{library.name} got four tebibytes")
        made = library.make(0, stream)
        expect(counts()["allocated"] == before["allocated"], f"no bytes of {library.name}'s are some")
        made = library.make(MIB, stream)
        library.fill(made, 9, stream)
        expect(int((library.words(made) != 9).sum()) == 0, f"{library.name} is not well after it")
        del made
    return ", ".join(said)


ENDING = """
import sys
import torch
sys.path.insert(0, {folder!r})
import neighbours
libraries = neighbours.find([])[0]
kept = [library.make(1 << 20, torch.cuda.current_stream()) for library in libraries for _ in range(3)]
class Cycle: pass
for made in kept:
    cycle = Cycle()
    cycle.itself, cycle.made = cycle, made
sys.modules["kept"] = kept
"""


def ends(_libraries, _options):
    """A process that ends with memory in everybody's hands ends well."""
    code = ENDING.format(folder=os.path.dirname(os.path.abspath(__file__)))
    ran = subprocess.run([sys.executable, "-m", "larder", "-c", code], capture_output=True, text=True, timeout=200)
    expect(ran.returncode == 0, f"it ended with {ran.returncode}: {ran.stderr.strip().splitlines()[-1:]}")
    words = ("larder:", "Exception", "Error")
    complaints = [line for line in ran.stderr.splitlines() if any(word in line for word in words)]
    expect(not complaints, f"it said {complaints[:3]}")
    return "exit code 0, and nothing said"


PARTS = {
    part.__name__: part
    for part in (serves, waits, statistics, stacks, exchanges, graphs, compiles, refuses, ends)
}


def find(needed):
    """The libraries that are here, PyTorch first, and sentences about those that are not."""
    found, missing = [Torch()], []
    for library in (Cupy, Numba, Rmm):
        try:
            found.append(library())
        except Exception as error:
            # A library that is there and not well is told as one that is not there; one that we broke is not.
            is_failure = isinstance(error, Failure) or library.name in needed
            missing.append((library.name, first_line(error), is_failure))
    return found, missing


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--exchanges", type=int, default=1000)
    parser.add_argument("--need", nargs="*", default=[], choices=["cupy", "numba", "rmm"])
    options = parser.parse_args()
    if not larder.torch.is_installed():
        raise SystemExit("PyTorch's memory is not Larder's here: python -m larder neighbours.py")
    libraries, missing = find(options.need)
    rows = [(name, "FAILED" if is_failure else "skipped", sentence) for name, sentence, is_failure in missing]
    if len(libraries) == 1:
        rows.append(("all", "FAILED", "none of the libraries is here"))
    for name in (options.parts or PARTS) if len(libraries) > 1 else ():
        begin = time.monotonic()
        try:
            rows.append((name, "passed", PARTS[name](libraries, options)))
        except Exception as error:
            if not isinstance(error, Failure):
                traceback.print_exc()
            rows.append((name, "FAILED", first_line(error)))
        print(f"{name}: {rows[-1][1]}, {time.monotonic() - begin:.1f} s", flush=True)
    print(f"\n| {' and '.join(library.name for library in libraries)} | result | what was seen |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    raise SystemExit(any(result == "FAILED" for _, result, _ in rows))


if __name__ == "__main__":
    main()
