"""Converts weights inside an open memory pool, as serving engines do after they have loaded them:
40 tensors of 240 MiB, each replaced by one that is 5 % larger. To be run on a card, on PyTorch's
own allocator or on Larder.

    python conversion.py [--order loaded|random] [--empty]
    python -m larder --policy tight conversion.py [--order loaded|random] [--empty]

With --empty it has the cache emptied after each. It compares every word of the converted weights
with what was loaded, and prints one line of JSON last: what was held at the most as a multiple of
what is live in the end, and what it took. Nothing in here knows which allocator is in place.
"""

import argparse
import json
import random
import sys
import time

import torch

MIB = 1 << 20
WEIGHTS, WEIGHT_MIB, CONVERTED_MIB = 40, 240, 252
WORD_BYTES = 4


def of_size(size_mib):
    return torch.empty(size_mib * MIB // WORD_BYTES, dtype=torch.int32, device="cuda")


def load(chance):
    """The weights, each with words of its own, and the small tensors that lie between them."""
    weights, small = [], []
    for number in range(WEIGHTS):
        weights.append(of_size(WEIGHT_MIB).fill_(number))
        small.append(torch.zeros(chance.randrange(512, MIB // 4), dtype=torch.int8, device="cuda"))
    return weights, small


def convert(weights, order, empties):
    for number in order:
        old = weights[number]
        new = of_size(CONVERTED_MIB)
        new[: old.numel()] = old
        new[old.numel() :] = -number
        weights[number] = new
        del old, new
        if empties:
            torch.cuda.empty_cache()


def count_wrong(weights):
    words = WEIGHT_MIB * MIB // WORD_BYTES
    wrong = 0
    for number, weight in enumerate(weights):
        wrong += int((weight[:words] != number).sum()) + int((weight[words:] != -number).sum())
    return wrong


def main(order_name, empties):
    chance = random.Random(1)
    free_bytes = torch.cuda.mem_get_info()[0]
    pool = torch.cuda.MemPool()
    order = list(range(WEIGHTS))
    if order_name == "random":
        chance.shuffle(order)
    with torch.cuda.use_mem_pool(pool):
        weights, small = load(chance)
        torch.cuda.synchronize()
        began = time.perf_counter()
        convert(weights, order, empties)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
    stats = torch.cuda.memory_stats()
    device_bytes = free_bytes - torch.cuda.mem_get_info()[0]
    wrong = count_wrong(weights)
    live_bytes = stats["active_bytes.all.current"]
    said = {
        "order": order_name,
        "emptied": empties,
        "live_mib": live_bytes // MIB,
        "held_mib": stats["reserved_bytes.all.peak"] // MIB,
        "held_to_live": round(stats["reserved_bytes.all.peak"] / live_bytes, 4),
        "device_to_live": round(device_bytes / live_bytes, 4),
        "conversion_ms": round(1000 * took, 1),
        "words_wrong": wrong,
    }
    print(json.dumps(said))
    del weights, small
    return wrong > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Converts weights in an open memory pool.")
    parser.add_argument("--order", choices=["loaded", "random"], default="loaded")
    parser.add_argument("--empty", action="store_true", help="empty the cache after each weight")
    options = parser.parse_args()
    sys.exit(main(options.order, options.empty))
