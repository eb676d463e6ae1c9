"""Writes an op script in which weights are converted inside an open memory pool, as serving engines
do after they have loaded them: 40 tensors of 240 MiB, each replaced by one that is 5 % larger.
Small tensors that stay lie between them.

    python workloads/conversion.py loaded > conversion.ops      # in the order of loading
    python workloads/conversion.py random > conversion.ops      # in any order
    larder compare conversion.ops
"""

import argparse
import random

MIB = 1 << 20
WEIGHTS, WEIGHT_BYTES, CONVERTED_BYTES = 40, 240 * MIB, 252 * MIB


def main(order):
    chance = random.Random(1)
    print("pool-new 1")
    print("pool-begin 1 *")
    for weight in range(WEIGHTS):
        print(f"alloc {weight} {WEIGHT_BYTES} 0")
        print(f"alloc {2 * WEIGHTS + weight} {chance.randrange(512, MIB // 4)} 0")
    weights = list(range(WEIGHTS))
    if order == "random":
        chance.shuffle(weights)
    for weight in weights:
        print(f"alloc {WEIGHTS + weight} {CONVERTED_BYTES} 0")
        print(f"free {weight}")
    print("pool-end 1")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes an op script of weights in a pool.")
    parser.add_argument("order", choices=["loaded", "random"], help="the order of conversion")
    main(parser.parse_args().order)
