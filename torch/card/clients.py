"""Programs of other people's libraries, each to be run on a card with one allocator or another.

    python clients.py NAME
    python -m larder clients.py NAME
    python clients.py NAME --wait

With --wait it says `ready` once it is prepared, and waits for a line before what is timed. Each
prints one line of JSON last: what it computed, exact to the bit, the library's version, the most
memory that PyTorch held, and what the steps took. Nothing in here knows which allocator is in
place. A program whose library is not installed says so in that line. The serving engine has a file
of its own, serving.py.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import torch

MIB = 1 << 20
STEPS, WARM_STEPS = 12, 3


class Turns:
    """When a program goes on: at once, or at a line from whoever started it."""

    waits = False

    def wait(self):
        if self.waits:
            print("ready", flush=True)
            sys.stdin.readline()


turns = Turns()


def digest(*tensors):
    """What tensors hold, to the bit."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def timed(step, times=STEPS):
    """What each step computed, and what those took that came after the program's turn had come."""
    results, times_ms = [], []
    for index in range(times):
        if index == WARM_STEPS:
            turns.wait()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        results.append(step(index))
        torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - begin) * 1e3)
    return results, statistics.median(times_ms[WARM_STEPS:])


def layers(width=512, depth=4):
    parts = [
        part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.GELU())
    ]
    return torch.nn.Sequential(*parts).cuda()


def training(model, optimizer=None):
    """A step of training a model of layers()."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(index):
        data = torch.randn(64 + 32 * (index % 3), 512, device="cuda")
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item().hex()

    return step


def language_model():
    import transformers

    config = transformers.GPT2Config(
        n_layer=4, n_embd=256, n_head=4, vocab_size=1000, n_positions=256
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


class Sentences(torch.utils.data.Dataset):
    """Token ids of the same kind each time, of different lengths."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (128,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def transformers_trainer():
    """Hugging Face's Trainer, with checkpointing, workers that load data, and pinned memory."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=8,
            gradient_checkpointing=True,
            dataloader_num_workers=2,
            dataloader_pin_memory=True,
            logging_steps=1,
            save_steps=6,
            report_to=[],
            disable_tqdm=True,
            seed=7,
        )
        trainer = transformers.Trainer(
            model=language_model(), args=arguments, train_dataset=Sentences()
        )
        turns.wait()
        begin = time.perf_counter()
        trainer.train()
        taken_ms = (time.perf_counter() - begin) * 1e3 / STEPS
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == STEPS, losses
    return losses, taken_ms


def lightning():
    import lightning as light

    class Module(light.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = layers()
            self.losses = []

        def training_step(self, batch, _):
            loss = self.model(batch[0]).square().mean()
            self.losses.append(loss.item().hex())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = torch.utils.data.TensorDataset(torch.randn(STEPS * 32, 512))
    module = Module()
    trainer = light.Trainer(
        max_epochs=2,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    turns.wait()
    begin = time.perf_counter()
    trainer.fit(
        module, torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
    )
    assert len(module.losses) == 2 * STEPS
    return module.losses, (time.perf_counter() - begin) * 1e3 / len(module.losses)


def peft():
    import peft as tuning

    adapted = tuning.get_peft_model(
        language_model(), tuning.LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    adapted.cuda()
    optimizer = torch.optim.AdamW(
        [weight for weight in adapted.parameters() if weight.requires_grad], lr=1e-3
    )

    def step(index):
        ids = torch.randint(0, 1000, (8, 64 + 32 * (index % 3)), device="cuda")
        loss = adapted(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item().hex()

    return timed(step)


def accelerate():
    import accelerate as hf

    accelerator = hf.Accelerator(gradient_accumulation_steps=2)
    model = layers()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    def step(index):
        with accelerator.accumulate(model):
            loss = model(torch.randn(64 + 32 * (index % 3), 512, device="cuda")).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss.item().hex()

    return timed(step)


def cupy():
    """Arrays and tensors of the same memory, both ways, and CuPy on PyTorch's allocator."""
    import cupy as cp

    cp.cuda.set_allocator(
        cp.cuda.PythonFunctionAllocator(
            lambda size, device: torch.cuda.caching_allocator_alloc(
                size, device, cp.cuda.get_current_stream().ptr
            ),
            lambda ptr, _: torch.cuda.caching_allocator_delete(ptr),
        ).malloc
    )

    def step(index):
        tensor = torch.randn(256, 256 + index, device="cuda")
        torch.cuda.synchronize()
        array = cp.from_dlpack(tensor) * 2 + 1
        cp.cuda.Device().synchronize()
        return digest(torch.from_dlpack(array), tensor)

    return timed(step)


def numba():
    import numba.cuda

    @numba.cuda.jit
    def double(values):
        index = numba.cuda.grid(1)
        if index < values.size:
            values[index] *= 2

    def step(index):
        tensor = torch.randn(100_000 + index, device="cuda")
        torch.cuda.synchronize()
        double[400, 256](numba.cuda.as_cuda_array(tensor))
        numba.cuda.synchronize()
        return digest(tensor)

    return timed(step)


def jax():
    """JAX beside PyTorch on one card, with arrays that both see."""
    import jax as jx

    @jx.jit
    def halve(values):
        return values / 2 + 1

    def step(index):
        tensor = torch.randn(256, 256 + index % 2, device="cuda")
        torch.cuda.synchronize()
        return digest(
            torch.from_dlpack(halve(jx.dlpack.from_dlpack(tensor)).block_until_ready()), tensor
        )

    return timed(step)


def torch_compile():
    return timed(training(torch.compile(layers(), dynamic=False)), 24)


def compiled_graphs():
    """torch.compile with CUDA graphs, which it takes and replays by itself."""
    model = torch.compile(layers(), mode="reduce-overhead", dynamic=False)

    def step(index):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return digest(model(torch.randn(64 + 32 * (index % 2), 512, device="cuda")))

    return timed(step, 24)


def graphed_callables():
    model = layers()
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(64, 512, device="cuda"),))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(_):
        loss = graphed(torch.randn(64, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.item().hex()

    return timed(step)


def save_on_cpu():
    model = layers()
    inner = training(model)

    def step(index):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return inner(index)

    return timed(step)


def profiler():
    from torch.profiler import ProfilerActivity, profile

    step = training(layers())
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True
    ) as seen:
        outcome = timed(step)
    assert any(event.self_device_memory_usage > 0 for event in seen.key_averages())
    return outcome


def process_group():
    """NCCL with this process alone."""
    import torch.distributed as distributed

    store = distributed.TCPStore("127.0.0.1", 0, 1, True)
    distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    return distributed


def ddp():
    distributed = process_group()
    model = torch.nn.parallel.DistributedDataParallel(layers(), device_ids=[0])
    outcome = timed(training(model))
    distributed.destroy_process_group()
    return outcome


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    distributed = process_group()
    model = layers()
    for part in model:
        fully_shard(part)
    fully_shard(model)
    outcome = timed(training(model))
    distributed.destroy_process_group()
    return outcome


def gpytorch():
    import gpytorch as gp

    points = torch.linspace(0, 1, 300, device="cuda")
    values = torch.sin(6 * points)

    class Process(gp.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(points, values, likelihood)
            self.mean = gp.means.ConstantMean()
            self.kernel = gp.kernels.ScaleKernel(gp.kernels.RBFKernel())

        def forward(self, at):
            return gp.distributions.MultivariateNormal(self.mean(at), self.kernel(at))

    likelihood = gp.likelihoods.GaussianLikelihood().cuda()
    model = Process(likelihood).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    margin = gp.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step(_):
        optimizer.zero_grad()
        loss = -margin(model(points), values)
        loss.backward()
        optimizer.step()
        return loss.item().hex()

    return timed(step)


def free_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def memory_saver(mode):
    """A region is paused, which gives its memory back to the card, and resumed with what was in
    it.
    """
    import torch_memory_saver as saving

    saver = saving.torch_memory_saver
    saver.hook_mode = mode
    torch.cuda.init()
    # What the card has free is asked of it while nobody else is at work.
    turns.wait()
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = torch.arange(64 * MIB, dtype=torch.float32, device="cuda")
    before = digest(weights)
    held = free_bytes()
    saver.pause("weights")
    given_back_mib = (free_bytes() - held) // MIB
    saver.resume("weights")
    assert digest(weights) == before, "the contents are not what they were"
    assert given_back_mib >= 256, f"a pause gives back {given_back_mib} MiB of 256"
    return [before, f"gives back {given_back_mib} MiB"], 0.0


def memory_saver_torch():
    return memory_saver("torch")


def memory_saver_preload():
    return memory_saver("preload")


# Each program, and the distribution whose version counts.
CLIENTS = {
    "transformers_trainer": (transformers_trainer, "transformers"),
    "accelerate": (accelerate, "accelerate"),
    "lightning": (lightning, "lightning"),
    "peft": (peft, "peft"),
    "cupy": (cupy, "cupy-cuda13x"),
    "numba": (numba, "numba-cuda"),
    "jax": (jax, "jax"),
    "torch_compile": (torch_compile, "torch"),
    "compiled_graphs": (compiled_graphs, "torch"),
    "graphed_callables": (graphed_callables, "torch"),
    "save_on_cpu": (save_on_cpu, "torch"),
    "profiler": (profiler, "torch"),
    "ddp": (ddp, "torch"),
    "fsdp2": (fsdp2, "torch"),
    "gpytorch": (gpytorch, "gpytorch"),
    "memory_saver_torch": (memory_saver_torch, "torch-memory-saver"),
    "memory_saver_preload": (memory_saver_preload, "torch-memory-saver"),
}
# Their library ends the process with an error when the interpreter frees what a region holds,
# whichever allocator is in place.
ENDED_HERE = {memory_saver_torch, memory_saver_preload}


def version_of(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_on_larder():
    larder = sys.modules.get("larder")
    return larder is not None and larder.torch.is_installed()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument(
        "--wait", action="store_true", help="say `ready` and wait for a line before what is timed"
    )
    options = parser.parse_args()
    client, distribution = CLIENTS[options.client]
    turns.waits = options.wait
    version = version_of(distribution)
    if version is None:
        turns.wait()
        print(json.dumps({"missing": distribution}))
        return
    torch.manual_seed(7)
    results, step_ms = client()
    outcome = {
        "results": results,
        "version": version,
        "step_ms": step_ms,
        "held_bytes": torch.cuda.memory_stats().get("reserved_bytes.all.peak", 0),
        "pinned_bytes": torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0),
        "on_larder": is_on_larder(),
    }
    print(json.dumps(outcome), flush=True)
    if client in ENDED_HERE:
        os._exit(0)


if __name__ == "__main__":
    main()
