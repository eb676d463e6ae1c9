"""Programs whose every block is known for what it is: parameters, gradients, and so on. To be run
on a card with PyTorch's own allocator.

    python truths.py --out FOLDER [PROGRAM ...]

For each program it writes PROGRAM.pickle.gz, a snapshot with Python stacks of all that the program
did, and PROGRAM.truth.json.gz, which has a letter for each allocation of it, in their order. What
is known is what the program tells by walking its model, its optimizer and its cache, and by hooks
that see each tensor that is saved for the backward pass. `cargo test -p larder-study --test truths`
asks Larder the same, which has the stacks alone.
"""

import argparse
import bisect
import collections
import copy
import gzip
import json
import os
import pathlib
import pickle
import subprocess
import sys
import time

from torch.nn import functional as F

import torch
from torch import nn

# Without a card the programs run on the processor, to see that they run; nothing is written then.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARAMETER, GRADIENT, OPTIMIZER, CACHE, INPUT, ACTIVATION, WORKSPACE, TEMPORARY = "pgociawt"
# Where a block is two things at once, the first of these counts.
FIRST = [PARAMETER, GRADIENT, OPTIMIZER, CACHE, INPUT, ACTIVATION, WORKSPACE]
# For each program the small one, which ships as test data, and a larger one.
SCALES = ("small", "large")
# How much comes back from the card.
MOST_BYTES = 11 << 20


def allocations():
    """How many blocks were handed out so far."""
    if DEVICE == "cpu":
        return 0
    return torch._C._cuda_memoryStats(0)["allocation"]["all"]["allocated"]


def storage_of(tensor):
    """Where a tensor's storage begins, or None where there is none on the card."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != DEVICE:
        return None
    return tensor.untyped_storage().data_ptr() or None


class Truth:
    """What was said of the storages that were there, and when."""

    def __init__(self):
        self.said = []

    def say(self, letter, tensors):
        now = allocations()
        for tensor in tensors:
            address = storage_of(tensor)
            if address is not None:
                self.said.append((now, address, letter))

    def say_model(self, model):
        self.say(PARAMETER, [*model.parameters(), *model.buffers()])

    def say_gradients(self, model):
        self.say(GRADIENT, [p.grad for p in model.parameters() if p.grad is not None])

    def say_optimizer(self, optimizer):
        for state in optimizer.state.values():
            self.say(OPTIMIZER, state.values())

    def watch_gradients(self, model):
        """A gradient is told as soon as it is one."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda p: p.grad is not None and self.say(GRADIENT, [p.grad])
                )

    def saving(self):
        """Within it each tensor that is saved for the backward pass is told."""

        def pack(tensor):
            self.say(ACTIVATION, [tensor])
            return tensor.detach()

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)

    def watch_checkpoints(self):
        """What is computed once more is kept by hooks of the checkpoint's own."""
        hooks = torch.autograd.graph.saved_tensors_hooks
        plain = hooks.__init__

        def begin(self_, pack, unpack):
            if type(self_).__name__ == "_recomputation_hook":

                def told(tensor):
                    self.say(ACTIVATION, [tensor])
                    return pack(tensor)

                return plain(self_, told, unpack)
            return plain(self_, pack, unpack)

        hooks.__init__ = begin

    def watch_fsdp(self):
        """Parameters that are gathered, and their gradients before they are reduced."""
        from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

        gather = _fsdp_param.FSDPParam.to_unsharded
        reduce = _fsdp_param_group.foreach_reduce

        def to_unsharded(parameter, *arguments, **named):
            result = gather(parameter, *arguments, **named)
            self.say(PARAMETER, [parameter._unsharded_param])
            return result

        def foreach_reduce(parameters, gradients, *arguments, **named):
            self.say(GRADIENT, gradients)
            return reduce(parameters, gradients, *arguments, **named)

        _fsdp_param.FSDPParam.to_unsharded = to_unsharded
        _fsdp_param_group.foreach_reduce = foreach_reduce

    def letters(self, entries, first):
        """A letter for each allocation of a trace that began after `first` of them."""
        at = collections.defaultdict(list)
        count = 0
        for entry in entries:
            if entry["action"] == "alloc":
                at[entry["addr"]].append(count)
                count += 1
        letters = [TEMPORARY] * count
        for now, address, letter in self.said:
            before = bisect.bisect_left(at[address], now - first) if address in at else 0
            if before == 0:
                continue
            number = at[address][before - 1]
            known = letters[number]
            if known == TEMPORARY or FIRST.index(letter) < FIRST.index(known):
                letters[number] = letter
        return "".join(letters)


def descend(truth, model, optimizer, loss):
    """The second half of a step of training."""
    loss.backward()
    truth.say_gradients(model)
    optimizer.step()
    truth.say_optimizer(optimizer)
    optimizer.zero_grad(set_to_none=True)


def tokens_of(truth, batch, length, words=8192):
    if DEVICE == "cpu":
        length //= 32
    tokens = torch.randint(0, words, (batch, length), device=DEVICE)
    truth.say(INPUT, [tokens])
    return tokens


def gpt2(truth, scale):
    """A language model in mixed precision, by AdamW, its batches of several lengths."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, steps = {"small": (3, 256, 3), "large": (12, 768, 5)}[scale]
    config = GPT2Config(
        vocab_size=8192, n_positions=1024, n_embd=width, n_layer=layers, n_head=8, use_cache=False
    )
    model = GPT2LMHeadModel(config).to(DEVICE)
    truth.say_model(model)
    truth.watch_gradients(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        tokens = tokens_of(truth, 8, 512 - 64 * (step % 3))
        with truth.saving(), torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        descend(truth, model, optimizer, loss)


def llama_of(layers, width, **more):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=width,
        intermediate_size=width * 11 // 4 // 16 * 16,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        **more,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).to(DEVICE)


def llama(truth, scale):
    """A language model that computes its activations twice, with its gradients clipped and
    gathered over two batches.
    """
    layers, width, steps = {"small": (3, 256, 3), "large": (12, 1024, 4)}[scale]
    model = llama_of(layers, width, use_cache=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    truth.say_model(model)
    truth.watch_gradients(model)
    truth.watch_checkpoints()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        for _ in range(2):
            tokens = tokens_of(truth, 4, 1024)
            with truth.saving():
                loss = model(input_ids=tokens, labels=tokens).loss / 2
            loss.backward()
        truth.say_gradients(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        truth.say_optimizer(optimizer)
        optimizer.zero_grad()


class Layer(nn.Module):
    """A layer of a transformer, as one writes it by hand."""

    def __init__(self, width):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        queries, keys, values = (
            part.view(batch, length, 8, width // 8).transpose(1, 2)
            for part in self.heads(self.before(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.back(F.gelu(self.wide(self.between(x))))


class Language(nn.Module):
    def __init__(self, layers, width, words=8192):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def fsdp2(truth, scale):
    """One rank of FSDP2 with parameters gathered in half precision."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    layers, width, steps = {"small": (3, 256, 3), "large": (8, 1024, 4)}[scale]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(29600 + SCALES.index(scale))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", rank=0, world_size=1)
    mesh = dist.device_mesh.init_device_mesh(DEVICE, (1,))
    model = Language(layers, width).to(DEVICE)
    truth.say_model(model)
    halves = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=halves)
    fully_shard(model, mesh=mesh, mp_policy=halves)
    truth.say_model(model)
    truth.watch_fsdp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        tokens = tokens_of(truth, 8, 512)
        with truth.saving():
            logits = model(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        descend(truth, model, optimizer, loss)
    dist.destroy_process_group()


class Adapted(nn.Module):
    """A linear map that is frozen, with a small one beside it that learns."""

    def __init__(self, frozen, rank=8):
        super().__init__()
        self.frozen = frozen
        make = {"dtype": torch.float32, "device": frozen.weight.device}
        self.down = nn.Linear(frozen.in_features, rank, bias=False, **make)
        self.up = nn.Linear(rank, frozen.out_features, bias=False, **make)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x.float())).to(x.dtype)


def lora(truth, scale):
    """A frozen language model with adapters that learn."""
    layers, width, steps = {"small": (3, 256, 3), "large": (12, 1024, 4)}[scale]
    model = llama_of(layers, width, use_cache=False).requires_grad_(False)
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj = Adapted(attention.q_proj)
        attention.v_proj = Adapted(attention.v_proj)
    truth.say_model(model)
    truth.watch_gradients(model)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-3)
    for _ in range(steps):
        tokens = tokens_of(truth, 4, 512)
        with truth.saving():
            loss = model(input_ids=tokens, labels=tokens).loss
        descend(truth, model, optimizer, loss)


class Residual(nn.Module):
    def __init__(self, of, to, time):
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, of), nn.GroupNorm(8, to)
        self.one, self.two = nn.Conv2d(of, to, 3, padding=1), nn.Conv2d(to, to, 3, padding=1)
        self.time = nn.Linear(time, to)
        self.skip = nn.Conv2d(of, to, 1) if of != to else nn.Identity()

    def forward(self, x, time):
        y = self.one(F.silu(self.first(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.two(F.silu(self.second(y)))


class Unet(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.width = width
        self.times = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU())
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 1)
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(
            Residual(of, to, 4 * width) for of, to in zip([width, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            Residual(2 * of, to, 4 * width)
            for of, to in zip(widths[::-1], [*widths[-2::-1], width], strict=True)
        )

    def forward(self, x, moment):
        waves = torch.exp(torch.arange(self.width // 2, device=x.device) * -0.1)
        angles = moment[:, None] * waves
        time = self.times(torch.cat([angles.sin(), angles.cos()], -1))
        x, kept = self.enter(x), []
        for level in self.down:
            x = level(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for level in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = level(torch.cat([x, kept.pop()], 1), time)
        return self.leave(x)


def diffusion(truth, scale):
    """A U-Net that learns to take noise away, and a slow copy of it."""
    width, depth, side, steps = {"small": (16, 3, 32, 3), "large": (64, 4, 64, 4)}[scale]
    model = Unet(width, depth).to(DEVICE)
    slow = copy.deepcopy(model).requires_grad_(False)
    truth.say_model(model)
    truth.say_model(slow)
    truth.watch_gradients(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(steps):
        pictures = torch.randn(16, 3, side, side).to(DEVICE)
        noise = torch.randn_like(pictures)
        moment = torch.rand(16, device=DEVICE)
        truth.say(INPUT, [pictures, noise, moment])
        share = moment[:, None, None, None]
        with truth.saving():
            noisy = pictures * (1 - share) + noise * share
            loss = F.mse_loss(model(noisy, moment), noise)
        descend(truth, model, optimizer, loss)
        with torch.no_grad():
            for old, new in zip(slow.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.01)


def generation(truth, scale):
    """Answers of several lengths, with a cache of keys and values."""
    from transformers import DynamicCache

    layers, width, rounds = {"small": (3, 256, 2), "large": (12, 1024, 4)}[scale]
    model = llama_of(layers, width).eval()
    truth.say_model(model)
    with torch.no_grad():
        for turn in range(rounds):
            tokens = tokens_of(truth, 16, 256 + 128 * turn)
            cache = DynamicCache()
            for _ in range(6):
                logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits
                tokens = logits[:, -1:].argmax(-1)
                truth.say(INPUT, [tokens])
                for layer in cache.layers:
                    truth.say(CACHE, [layer.keys, layer.values])


def vision(truth, scale):
    """A convolutional net by SGD, whose gradients are set to zero and stay."""
    width, layers, steps = {"small": (16, 4, 3), "large": (64, 8, 4)}[scale]
    blocks = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(layers):
        blocks += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    blocks += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]
    model = nn.Sequential(*blocks).to(DEVICE)
    truth.say_model(model)
    truth.watch_gradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        pictures = torch.randn(32, 3, 64, 64).to(DEVICE, non_blocking=True)
        labels = torch.randint(0, 1000, (32,)).to(DEVICE)
        truth.say(INPUT, [pictures, labels])
        optimizer.zero_grad(set_to_none=False)
        with truth.saving():
            loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        truth.say_gradients(model)
        optimizer.step()
        truth.say_optimizer(optimizer)


PROGRAMS = {
    work.__name__: work for work in (gpt2, llama, fsdp2, lora, diffusion, generation, vision)
}
# With the frames of C++ as well, which is what PyTorch records unless it is told otherwise.
MIXED = "gpt2-all-small"
NAMES = [f"{name}-{scale}" for name in PROGRAMS for scale in SCALES] + [MIXED]


def blocks_now():
    """The blocks in use, by address."""
    return {
        block["address"]: block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def peak_of(entries, letters):
    """What was in use when most was, by letter."""
    live, now, peak, count = {}, collections.Counter(), collections.Counter(), 0
    for entry in entries:
        if entry["action"] == "alloc":
            live[entry["addr"]] = (letters[count], entry["size"])
            now[letters[count]] += entry["size"]
            count += 1
            if now.total() > peak.total():
                peak = now.copy()
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            letter, size = live.pop(entry["addr"])
            now[letter] -= size
    return dict(peak)


def record(name, out):
    """Runs one program and writes what it did and what it was."""
    program, scale = name.removesuffix("-small").removesuffix("-large"), name.rsplit("-", 1)[1]
    stacks = "all" if name == MIXED else "python"
    truth, begin = Truth(), time.monotonic()
    torch.manual_seed(1)
    work = PROGRAMS[program.split("-")[0]]
    if DEVICE == "cpu":
        work(truth, scale)
        print(json.dumps({"program": name, "said": collections.Counter(s[2] for s in truth.said)}))
        return
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(
        "all", context="all", stacks=stacks, max_entries=2_000_000
    )
    first = allocations()
    work(truth, scale)
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    last = allocations()
    with_workspaces = blocks_now()
    torch._C._cuda_clearCublasWorkspaces()
    for address in with_workspaces.keys() - blocks_now().keys():
        truth.said.append((last, address, WORKSPACE))
    entries = snapshot["device_traces"][0]
    letters = truth.letters(entries, first)
    with gzip.open(out / f"{name}.pickle.gz", "wb", 9) as file:
        pickle.dump(snapshot, file, protocol=4)
    about = {"allocations": letters, "torch": torch.__version__}
    with gzip.open(out / f"{name}.truth.json.gz", "wt", 9) as file:
        json.dump(about, file)
    said = {
        "program": name,
        "allocations": len(letters),
        "counted": last - first,
        "entries": len(entries),
        "peak": peak_of(entries, letters),
        "bytes": (out / f"{name}.pickle.gz").stat().st_size,
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(said), flush=True)
    # What is not counted as it is recorded is not known for what it is.
    sys.exit(len(letters) != last - first)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", choices=[*NAMES, []])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--alone", action="store_true", help="in this process, which is a child")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.alone:
        return record(options.programs[0], options.out)
    command = [sys.executable, __file__, "--out", str(options.out), "--alone"]
    children = [(name, subprocess.Popen([*command, name])) for name in options.programs or NAMES]
    end, failed = time.monotonic() + 150, []
    for name, child in children:
        try:
            rc = child.wait(max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            rc = "too slow"
        if rc != 0:
            failed.append(f"{name} ({rc})")
    print("left out: " + (", ".join(left_out(options.out)) or "none"))
    print("failed: " + (", ".join(failed) or "none"))
    sys.exit(bool(failed))


def left_out(out):
    """Deletes the largest files where there is more than comes back from the card."""
    files = sorted(out.glob("*.gz"), key=lambda file: file.stat().st_size)
    gone = []
    while sum(file.stat().st_size for file in files) > MOST_BYTES:
        gone.append(files.pop())
        gone[-1].unlink()
    return [file.name for file in gone]


if __name__ == "__main__":
    main()
