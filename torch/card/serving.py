"""The serving engine vLLM with a small model of dummy weights, to be run on a card with one
allocator or another.

    python serving.py [--eager] [--sleep] [--inside] [--turns N] [--rounds N] [--wait]
    python -m larder serving.py …

It takes token ids and gives token ids, and fetches nothing. With --eager it takes no CUDA graphs;
with --sleep it sleeps and wakes at the end; with --inside the engine is in this process and not in
one of its own. With --wait it says `ready` and waits for a line before each turn, and before the
end, so that several engines can take turns. It prints one line of JSON last: the tokens, those of
each second in the turns' fastest rounds, and what the engine's process holds of the card (where
NVML does not know the process, what PyTorch holds in it).
"""

import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import random
import sys
import tempfile
import time

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# What the engine has for keys and values. It is said and not measured, because several engines
# start on one card.
CACHE_BYTES = 8 << 30
# What must be free of the card when the engine starts.
PART_OF_CARD = 0.1
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 128, (16, 400), 256


class Memory(ctypes.Structure):
    """What NVML says of a card."""

    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


class Process(ctypes.Structure):
    """What NVML says of a process that computes on a card."""

    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("parts", ctypes.c_uint * 2)]


def ask(function, *arguments):
    """What NVML writes about the first card. It takes no CUDA context, which would hold something
    itself.
    """
    nvml, card = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    for code in (
        nvml.nvmlInit_v2(),
        nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)),
        getattr(nvml, function)(card, *arguments),
    ):
        assert code == 0, f"NVML says {code}"


def card_holds_mib():
    """What the card holds, of all processes."""
    memory = Memory()
    ask("nvmlDeviceGetMemoryInfo", ctypes.byref(memory))
    return memory.used >> 20


def process_holds_mib(pid):
    """What a process holds of the card; none where NVML knows it under another number."""
    processes, count = (Process * 256)(), ctypes.c_uint(256)
    ask("nvmlDeviceGetComputeRunningProcesses_v3", ctypes.byref(count), processes)
    return next(
        (process.used >> 20 for process in processes[: count.value] if process.pid == pid), None
    )


def look(_worker):
    """What the engine's own process says of its allocator."""
    import os
    import sys

    import torch

    larder, stats = sys.modules.get("larder"), torch.cuda.memory_stats()
    return {
        "pid": os.getpid(),
        "on_larder": larder is not None and larder.torch.is_installed(),
        "reserved_mib": torch.cuda.memory_reserved() >> 20,
        "pinned_bytes": torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0),
        "counts": [
            stats[name]
            for name in (
                "allocation.all.allocated",
                "num_device_alloc",
                "num_device_free",
                "num_sync_all_streams",
            )
        ],
    }


def model_folder():
    """The model's configuration, always at one place: what the engine compiles for it is kept under
    that name.
    """
    folder = pathlib.Path(tempfile.gettempdir()) / "larder-serving"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


def prompts():
    numbers = random.Random(7)
    lengths = [numbers.randint(*PROMPT_TOKENS) for _ in range(PROMPTS)]
    return [
        {"prompt_token_ids": [numbers.randrange(3, 32000) for _ in range(length)]}
        for length in lengths
    ]


def time_steps(engine):
    """From now on, what the engine's steps take, in ms."""
    step, times_ms = engine.llm_engine.step, []

    def timed():
        begin = time.perf_counter()
        outputs = step()
        times_ms.append((time.perf_counter() - begin) * 1e3)
        return outputs

    engine.llm_engine.step = timed
    return times_ms


def generate(engine, asked, sampling):
    begin = time.perf_counter()
    answers = engine.generate(asked, sampling, use_tqdm=False)
    taken_s = time.perf_counter() - begin
    tokens = [list(answer.outputs[0].token_ids) for answer in answers]
    digest = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]
    return digest, sum(map(len, tokens)) / taken_s


def steps_of(times_ms):
    """How many steps a round made, the middle one's time and the longest ones'."""
    ordered = sorted(times_ms)
    return [
        len(ordered),
        round(ordered[len(ordered) // 2], 3),
        [round(time_ms, 1) for time_ms in ordered[-4:]],
    ]


def sleep_and_wake(engine, asked, sampling):
    """Nothing else is at work on the card meanwhile."""
    awake = card_holds_mib()
    begin = time.perf_counter()
    engine.sleep(level=1)
    slept_s = time.perf_counter() - begin
    asleep = card_holds_mib()
    begin = time.perf_counter()
    engine.wake_up()
    woke_s = time.perf_counter() - begin
    digest, _ = generate(engine, asked, sampling)
    return {
        "given_back_mib": awake - asleep,
        "sleep_s": slept_s,
        "wake_s": woke_s,
        "digest_after": digest,
    }


def wait_for_turn(options):
    if options.wait:
        print("ready", flush=True)
        sys.stdin.readline()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--sleep", action="store_true", help="sleep and wake")
    parser.add_argument("--inside", action="store_true", help="the engine in this process")
    parser.add_argument("--turns", type=int, default=5, help="how often it goes on")
    # A round is now fast and now slow by what else the machine does: of a turn the fastest counts.
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds a turn has")
    parser.add_argument(
        "--wait", action="store_true", help="say `ready` and wait for a line before each turn"
    )
    options = parser.parse_args()
    if options.inside:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ |= {
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "HF_HUB_OFFLINE": "1",
    }
    import vllm

    begin = time.perf_counter()
    engine = vllm.LLM(
        model=str(model_folder()),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=2048,
        gpu_memory_utilization=PART_OF_CARD,
        kv_cache_memory_bytes=CACHE_BYTES,
        enforce_eager=options.eager,
        enable_sleep_mode=options.sleep,
        seed=7,
        disable_log_stats=True,
        generation_config="vllm",
        enable_prefix_caching=False,
    )
    started_s = time.perf_counter() - begin
    sampling = vllm.SamplingParams(
        temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False
    )
    asked = prompts()
    times_ms = time_steps(engine)
    digest, _ = generate(engine, asked, sampling)
    digests, turns, steps, counts = {digest}, [], [], []
    for _ in range(options.turns):
        wait_for_turn(options)
        before = engine.collective_rpc(look)[0]["counts"]
        rates = []
        for _ in range(options.rounds):
            times_ms.clear()
            digest, rate = generate(engine, asked, sampling)
            digests.add(digest)
            rates.append(rate)
            steps.append(steps_of(times_ms))
        turns.append(rates)
        counts.append(
            [now - then for now, then in zip(engine.collective_rpc(look)[0]["counts"], before)]
        )
    wait_for_turn(options)
    seen = engine.collective_rpc(look)[0]
    outcome = {
        "results": sorted(digests),
        "version": vllm.__version__,
        "tokens_a_second": [max(rates) for rates in turns],
        "rounds": turns,
        "held_mib": process_holds_mib(seen["pid"]) or seen["reserved_mib"],
        "pinned_bytes": seen["pinned_bytes"],
        "started_s": started_s,
        "steps": steps,
        "counts": counts,
        "look": seen,
    }
    if options.sleep:
        outcome["sleep"] = sleep_and_wake(engine, asked, sampling)
    engine.llm_engine.engine_core.shutdown()
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
