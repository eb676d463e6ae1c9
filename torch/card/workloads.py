"""Programs that train and infer, to be run on a card with one allocator or another.

    python workloads.py NAME [--turns N] [--steps N] [--wait] [--record FILE]
    python -m larder workloads.py NAME [--turns N] [--steps N] [--wait] [--record FILE]

The steps after the first few come in turns. With --wait it says "ready" before each turn and goes
on when it is sent a line, so that several can be prepared at once and then take turns on a machine
that is not equally fast at all times. --record writes PyTorch's snapshot with the history of all of
it. Each prints one line of JSON last: the losses (or whatever the program computes) as text that is
exact to the bit, the time of every step, and what PyTorch's own statistics say of memory at the
end. Nothing in here knows which allocator is in place.
"""

import argparse
import json
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import stopwatch
import torch
from torch import nn

WARM_UP_STEPS = 8
EMPTIES_A_STEP = 10_000
# How many shapes the workloads with varying ones have.
VARIETY = 24


class Course:
    """The steps of a workload, timed after the first few, and what each computed."""

    def __init__(self, turns, steps_a_turn, wait):
        self.turns = turns
        self.steps_a_turn = steps_a_turn
        self.wait = wait
        # After so many steps the same work comes again.
        self.cycle = 1
        self.results = []
        self.turn_times_ms = []
        self.stages = stopwatch.Stages(WARM_UP_STEPS + turns * steps_a_turn, steps_a_turn)

    def run(self, step):
        self.run_steps(step, WARM_UP_STEPS)
        for _ in range(self.turns):
            self.pause()
            self.turn_times_ms.append(self.run_steps(step, self.steps_a_turn))
        self.stages.before(len(self.results))
        self.pause()

    def run_steps(self, step, count):
        times_ms = []
        for _ in range(count):
            self.stages.before(len(self.results))
            torch.cuda.synchronize()
            begin = time.perf_counter()
            result = step(len(self.results))
            torch.cuda.synchronize()
            times_ms.append((time.perf_counter() - begin) * 1e3)
            self.results.append(float(result).hex())
        return times_ms

    def pause(self):
        """Lets whoever started this decide when it goes on."""
        if self.wait:
            torch.cuda.synchronize()
            print("ready", flush=True)
            sys.stdin.readline()


def language_model(layers=6, width=512):
    """A small GPT-2 with random weights: nothing is downloaded."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=8192,
        n_positions=1024,
        n_embd=width,
        n_layer=layers,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config).cuda()


def descend(loss, optimizer):
    """The second half of a step of training; what the loss was."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def train_step(model, optimizer, tokens):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    return descend(loss, optimizer)


def gpt2_train(course):
    """Training with batches of one shape."""
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = torch.randint(0, 8192, (8, 8, 512), device="cuda")
    course.run(lambda index: train_step(model, optimizer, batches[index % 8]))


def gpt2_varlen(course):
    """Training with batches of many lengths, which is what fragments memory."""
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    course.cycle = VARIETY
    lengths = torch.randint(64, 1000, (VARIETY,)).tolist()

    def step(index):
        tokens = torch.randint(0, 8192, (8, lengths[index % VARIETY]), device="cuda")
        return train_step(model, optimizer, tokens)

    course.run(step)


def gradient_checkpointing(course):
    """Training that computes activations twice in order to keep few."""
    model = language_model(layers=12)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = torch.randint(0, 8192, (8, 8, 512), device="cuda")
    course.run(lambda index: train_step(model, optimizer, batches[index % 8]))


def generation(course):
    """Decoding token by token with a cache that grows, several prompts one after the other."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    course.cycle = 5
    model = LlamaForCausalLM(config).cuda().to(torch.bfloat16).eval()

    @torch.no_grad()
    def step(index):
        tokens = torch.randint(0, 8192, (4, 32 + 16 * (index % 5)), device="cuda")
        cache, total = DynamicCache(), 0
        for _ in range(12):
            logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits
            tokens = logits[:, -1:].argmax(-1)
            total += int(tokens.sum())
        return total

    course.run(step)


def streams(course):
    """Batches that are copied and prepared on a stream of their own while the last one is trained
    on.
    """
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(6)]
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()
    host = [torch.randn(2048, 1024, pin_memory=True) for _ in range(4)]

    def fetch(index):
        with torch.cuda.stream(side):
            batch = host[index % 4].to("cuda", non_blocking=True)
            batch = (batch - batch.mean(0)) / (batch.std(0) + 1e-5)
        return batch

    upcoming = [fetch(0)]

    def step(index):
        torch.cuda.current_stream().wait_stream(side)
        batch = upcoming.pop()
        batch.record_stream(torch.cuda.current_stream())
        upcoming.append(fetch(index + 1))
        loss = (model(batch) - batch).square().mean()
        return descend(loss, optimizer)

    course.run(step)


def graphs(course):
    """A step captured once and replayed, with eager work between."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    still = torch.randn(256, 512, device="cuda")

    def work():
        loss = (model(still) - still).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            work()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = work()

    def step(index):
        still.copy_(torch.randn(256, 512, device="cuda") * (1 + index % 3))
        graph.replay()
        return loss.detach().clone()

    course.run(step)


def resnet_varbatch(course):
    """Images in batches of many sizes."""
    from torchvision.models import resnet18

    model = resnet18().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    course.cycle = VARIETY
    sizes = torch.randint(8, 64, (VARIETY,)).tolist()

    def step(index):
        size = sizes[index % VARIETY]
        images = torch.randn(size, 3, 160, 160, device="cuda")
        labels = torch.randint(0, 1000, (size,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        return descend(loss, optimizer)

    course.run(step)


def small_kernels(course):
    """Many little operations, so that the time goes into launching them and into allocating for
    them.
    """
    layers = [nn.Linear(64, 64).cuda() for _ in range(16)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3, foreach=False)
    batch = torch.randn(32, 64, device="cuda")

    def step(_):
        for _ in range(4):
            hidden = batch
            for layer in layers:
                hidden = torch.tanh(layer(hidden) + 0.1 * hidden) * 1.01 - 0.01
            loss = hidden.square().mean()
            result = descend(loss, optimizer)
        return result

    course.run(step)


def small_tensors(course):
    """Element-wise work on little tensors without gradients: hardly anything but allocations."""
    values = [torch.randn(1024, device="cuda") for _ in range(8)]

    @torch.no_grad()
    def step(_):
        total = values[0]
        for _ in range(50):
            for value in values:
                total = (total + value) * 0.5
        return total.sum()

    course.run(step)


def compiled(course):
    """Training compiled with CUDA graphs, which checkpoints private pools."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    fast = torch.compile(model, mode="reduce-overhead")
    course.cycle = 4

    def step(index):
        batch = torch.randn(128 if index % 4 else 64, 256, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        loss = (fast(batch) - batch).square().mean()
        return descend(loss, optimizer).clone()

    course.run(step)


def empty(course):
    """A tensor of 4 KiB, allocated and freed again and again."""

    def step(_):
        for _ in range(EMPTIES_A_STEP):
            torch.empty(1024, device="cuda")
        return 0

    course.run(step)


WORKLOADS = {
    workload.__name__: workload
    for workload in (
        gpt2_train,
        gpt2_varlen,
        gradient_checkpointing,
        generation,
        streams,
        graphs,
        resnet_varbatch,
        small_kernels,
        small_tensors,
        compiled,
        empty,
    )
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10, help="steps of each turn")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--record")
    options = parser.parse_args()
    if options.record:
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=10_000_000)
    torch.manual_seed(7)
    if options.workload != "empty":
        # PyTorch would fill new memory in this mode, which is not what programs do.
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = False
    course = Course(options.turns, options.steps, options.wait)
    WORKLOADS[options.workload](course)
    if options.record:
        torch.cuda.memory._dump_snapshot(options.record)
    stats = torch.cuda.memory_stats()
    print(
        json.dumps(
            {
                "results": course.results,
                "turn_times_ms": course.turn_times_ms,
                "cycle": course.cycle,
                "reserved_peak": stats.get("reserved_bytes.all.peak", 0),
                "active_peak": stats.get("active_bytes.all.peak", 0),
                "keys": sorted(stats),
                "costs": course.stages.costs,
            }
        )
    )


if __name__ == "__main__":
    main()
