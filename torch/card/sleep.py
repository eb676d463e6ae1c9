"""Sleep and wake on a card: what comes back, how fast contents go and come, whether every word is
there again and graphs run right after waking, and two processes that take turns. To be run on a
card, where Larder's wheel is installed.

    python -m larder sleep.py [--scale PART] [--cycles N] [--turns N] [--parts a,b]

Parts: amounts (70 GiB, of which 4 are kept), copies (16 GiB kept, beside one large pinned copy),
cycles (graphs replayed right after each waking), turns (two processes, each using most of the card
while it is awake). Each prints a line; a word that is wrong, or memory that grows, ends it with 1.
A scale below 1 makes everything smaller.
"""

import argparse
import json
import subprocess
import sys
import time

MIB = 1 << 20
GIB = 1 << 30


def free_bytes(torch):
    return torch.cuda.mem_get_info()[0]


def timed(torch, call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def words(torch, size, seed):
    """Words of 8 bytes, each of them another."""
    count = size // 8
    tensor = torch.arange(count, dtype=torch.int64, device="cuda")
    return tensor.mul_(0x9E3779B97F4A7C1).add_(seed)


def wrong_words(torch, tensor, seed):
    """How many of them are not what they were. In pieces: little memory is free beside them."""
    wrong, piece = 0, 16 * MIB
    for begin in range(0, tensor.numel(), piece):
        part = tensor[begin : begin + piece]
        right = torch.arange(begin, begin + part.numel(), dtype=torch.int64, device="cuda")
        wrong += int((part != right.mul_(0x9E3779B97F4A7C1).add_(seed)).sum())
    return wrong


def amounts(torch, larder, scale, _):
    """70 GiB, 4 of them kept, five times: how much is free then, and how long it takes."""
    context = free_bytes(torch)
    sizes = {"weights": int(4 * GIB * scale), "kv_cache": int(66 * GIB * scale)}
    with larder.torch.region("weights"):
        pieces = 32
        weights = [words(torch, sizes["weights"] // pieces, at) for at in range(pieces)]
    torch.cuda.empty_cache()
    with larder.torch.region("kv_cache", keep="drop"):
        pieces = 64
        cache = [
            torch.empty(sizes["kv_cache"] // pieces, dtype=torch.uint8, device="cuda")
            for _ in range(pieces)
        ]
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    held = context - free_bytes(torch)
    rounds, wrong = [], 0
    for turn in range(5):
        seconds_asleep, slept = timed(torch, larder.torch.sleep)
        left = context - free_bytes(torch)
        seconds_awake, _ = timed(torch, larder.torch.wake)
        wrong += sum(wrong_words(torch, tensor, at) for at, tensor in enumerate(weights))
        torch.cuda.empty_cache()
        cache[turn].fill_(turn)
        rounds.append((seconds_asleep, seconds_awake, left))
    return {
        "held MiB": held / MIB,
        "kept MiB": slept.kept_bytes / MIB,
        "given back MiB": (held - rounds[-1][2]) / MIB,
        "left beside the context MiB": [round(left / MIB, 1) for *_, left in rounds],
        "asleep s": [round(one[0], 3) for one in rounds],
        "awake s": [round(one[1], 3) for one in rounds],
        "wrong words": wrong,
    }


def copies(torch, larder, scale, _):
    """16 GiB kept, beside one large pinned copy of as much: rates in GB/s, both ways."""
    size = int(16 * GIB * scale)
    with larder.torch.region("weights"):
        tensor = words(torch, size, 1)
    torch.cuda.empty_cache()
    asleep, awake, wrong = [], [], 0
    for _ in range(4):
        asleep.append(timed(torch, lambda: larder.torch.sleep("weights"))[0])
        awake.append(timed(torch, lambda: larder.torch.wake("weights"))[0])
    wrong = wrong_words(torch, tensor, 1)
    larder.torch.set_keep_limit(0)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    view = tensor.view(torch.uint8)
    out = min(timed(torch, lambda: host.copy_(view, non_blocking=True))[0] for _ in range(3))
    back = min(timed(torch, lambda: view.copy_(host, non_blocking=True))[0] for _ in range(3))

    def rate(seconds):
        return round(size / seconds / 1e9, 2)

    return {
        "one pinned copy, out and back": (rate(out), rate(back)),
        "sleep, first and best": (rate(asleep[0]), rate(min(asleep[1:]))),
        "wake, first and best": (rate(awake[0]), rate(min(awake[1:]))),
        "sleep to the copy": round(out / min(asleep[1:]), 3),
        "wake to the copy": round(back / min(awake[1:]), 3),
        "wrong words": wrong,
    }


def cycles(torch, larder, scale, count):
    """Graphs that are replayed right after each waking, over weights that sleep too."""
    size = int(64 * MIB * scale)
    with larder.torch.region("weights"):
        weights = words(torch, size, 7)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    step = torch.zeros(1, dtype=torch.int64, device="cuda")
    (weights + step).mul_(3)
    torch.cuda.synchronize()
    with larder.torch.region("graphs"), torch.cuda.stream(side):
        graph.capture_begin()
        scratch = weights + step
        result = scratch * 3
        del scratch
        graph.capture_end()
    torch.cuda.synchronize()
    wrong, begin = 0, time.perf_counter()
    held = []
    for turn in range(count):
        larder.torch.sleep(["weights", "graphs"])
        larder.torch.wake()
        step.fill_(turn)
        graph.replay()
        wrong += int((result != (weights + step) * 3).sum())
        if turn in (10, count - 1):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            held.append(free_bytes(torch))
    wrong += wrong_words(torch, weights, 7)
    return {
        "cycles": count,
        "wrong words": wrong,
        "free MiB, cycle 10 and last": [round(one / MIB, 1) for one in held],
        "s": round(time.perf_counter() - begin, 2),
    }


def resident_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def turn_taker(torch, larder, scale, seed):
    """One of two processes: works when it is told to, and sleeps when it is done."""
    size = int(90 * GIB * scale)
    kept, pieces = size // 64, 8
    with larder.torch.region("weights"):
        weights = words(torch, kept, seed)
    with larder.torch.region("work", keep="drop"):
        work = [
            torch.empty((size - kept) // pieces, dtype=torch.uint8, device="cuda")
            for _ in range(pieces)
        ]
    torch.cuda.empty_cache()
    larder.torch.sleep()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        turn = int(line)
        larder.torch.wake()
        for tensor in work:
            tensor.fill_(turn % 251)
        weights.add_(1)
        total = int(weights[:1000].sum()) + int(work[-1][-1000:].sum())
        torch.cuda.empty_cache()
        larder.torch.sleep()
        said = {"total": total, "free": free_bytes(torch), "host": resident_bytes()}
        print(json.dumps(said), flush=True)


def expected_total(scale, seed, turn):
    """What a run alone would come to."""
    words = sum((((at * 0x9E3779B97F4A7C1) + seed) & (2**64 - 1)) for at in range(1000))
    total = (words + 1000 * (turn // 2 + 1)) & (2**64 - 1)
    total = (total + 1000 * (turn % 251)) & (2**64 - 1)
    return total - 2**64 if total >= 2**63 else total


def turns(torch, larder, scale, count):
    """Two processes on the one card, each of which would fill most of it."""
    import os

    command = [sys.executable, os.path.abspath(__file__), "--scale", str(scale), "--taker"]
    takers = []
    for seed in (1, 2):
        taker = subprocess.Popen(
            [*command, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert json.loads(taker.stdout.readline())["ready"]
        takers.append(taker)
    begin, wrong, seen = time.perf_counter(), 0, {}
    for turn in range(count):
        taker = takers[turn % 2]
        taker.stdin.write(f"{turn}\n")
        taker.stdin.flush()
        said = json.loads(taker.stdout.readline())
        wrong += said["total"] != expected_total(scale, 1 + turn % 2, turn)
        seen[turn] = said
    for taker in takers:
        taker.stdin.close()
        taker.wait(60)
    early, late = (min(10, count - 2), count - 2)
    growth = {name: seen[late][name] - seen[early][name] for name in ("free", "host")}
    return {
        "turns": count,
        "wrong results": wrong,
        "card's growth MiB": round(-growth["free"] / MIB, 1),
        "host's growth MiB": round(growth["host"] / MIB, 1),
        "s": round(time.perf_counter() - begin, 2),
    }


PARTS = {"amounts": amounts, "copies": copies, "cycles": cycles, "turns": turns}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--taker", type=int)
    arguments = parser.parse_args()
    import torch

    import larder

    torch.cuda.init()
    if arguments.taker is not None:
        turn_taker(torch, larder, arguments.scale, arguments.taker)
        return 0
    failed = False
    for name in arguments.parts.split(","):
        counts = {"cycles": arguments.cycles, "turns": arguments.turns}
        try:
            said = PARTS[name](torch, larder, arguments.scale, counts.get(name, 0))
        except Exception as error:
            said = {"FAILED": f"{type(error).__name__}: {error}"}
        failed |= "FAILED" in said
        failed |= any(said.get(f"wrong {what}") for what in ("words", "results"))
        failed |= abs(said.get("card's growth MiB", 0)) > 64
        failed |= said.get("host's growth MiB", 0) > 64
        print(json.dumps({name: said}), flush=True)
        torch.cuda.empty_cache()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
