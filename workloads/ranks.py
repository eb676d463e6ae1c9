"""Makes the memory snapshots of the ranks of a training run that never was, as PyTorch writes them:
a pipeline of stages with several ranks each, with call stacks, times and steps. One rank keeps
something from a step on.

    python3 workloads/ranks.py OUT --ranks 64 --stages 4 --odd 17
    python3 workloads/ranks.py OUT --ranks 1000 --entries 280000 --distinct 16
    larder explain OUT

With `--distinct` only so many files are made, and the others are links to them, which saves the
disk and nothing else. What `--odd` names is a file of its own.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import pickle
from typing import Any

MIB = 1 << 20
LAYERS = 8


class Recording:
    """A snapshot on the way. Every block is a segment of its own, and is used again by what has
    its size."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.free: dict[int, list[int]] = {}
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.segments: dict[int, int] = {}
        self.next = 0x7F0000000000
        self.time_us = 1_790_000_000_000_000
        self.stacks: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def stack(self, *frames: str) -> list[dict[str, Any]]:
        """The frames of a call stack, innermost first, from words such as `model.py:12 forward`."""
        if frames not in self.stacks:
            parts = [(frame.split(":")[0], *frame.split(":")[1].split(" ")) for frame in frames]
            self.stacks[frames] = [
                {"name": name, "filename": f"program/{file}", "line": int(line)}
                for file, line, name in parts
            ]
        return self.stacks[frames]

    def entry(self, action: str, addr: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.time_us += 3
        self.trace.append(
            {
                "action": action,
                "addr": addr,
                "size": size,
                "stream": 0,
                "time_us": self.time_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": frames,
            }
        )

    def alloc(self, size: int, *frames: str) -> int:
        stack = self.stack(*frames)
        known = self.free.get(size)
        if known:
            addr = known.pop()
        else:
            addr, self.next = self.next, self.next + size
            self.segments[addr] = size
            self.entry("segment_alloc", addr, size, stack)
        self.live[addr] = (size, stack)
        self.entry("alloc", addr, size, stack)
        return addr

    def give_back(self, addr: int) -> None:
        size, stack = self.live.pop(addr)
        self.free.setdefault(size, []).append(addr)
        self.entry("free_requested", addr, size, stack)
        self.entry("free_completed", addr, size, stack)

    def step(self, number: int) -> None:
        self.time_us += 5
        for stage, behind in (("START", 0), ("END", 1)):
            self.annotations.append(
                {
                    "name": f"ProfilerStep#{number}",
                    "stage": stage,
                    "device": 0,
                    "time_us": self.time_us + behind,
                }
            )

    def snapshot(self) -> dict[str, Any]:
        segments = []
        for addr, size in self.segments.items():
            is_live = addr in self.live
            frames = self.live[addr][1] if is_live else []
            block = {
                "address": addr,
                "size": size,
                "requested_size": size if is_live else 0,
                "state": "active_allocated" if is_live else "inactive",
                "frames": frames,
            }
            segments.append(
                {
                    "device": 0,
                    "address": addr,
                    "total_size": size,
                    "allocated_size": size if is_live else 0,
                    "active_size": size if is_live else 0,
                    "requested_size": size if is_live else 0,
                    "stream": 0,
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": frames,
                    "blocks": [block],
                }
            )
        return {
            "segments": segments,
            "device_traces": [self.trace],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
            "external_annotations": self.annotations,
        }


def rank(stage: int, stages: int, entries: int, variant: int, is_odd: bool) -> dict[str, Any]:
    """What a rank of a stage recorded in so many entries."""
    made = Recording()
    train = "train.py:40 main"
    for layer in range(LAYERS):
        made.alloc((96 + layer) * MIB, f"model.py:{20 + layer} __init__", train)
    if stage == 0:
        made.alloc(512 * MIB, "embedding.py:9 __init__", train)
    if stage == stages - 1:
        made.alloc(768 * MIB, "head.py:14 __init__", train)
    step = 0
    while len(made.trace) < entries:
        made.step(step)
        held = []
        # Batches differ a little from rank to rank, and so do activations.
        size = (24 + variant % 3) * 2 * MIB
        if stage == 0:
            held.append(made.alloc(64 * MIB, "embedding.py:31 forward", "train.py:52 step", train))
        for layer in range(LAYERS):
            for part in range(4):
                line = f"model.py:{60 + 4 * layer + part} forward"
                held.append(made.alloc(size + part * 2 * MIB, line, "train.py:52 step", train))
        if stage == stages - 1:
            held.append(made.alloc(640 * MIB, "head.py:33 loss", "train.py:53 step", train))
        for addr in reversed(held):
            made.give_back(addr)
        if is_odd and step >= 3 and step < 24:
            made.alloc(48 * MIB, "metrics.py:31 keep", "train.py:58 step", train)
        step += 1
    return made.snapshot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--entries", type=int, default=4000)
    parser.add_argument("--distinct", type=int, default=1 << 30)
    parser.add_argument("--odd", type=int, default=17)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    made: dict[tuple[int, int], pathlib.Path] = {}
    for number in range(asked.ranks):
        path = asked.out / f"rank{number:04}.pickle"
        path.unlink(missing_ok=True)
        stage = number * asked.stages // asked.ranks
        variant = number % max(1, asked.distinct // asked.stages)
        is_odd = number == asked.odd
        if not is_odd and (stage, variant) in made:
            os.link(made[stage, variant], path)
            continue
        snapshot = rank(stage, asked.stages, asked.entries, variant, is_odd)
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        if not is_odd:
            made[stage, variant] = path


if __name__ == "__main__":
    main()
