"""Small programs that run out of memory, or nearly, each recorded by PyTorch. To be run on a card
with PyTorch's own allocator, one program a process, because settings are read once.

    PYTORCH_CUDA_ALLOC_CONF=... python pressure.py NAME OUT.pickle.gz OUT.json

Without settings it lists the programs and the settings that each wants, as JSON. The second file
says what the card did, for a replay to be compared with: retries, failures, and the peak of what
was reserved.
"""

import gzip
import json
import pickle
import random
import sys

import torch

MIB = 1 << 20
# The card is made to look small by a fraction; what the programs want is measured against that.
FRACTION = 0.012


def mixed(chance, limit_bytes, steps, streams=1, ends=False):
    """Tensors of many sizes on some streams, as many as may fit and a few more."""
    on = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(streams - 1))]
    live, failures = [], 0
    for _ in range(steps):
        held = sum(tensor.numel() for tensor in live)
        size = chance.choice(
            (
                chance.randrange(1, MIB),
                chance.randrange(MIB, 24 * MIB),
                chance.randrange(MIB, limit_bytes // 4),
            )
        )
        if live and (chance.random() < 0.45 or held + size > 0.97 * limit_bytes):
            del live[chance.randrange(len(live))]
            continue
        with torch.cuda.stream(chance.choice(on)):
            try:
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                failures += 1
                if ends:
                    break
    return failures


def retries(limit_bytes):
    mixed(random.Random(1), int(0.8 * limit_bytes), 600)


def failures(limit_bytes):
    mixed(random.Random(2), int(1.2 * limit_bytes), 600)


def dies(limit_bytes):
    mixed(random.Random(3), int(1.5 * limit_bytes), 3000, ends=True)


def streams(limit_bytes):
    mixed(random.Random(4), limit_bytes, 800, streams=3)


def emptied(limit_bytes):
    """A program that empties its cache now and then, beside what the allocator gives back by
    itself.
    """
    chance = random.Random(5)
    for _ in range(6):
        mixed(chance, limit_bytes, 120)
        torch.cuda.empty_cache()


def training(limit_bytes):
    """A model whose batches grow until one does not fit."""
    width = 1024
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    batch = 512
    while True:
        try:
            model(torch.randn(batch, width, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        except torch.OutOfMemoryError:
            return
        batch = batch * 5 // 4


def full_card(limit_bytes):
    """Somebody else has the rest of the card, so that the driver itself has no more to give."""
    mixed(random.Random(7), limit_bytes, 600)


CAPPED = f"per_process_memory_fraction:{FRACTION}"
PROGRAMS = {
    "retries": (retries, CAPPED),
    "failures": (failures, CAPPED),
    "dies": (dies, CAPPED),
    "expandable": (failures, CAPPED + ",expandable_segments:True"),
    "streams": (streams, CAPPED),
    "emptied": (emptied, CAPPED),
    "split_limit": (failures, CAPPED + ",max_split_size_mb:64"),
    "collected": (retries, CAPPED + ",garbage_collection_threshold:0.6"),
    "training": (training, CAPPED),
    "training_expandable": (training, CAPPED + ",expandable_segments:True"),
    "full_card": (full_card, ""),
}


def ballast(left_bytes):
    """Takes the card's memory but for so much, past PyTorch's allocator. The driver keeps it until
    the process ends.
    """
    import ctypes

    free, _ = torch.cuda.mem_get_info()
    address = ctypes.c_uint64()
    result = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(
        ctypes.byref(address), ctypes.c_size_t(free - left_bytes)
    )
    if result != 0:
        raise RuntimeError(f"the driver refused the ballast: {result}")


def shorten(part):
    """Names files in call stacks by their last two parts: where they lie on this machine tells
    nobody anything.
    """
    if isinstance(part, dict):
        if "filename" in part:
            part["filename"] = "/".join(part["filename"].split("/")[-2:])
        for value in part.values():
            shorten(value)
    elif isinstance(part, list):
        for value in part:
            shorten(value)


def main():
    if len(sys.argv) == 1:
        print(json.dumps({name: conf for name, (_, conf) in PROGRAMS.items()}))
        return
    name, recording, facts = sys.argv[1:]
    program, conf = PROGRAMS[name]
    torch.cuda.init()
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    limit_bytes = int(FRACTION * total_bytes)
    if not conf:
        ballast(limit_bytes)
    # With stacks a replay can tell a retry from an emptied cache; the rest has to do without.
    context = "all" if name in ("emptied", "training") else None
    torch.cuda.memory._record_memory_history(context=context, stacks="python")
    program(limit_bytes)
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    shorten(snapshot)
    with gzip.GzipFile(recording, "wb", mtime=0) as out:
        pickle.dump(snapshot, out)
    keys = ("num_alloc_retries", "num_ooms", "reserved_bytes.all.peak", "active_bytes.all.peak")
    told = {key: stats[key] for key in keys}
    told.update(
        settings=conf,
        device_bytes=total_bytes,
        torch=torch.__version__,
        card=torch.cuda.get_device_name(),
    )
    with open(facts, "w") as out:
        out.write(json.dumps(told, indent=1) + "\n")
    print(json.dumps({"name": name, **told}))


if __name__ == "__main__":
    main()
