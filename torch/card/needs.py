"""Programs whose need of memory is known: each is recorded on a card, and run dry without one.

    python needs.py NAME [--record FILE]

Each runs a few steps, with random weights and nothing downloaded, and prints one line of JSON last:
what PyTorch's own statistics say of memory. --record writes PyTorch's snapshot with the history of
all of it. Nothing in here knows whether there is a card.
"""

import argparse
import json
import os
import random

import torch
from torch import nn


def descend(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def gpt2(layers=6, width=512, checkpointing=False):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=16384,
        n_positions=2048,
        n_embd=width,
        n_layer=layers,
        n_head=width // 64,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).cuda()
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model


def llama(layers=8, width=1024, **more):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=width * 11 // 4 // 64 * 64,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 256,
        **more,
    )
    return LlamaForCausalLM(config)


def train_language_model(model, shapes, vocabulary=16000):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    for batch, length in shapes:
        tokens = torch.randint(0, vocabulary, (batch, length)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        descend(loss, optimizer)


def random_shapes(count, batches, lengths):
    chance = random.Random(11)
    return [(chance.randint(*batches), chance.randint(*lengths)) for _ in range(count)]


def gpt2_train():
    """Training with batches of one shape."""
    train_language_model(gpt2(), [(16, 512)] * 5)


def gpt2_varlen():
    """Training with batches of many shapes."""
    train_language_model(gpt2(), random_shapes(12, (4, 16), (64, 1000)))


def gpt2_expandable():
    """The one before with expandable segments."""
    gpt2_varlen()


def gpt2_float():
    """Training in single precision, with the norm of the gradients clipped and the loss read."""
    model = gpt2(layers=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(4):
        tokens = torch.randint(0, 16000, (4, 512)).cuda()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss.item():.3f}")


def llama_checkpointing():
    """Training that computes activations twice in order to keep few."""
    model = llama().cuda().to(torch.bfloat16)
    model.gradient_checkpointing_enable()
    train_language_model(model, [(4, 1024)] * 4)


def llama_varlen():
    """Training in bfloat16 with batches of many shapes and a mask over padding."""
    model = llama().cuda().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch, length in random_shapes(8, (2, 8), (128, 1024)):
        tokens = torch.randint(0, 32000, (batch, length))
        mask = torch.ones_like(tokens)
        mask[0, : length // 3] = 0
        loss = model(input_ids=tokens.cuda(), attention_mask=mask.cuda(), labels=tokens.cuda()).loss
        descend(loss, optimizer)


def llama_generate():
    """Generation with a cache that grows, token by token, to a number of tokens."""
    model = llama().cuda().to(torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    for length in (40, 200, 90):
        tokens = torch.randint(1, 32000, (4, length)).cuda()
        model.generate(tokens, max_new_tokens=40, do_sample=False)


class LowRank(nn.Module):
    """A linear layer that stays, and one of low rank beside it that learns."""

    def __init__(self, base, rank=16):
        super().__init__()
        self.base, dtype = base, base.weight.dtype
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=dtype)
        self.dropout = nn.Dropout(0.05)

    def forward(self, hidden):
        return self.base(hidden) + self.up(self.down(self.dropout(hidden))) * 2.0


def llama_lora():
    """Layers of low rank that learn beside weights that do not."""
    model = llama(dtype=torch.bfloat16).to(torch.bfloat16)
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj)
    model = model.cuda()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    for _ in range(4):
        tokens = torch.randint(0, 32000, (4, 1024)).cuda()
        descend(model(input_ids=tokens, labels=tokens).loss, optimizer)


def trainer():
    """Hugging Face's Trainer in bfloat16, with checkpointing and accumulated gradients."""
    import tempfile

    from transformers import Trainer, TrainingArguments

    class Sentences(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            tokens = torch.arange(256) * (index + 3) % 32000
            return {"input_ids": tokens, "labels": tokens}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            gradient_checkpointing=True,
            bf16=True,
            max_steps=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(llama(layers=4), arguments, train_dataset=Sentences()).train()


def prefetch_streams():
    """Batches that are copied and prepared on two streams of their own, with record_stream."""
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(12)]
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]
    chance = random.Random(4)
    host = [torch.randn(chance.randint(1, 8) * 2048, 2048).pin_memory() for _ in range(6)]

    def fetch(index):
        with torch.cuda.stream(sides[index % 2]):
            batch = host[index % len(host)].to("cuda", non_blocking=True)
            return (batch - batch.mean(0)) / (batch.std(0) + 1e-5)

    upcoming = fetch(0)
    for index in range(20):
        batch, upcoming = upcoming, fetch(index + 1)
        torch.cuda.current_stream().wait_stream(sides[index % 2])
        batch.record_stream(torch.cuda.current_stream())
        descend((model(batch) - batch).square().mean(), optimizer)
        del batch


def side_stream_ring():
    """Results that a side stream reads for long after they were freed, waited for each step."""
    weight = torch.randn(4096, 4096, device="cuda")
    side = torch.cuda.Stream()
    for index in range(12):
        result = torch.randn(2048 + 512 * (index % 5), 4096, device="cuda") @ weight
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                scratch = result @ weight
            result.record_stream(side)
        del result, scratch
        if index % 4 == 3:
            torch.cuda.synchronize()


def cuda_graphs():
    """A step captured once for each of three shapes and replayed, with eager work between."""
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]
    ).cuda()
    pool, captured = None, []
    for rows in (2048, 1024, 512):
        still = torch.randn(rows, 1024, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(still).square().mean().backward()
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            loss = model(still).square().mean()
            loss.backward()
        pool = pool or graph.pool()
        captured.append((graph, still, loss))
        model.zero_grad(set_to_none=True)
    for index in range(9):
        graph, still, loss = captured[index % 3]
        still.copy_(torch.randn_like(still))
        graph.replay()
        (loss.detach() * 2).clone()


def serving():
    """Caches of many conversations, which grow by copying and end at different times."""
    chance, layers = random.Random(9), 8
    conversations = []

    def cache(tokens):
        return torch.empty(2, 8, tokens, 128, dtype=torch.bfloat16, device="cuda")

    for _ in range(150):
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
        while held < 2 * 32768:
            tokens = chance.randrange(512, 6000)
            limit = tokens + chance.randrange(256, 4000)
            conversations.append([tokens, limit, [cache(tokens) for _ in range(layers)]])
            held += tokens


class Step(nn.Module):
    """Two convolutions with a residual, and a norm before each."""

    def __init__(self, before, after):
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)
        )
        self.short = nn.Conv2d(before, after, 1)

    def forward(self, image):
        return self.short(image) + self.second(self.first(image))


class UNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.begin = nn.Conv2d(3, width, 3, padding=1)
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(Step(one, 2 * one) for one in widths)
        self.up = nn.ModuleList(Step(2 * one + one * 2, one) for one in reversed(widths))
        self.end = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image):
        image, kept = self.begin(image), []
        for step in self.down:
            image = step(image)
            kept.append(image)
            image = nn.functional.avg_pool2d(image, 2)
        for step in self.up:
            image = nn.functional.interpolate(image, scale_factor=2)
            image = step(torch.cat((image, kept.pop()), 1))
        return self.end(image)


def unet():
    """A net of convolutions that learns to take noise away."""
    model = UNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for size in (64, 96, 64, 128):
        image = torch.rand(8, 3, size, size).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (model(image + torch.randn_like(image)) - image).square().mean()
        descend(loss, optimizer)


def resnet_varbatch():
    """Images in batches of many sizes."""
    from torchvision.models import resnet50

    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for batch in (16, 41, 9, 32, 57, 24):
        images = torch.rand(batch, 3, 160, 160).cuda()
        labels = torch.randint(0, 1000, (batch,)).cuda()
        descend(nn.functional.cross_entropy(model(images), labels), optimizer)


def vision_transformer():
    """A vision transformer that infers and learns."""
    from torchvision.models import vit_b_16

    model = vit_b_16().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in (16, 24, 16):
        images = torch.rand(batch, 3, 224, 224).cuda()
        labels = torch.randint(0, 1000, (batch,)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        descend(loss, optimizer)


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


def mixture_of_experts():
    """Tokens that go to experts as the data wants."""
    model = nn.Sequential(*(Mixture(512, 8) for _ in range(3))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for index in range(5):
        tokens = torch.randn(8192 + 2048 * (index % 3), 512, device="cuda")
        descend((model(tokens) - tokens).square().mean(), optimizer)


def compiled(**options):
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512)) for _ in range(4)]
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    fast = torch.compile(model, **options)
    for index in range(10):
        batch = torch.randn(512 if index % 4 else 256, 512, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        descend((fast(batch) - batch).square().mean(), optimizer)


def compiled_default():
    """Training that is compiled."""
    compiled(dynamic=False)


def compiled_graphs():
    """Training that is compiled with CUDA graphs."""
    compiled(mode="reduce-overhead", dynamic=False)


def fsdp2():
    """One rank of eight, whose collectives move nothing."""
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    model = llama(layers=6).to(torch.bfloat16).cuda()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    train_language_model(model, [(2, 1024)] * 4)
    torch.distributed.destroy_process_group()


def too_large():
    """A program that runs out of memory under a cap of 6 GiB."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(6 * 2**30 / total)
    try:
        train_language_model(gpt2(), [(8, 512), (8, 900), (12, 1000), (32, 1000)])
    except torch.OutOfMemoryError as why:
        print(str(why).split("\n")[0])


def llama_55():
    """Training of a model that takes 50 GiB."""
    model = llama(layers=22, width=3072).to(torch.bfloat16).cuda()
    train_language_model(model, [(2, 1536), (3, 900), (2, 1200)])


def gpt2_50():
    """Training of another one that takes 50 GiB."""
    train_language_model(gpt2(layers=20, width=2048), [(8, 1000), (8, 700), (8, 1200)])


def serving_50():
    """Weights and caches of 50 GiB, which grow in place of each other."""
    layers = [torch.empty(3072, 12288, dtype=torch.bfloat16, device="cuda") for _ in range(4 * 30)]
    caches, chance = [], random.Random(2)
    for _ in range(400):
        if sum(cache.nbytes for cache in caches) > 40 * 2**30:
            caches.pop(chance.randrange(len(caches)))
        tokens = chance.randrange(200, 4000)
        cache = torch.empty(tokens, 30, 2, 8, 128, dtype=torch.bfloat16, device="cuda")
        caches.append(cache)
    del layers


PROGRAMS = {
    program.__name__: program
    for program in (
        gpt2_train,
        gpt2_varlen,
        gpt2_expandable,
        gpt2_float,
        llama_checkpointing,
        llama_varlen,
        llama_generate,
        llama_lora,
        trainer,
        prefetch_streams,
        side_stream_ring,
        cuda_graphs,
        serving,
        unet,
        resnet_varbatch,
        vision_transformer,
        mixture_of_experts,
        compiled_default,
        compiled_graphs,
        fsdp2,
        too_large,
        llama_55,
        gpt2_50,
        serving_50,
    )
}
SETTINGS = {"gpt2_expandable": "expandable_segments:True"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--record")
    options = parser.parse_args()
    if options.program in SETTINGS:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[options.program]
    if options.record:
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=10_000_000)
    torch.manual_seed(7)
    random.seed(7)
    PROGRAMS[options.program]()
    torch.cuda.synchronize()
    if options.record:
        torch.cuda.memory._dump_snapshot(options.record)
    stats = torch.cuda.memory_stats()
    print(
        json.dumps(
            {
                "program": options.program,
                "active_peak": stats["active_bytes.all.peak"],
                "reserved_peak": stats["reserved_bytes.all.peak"],
                "requests": stats["allocation.all.allocated"],
                "retries": stats["num_alloc_retries"],
                "failures": stats["num_ooms"],
            }
        )
    )


if __name__ == "__main__":
    main()
