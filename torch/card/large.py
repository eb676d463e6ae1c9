"""Programs that fill about 50 GiB, to be run on a card with one allocator or another.

    python large.py NAME [--steps N] [--cap BYTES] [--wait] [--record FILE]
    python -m larder large.py NAME [--steps N] [--cap BYTES] [--wait] [--record FILE]

The first ten steps settle what the program needs; those after them are timed. --cap says how much
of the card's memory the program may have. With --wait it says "ready" before it takes any, and goes
on when it is sent a line. --record writes PyTorch's snapshot with the history of all of it. It
prints one line of JSON last. Nothing in here knows which allocator is in place.
"""

import argparse
import json
import random
import sys
import time

import stopwatch
import torch
from stopwatch import SETTLING_STEPS
from torch import nn

# The shapes of the language model come again after so many steps.
LAST_STEPS = 8


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens):
        return self.down(nn.functional.gelu(self.up(tokens)))


class Mixture(nn.Module):
    """Every token goes to two experts, and how many an expert gets is another number each time."""

    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, tokens):
        weights, chosen = self.gate(tokens).softmax(-1).topk(2)
        result = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            row, place = (chosen == index).nonzero(as_tuple=True)
            answer = expert(tokens[row]) * weights[row, place, None]
            result = result.index_add(0, row, answer.to(result.dtype))
        return tokens + result


def descend(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def mixture_of_experts():
    width = 2048
    model = nn.Sequential(*(Mixture(width, 16) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(index):
        torch.manual_seed(index)
        tokens = torch.randn(40960 + 4096 * (index % 3), width, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (model(tokens) - tokens).square().mean()
        descend(loss, optimizer)

    return step


def language_model():
    """Batches of many lengths, eight of them again and again."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=16384,
        n_positions=2048,
        n_embd=2048,
        n_layer=20,
        n_head=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    lengths = [random.Random(5).randrange(400, 1500) for _ in range(8)]
    lengths[0] = 1500

    def step(index):
        tokens = torch.randint(0, 16384, (8, lengths[index % 8]), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        descend(loss, optimizer)

    return step


def serving():
    """Caches of many conversations, which grow by copying and end at different times; no step is
    like another.
    """
    chance, layers = random.Random(9), 16
    conversations = []

    def cache(tokens):
        return torch.empty(2, 32, tokens, 128, dtype=torch.bfloat16, device="cuda")

    def step(_):
        held = 0
        for index in range(len(conversations) - 1, -1, -1):
            tokens, limit, caches = conversations[index]
            if tokens >= limit:
                del conversations[index]
                continue
            if chance.random() < 0.3:
                more = chance.randrange(64, 512)
                caches[:] = [torch.cat((one, cache(more)), dim=2) for one in caches]
                conversations[index][0] = tokens = tokens + more
            held += tokens
        # A token takes a quarter of a mebibyte.
        while held < 52 * 4096:
            tokens = chance.randrange(512, 6000)
            conversations.append(
                [
                    tokens,
                    tokens + chance.randrange(256, 4000),
                    [cache(tokens) for _ in range(layers)],
                ]
            )
            held += tokens

    return step


PROGRAMS = {program.__name__: program for program in (mixture_of_experts, language_model, serving)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--cap", type=int)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--record")
    options = parser.parse_args()
    total_steps = SETTLING_STEPS + options.steps
    stages = stopwatch.Stages(total_steps, LAST_STEPS)
    if options.wait:
        torch.cuda.init()
        print("ready", flush=True)
        sys.stdin.readline()
    if options.record:
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=10_000_000)
    torch.manual_seed(3)
    if options.cap:
        torch.cuda.set_per_process_memory_fraction(
            options.cap / torch.cuda.get_device_properties(0).total_memory
        )
    step, times_ms, held, active = PROGRAMS[options.program](), [], [], []
    for index in range(total_steps):
        stages.before(index)
        if index == SETTLING_STEPS:
            settled = torch.cuda.memory_stats()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(index)
        torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - begin) * 1e3)
        held.append(torch.cuda.memory_reserved())
        active.append(torch.cuda.memory_stats()["active_bytes.all.current"])
    stages.before(total_steps)
    if options.record:
        torch.cuda.memory._dump_snapshot(options.record)
    stats = torch.cuda.memory_stats()
    calls = [stats[key] - settled[key] for key in ("num_device_alloc", "num_device_free")]
    print(
        json.dumps(
            {
                "reserved_peak": stats["reserved_bytes.all.peak"],
                "active_peak": stats["active_bytes.all.peak"],
                "retries": stats["num_alloc_retries"],
                "times_ms": times_ms[SETTLING_STEPS:],
                "first_ms": sum(times_ms[:SETTLING_STEPS]),
                "calls_a_step": sum(calls) / options.steps,
                "card": torch.cuda.get_device_name(),
                "held": held,
                "active": active,
                "costs": stages.costs,
            }
        )
    )


if __name__ == "__main__":
    main()
