"""Pinned host memory on PyTorch's own allocator and on Larder, side by side: what is taken, how
fast it is got, what a hit costs, copies, a data loader, an optimizer on the host, activations saved
there, and random programs whose bytes are all compared. To be run on a card, where Larder's wheel
is installed.

    python pinned.py [--scale PART] [--programs N] [--parts a,b] [--turns N]

Each part runs in processes of its own, natively and on Larder, under a limit of time, and a part
that fails says so in its row. Loaders, activations and the optimizer run in turns, three of each
side: the least time counts, and the most that was held. It prints a table and, as JSON, the figures
behind it. It ends with 1 if a byte was wrong or a part failed on Larder. A scale below 1 makes
everything smaller.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
# What powers of two make of them: 3,968 MiB for 2,210.
FIVE_MIB = (1100, 560, 300, 150, 100)
SIDES = ("native", "larder")


def pinned_bytes(torch, size):
    return torch.empty(max(1, int(size)), dtype=torch.uint8, pin_memory=True)


def held(torch, part="current"):
    return torch.cuda.host_memory_stats().get(f"allocated_bytes.{part}", 0)


def live_mib(torch):
    """The most that was in use or awaited by copies at once, as Larder tells it: PyTorch's own
    allocator counts otherwise. No allocator can hold less."""
    is_larder = "pinned:larder" in os.environ.get("LARDER_CONF", "")
    return torch.cuda.host_memory_stats()["active_bytes.peak"] / MIB if is_larder else None


def per_second(size, seconds):
    return size / max(seconds, 1e-9) / 1e9


def tensors(torch, scale, _):
    """Five tensors: what is taken for them, and how fast."""
    sizes = [int(size * MIB * scale) for size in FIVE_MIB]
    begin = time.perf_counter()
    kept = [pinned_bytes(torch, size) for size in sizes]
    seconds = time.perf_counter() - begin
    taken = held(torch)
    assert all(tensor.is_pinned() for tensor in kept)
    return {
        "taken over asked": taken / sum(sizes),
        "GB/s asked": per_second(sum(sizes), seconds),
        "GB/s taken": per_second(taken, seconds),
    }


def hits(torch, _, __):
    """A request that the cache can meet, with the free that comes before it, in microseconds."""
    result = {}
    for name, size in (("4 KiB", 4096), ("1 MiB", MIB), ("16 MiB", 16 * MIB)):
        pinned_bytes(torch, size)
        counts = 20_000
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(counts):
                torch.empty(size, dtype=torch.uint8, pin_memory=True)
            best = min(best, (time.perf_counter() - begin) / counts)
        result[f"hit of {name}, us"] = best * 1e6
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(20_000):
            torch.empty(4096, dtype=torch.uint8)
        best = min(best, (time.perf_counter() - begin) / 20_000)
    result["torch.empty alone, us"] = best * 1e6
    if library := in_cpp(torch):
        for name, size in (("4 KiB", 4096), ("1 MiB", MIB), ("16 MiB", 16 * MIB)):
            result[f"hit of {name} in C++, us"] = library.pinned_hit_ns(size, 100_000) / 1e3
    return result


def in_cpp(torch):
    """pinned_hits.cpp as a library, where there is a compiler."""
    if shutil.which("g++") is None:
        return None
    folder = pathlib.Path(torch.__file__).parent
    # Both sides call the very same.
    library = pathlib.Path(tempfile.gettempdir()) / f"pinned_hits-{torch.__version__}.so"
    if not library.exists():
        words = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{folder}/include"]
        source = pathlib.Path(__file__).with_name("pinned_hits.cpp")
        words += [str(source), f"-L{folder}/lib", "-ltorch_cpu", "-lc10", "-o", str(library)]
        subprocess.run(words, check=True, capture_output=True)
    loaded = ctypes.CDLL(str(library))
    loaded.pinned_hit_ns.argtypes = [ctypes.c_size_t, ctypes.c_int]
    loaded.pinned_hit_ns.restype = ctypes.c_double
    return loaded


def copies(torch, scale, _):
    """Copies of pinned memory to the card, back, and both at once."""
    size = int(1024 * MIB * scale)
    to_card, from_card = pinned_bytes(torch, size), pinned_bytes(torch, size)
    to_card.fill_(1)
    from_card.fill_(2)
    on_card = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def timed(*ways):
        best = float("inf")
        for _ in range(6):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for way in ways:
                with torch.cuda.stream(streams[way]):
                    if way == 0:
                        on_card[0].copy_(to_card, non_blocking=True)
                    else:
                        from_card.copy_(on_card[1], non_blocking=True)
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
        return per_second(size * len(ways), best)

    return {
        "to the card, GB/s": timed(0),
        "from the card, GB/s": timed(1),
        "both at once, GB/s": timed(0, 1),
    }


def loader(torch, scale, _):
    """Images of one size, and of changing ones, by 8 workers and the pinning thread."""
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset):
        def __init__(self, batches, changes):
            self.batches, self.changes = batches, changes

        def __len__(self):
            return self.batches

        def __getitem__(self, index):
            side = 224 if not self.changes else 160 + 8 * (index * 7 % 17)
            return torch.full((64, 3, side, side), float(index))

    result = {}
    batches = max(16, int(200 * scale))
    for name, changes in (("fixed", False), ("changing", True)):
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_host_memory_stats()
        images = Images(batches, changes)
        begin = time.perf_counter()
        loaded = DataLoader(images, batch_size=None, num_workers=8, pin_memory=True)
        for index, batch in enumerate(loaded):
            on_card = batch.to("cuda", non_blocking=True)
            if index % 50 == 0 and on_card[0, 0, 0, 0].item() != float(index):
                raise AssertionError(f"batch {index} is wrong")
        torch.cuda.synchronize()
        result[f"loader, {name} sizes, s"] = time.perf_counter() - begin
        result[f"loader, {name} sizes, MiB held"] = held(torch, "peak") / MIB
        result[f"loader, {name} sizes, MiB live"] = live_mib(torch)
    return result


def shapes(total):
    """Sizes of parameters as of a language model, until they come to so much."""
    width, sizes = 4096, []
    kinds = (width * 3 * width, width * width, width * 11008, 11008 * width, width, width * 3)
    while sum(sizes) < total:
        sizes.append(kinds[len(sizes) % len(kinds)])
    return sizes


def optimizer(torch, scale, _):
    """State of 8 GiB on the host: gradients come, parameters go back."""
    sizes = shapes(int(8 * 1024 * MIB * scale) // 4 // 2)
    begin = time.perf_counter()
    state = [
        [torch.empty(size, dtype=torch.float32, pin_memory=True) for size in sizes]
        for _ in range(2)
    ]
    got = time.perf_counter() - begin
    asked = 2 * sum(4 * size for size in sizes)
    on_card = torch.zeros(max(sizes), device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(3):
        for moment, parameter in zip(*state):
            gradient = torch.empty(len(parameter), pin_memory=True)
            gradient.copy_(on_card[: len(parameter)], non_blocking=True)
            torch.cuda.current_stream().synchronize()
            moment[:1024].add_(gradient[:1024])
            on_card[: len(parameter)].copy_(parameter, non_blocking=True)
    torch.cuda.synchronize()
    return {
        "optimizer, state got, s": got,
        "optimizer, 3 steps, s": time.perf_counter() - begin,
        "optimizer, held over asked": held(torch, "peak") / asked,
        "optimizer, live over asked": (live_mib(torch) or 0) * MIB / asked or None,
    }


def activations(torch, scale, _):
    """Activations saved on the host, with batches of changing sizes, by models of two widths."""
    result = {}
    for width in (4096, 5120):
        result.update(saved(torch, max(64, int(width * scale)), f"save_on_cpu, width {width}"))
    return result


def saved(torch, width, name):
    layers = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(6))
    ).cuda()
    torch._C._host_emptyCache()
    torch.cuda.reset_peak_host_memory_stats()
    chance = random.Random(5)
    begin = time.perf_counter()
    for _ in range(30):
        batch = torch.zeros(chance.randrange(1000, 4000), width, device="cuda")
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = layers(batch).sum()
        loss.backward()
    torch.cuda.synchronize()
    return {
        f"{name}, 30 steps, s": time.perf_counter() - begin,
        f"{name}, MiB held": held(torch, "peak") / MIB,
        f"{name}, MiB live": live_mib(torch),
    }


def one_program(torch, seed, streams, most):
    """Copies both ways on some streams, while what they copy is freed and asked for again. How many
    bytes were wrong of how many."""
    chance = random.Random(seed)
    on_card, arriving, wrong, seen = [], [], 0, 0

    def check(entry):
        nonlocal wrong, seen
        host, value, stream = entry
        stream.synchronize()
        wrong += int((host != value).sum())
        seen += host.numel()

    for _ in range(60):
        what, stream = chance.random(), chance.choice(streams)
        if what < 0.5 or not on_card:
            largest = chance.choices((4096, most // 8, most), (4, 5, 1))[0]
            size = chance.randrange(1, largest)
            value = chance.randrange(256)
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            host.fill_(value)
            with torch.cuda.stream(stream):
                on_card.append((host.to("cuda", non_blocking=True), value, stream))
            # It is freed while the copy is under way, or a part of it lives on.
            if chance.random() < 0.2:
                arriving.append((host[: size // 2 + 1], value, stream))
            del host
        elif what < 0.9:
            tensor, value, stream = on_card.pop(chance.randrange(len(on_card)))
            with torch.cuda.stream(stream):
                host = torch.empty(tensor.shape, dtype=torch.uint8, pin_memory=True)
                host.copy_(tensor, non_blocking=True)
            # Most are dropped unread, and their memory written by whoever gets it next.
            if chance.random() < 0.6:
                arriving.append((host, value, stream))
            del tensor, host
        elif arriving:
            check(arriving.pop(chance.randrange(len(arriving))))
        if chance.random() < 0.01:
            torch._C._host_emptyCache()
    for entry in arriving:
        check(entry)
    return wrong, seen


def programs(torch, _, count):
    """Random programs, on two threads at once."""
    totals, lock = [0, 0], threading.Lock()
    errors = []

    def some(seeds):
        streams = [torch.cuda.Stream() for _ in range(3)] + [torch.cuda.default_stream()]
        try:
            for seed in seeds:
                # Some have segments that are mapped and registered.
                most = (64 if seed % 8 == 0 else 8) * MIB
                wrong, seen = one_program(torch, seed, streams, most)
                with lock:
                    totals[0] += wrong
                    totals[1] += seen
        except Exception as error:
            errors.append(error)

    begin = time.perf_counter()
    threads = [threading.Thread(target=some, args=(range(at, count, 2),)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return {
        "random programs": count,
        "random programs, GB compared": totals[1] / 1e9,
        "random programs, bytes wrong": totals[0],
        "random programs, s": time.perf_counter() - begin,
    }


# Each with its limit in seconds, for one side.
PARTS = {
    "tensors": (tensors, 20),
    "hits": (hits, 60),
    "copies": (copies, 20),
    "loader": (loader, 40),
    "optimizer": (optimizer, 40),
    "activations": (activations, 30),
    "programs": (programs, 90),
}

# These run in turns: a machine has slow moments.
IN_TURNS = ("loader", "optimizer", "activations")

# What Larder is to reach, as a ratio to PyTorch's own or as a figure of its own.
WANTED = {
    "taken over asked": ("own", "at most", 1.02),
    "GB/s asked": ("ratio", "at least", 2.0),
    "hit of 4 KiB, us": ("ratio", "at most", 0.7),
    "hit of 1 MiB, us": ("ratio", "at most", 0.7),
    "hit of 16 MiB, us": ("ratio", "at most", 0.7),
    "hit of 4 KiB in C++, us": ("own", "at most", 0.1),
    "hit of 1 MiB in C++, us": ("own", "at most", 0.1),
    "hit of 16 MiB in C++, us": ("own", "at most", 0.1),
    "to the card, GB/s": ("ratio", "at least", 0.99),
    "from the card, GB/s": ("ratio", "at least", 0.99),
    "both at once, GB/s": ("ratio", "at least", 0.99),
    "loader, fixed sizes, s": ("ratio", "at most", 0.99),
    "loader, changing sizes, s": ("ratio", "at most", 0.99),
    "loader, fixed sizes, MiB held": ("ratio", "at most", 0.7),
    "loader, changing sizes, MiB held": ("ratio", "at most", 0.7),
    "optimizer, 3 steps, s": ("ratio", "at most", 0.99),
    "optimizer, held over asked": ("ratio", "at most", 0.7),
    "save_on_cpu, width 4096, 30 steps, s": ("ratio", "at most", 0.99),
    "save_on_cpu, width 4096, MiB held": ("ratio", "at most", 0.7),
    "save_on_cpu, width 5120, 30 steps, s": ("ratio", "at most", 0.99),
    "save_on_cpu, width 5120, MiB held": ("ratio", "at most", 0.7),
    "random programs, bytes wrong": ("own", "at most", 0),
}


def run_part(name, scale, count):
    import torch

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    gc.collect()
    print(json.dumps(PARTS[name][0](torch, scale, count)))


def figures_of(side, name, options):
    """What a part measured in a process of its own, or why it did not."""
    start = [sys.executable] + (
        ["-m", "larder", "--conf", "pinned:larder"] if side == "larder" else []
    )
    words = ["--part", name, "--scale", str(options.scale), "--programs", str(options.programs)]
    limit = PARTS[name][1]
    try:
        done = subprocess.run(
            [*start, __file__, *words], capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {}, f"took longer than {limit} s"
    if done.returncode != 0:
        last = [line for line in done.stderr.strip().splitlines() if line][-1:]
        return {}, f"ended with {done.returncode}: {' '.join(last)}"
    return json.loads(done.stdout.strip().splitlines()[-1]), None


def in_turns(name, options):
    """What each side came to, and why a side has no figures."""
    turns = options.turns if name in IN_TURNS else 1
    found, reasons = {side: [] for side in SIDES}, {}
    for turn in range(turns):
        for side in SIDES if turn % 2 == 0 else reversed(SIDES):
            figures, why = figures_of(side, name, options)
            if why:
                reasons[side] = why
            else:
                found[side].append(figures)
    return {side: best_of(found[side]) for side in SIDES}, reasons


def best_of(turns):
    """The least time, and the most that was held or live."""
    best = {}
    for name in turns[0] if turns else ():
        values = [figures[name] for figures in turns if figures[name] is not None]
        if values:
            best[name] = (max if "held" in name or "live" in name else min)(values)
    return best


def verdict(name, native, larder):
    if name not in WANTED or larder is None:
        return ""
    kind, which, bound = WANTED[name]
    value = larder if kind == "own" else None if not native else larder / native
    if value is None:
        return ""
    reached = value <= bound if which == "at most" else value >= bound
    subject = "" if kind == "own" else "ratio "
    return f"{subject}{which} {bound}: {'yes' if reached else 'NO'}"


def shown(value):
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--part", choices=PARTS)
    options = parser.parse_args()
    if options.part:
        run_part(options.part, options.scale, options.programs)
        return 0
    everything, is_bad = {side: {} for side in SIDES}, False
    print("| what | native | Larder | ratio | wanted |\n|---|---:|---:|---:|---|")
    for part in options.parts.split(","):
        found, reasons = in_turns(part, options)
        for side, why in reasons.items():
            print(f"| {part}, {side} | {why} | | | |", flush=True)
            is_bad |= side == "larder"
        for side in SIDES:
            everything[side].update(found[side])
        for name in {**found["native"], **found["larder"]}:
            native, larder = (found[side].get(name) for side in SIDES)
            ratio = larder / native if native and larder is not None else None
            cells = (name, shown(native), shown(larder), shown(ratio))
            print(f"| {' | '.join(cells)} | {verdict(name, native, larder)} |", flush=True)
    is_bad |= everything["larder"].get("random programs, bytes wrong", 0) != 0
    print(json.dumps(everything))
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
