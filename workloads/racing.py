"""Writes an op script in which streams race: on each of them 600 blocks of 256 bytes to 64 MiB live
at a time, and one after the other makes room for a new one, on any stream and of any size. Nothing
ever repeats itself.

    python workloads/racing.py 2 300000 > racing.ops
    larder replay racing.ops --policy tight --memory 139GiB --json
"""

import argparse
import random

LIVE_MAX = 600


def main(streams, requests):
    chance, live = random.Random(1), [[] for _ in range(streams)]
    for block in range(requests):
        stream = chance.randrange(streams)
        blocks = live[stream]
        if len(blocks) == LIVE_MAX:
            at = chance.randrange(LIVE_MAX)
            blocks[at], blocks[-1] = blocks[-1], blocks[at]
            print(f"free {blocks.pop()}")
        print(f"alloc {block} {int(256 * 2 ** (18 * chance.random()))} {stream}")
        blocks.append(block)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes an op script in which streams race.")
    parser.add_argument("streams", type=int, help="how many streams")
    parser.add_argument("requests", type=int, help="how many requests on all of them")
    arguments = parser.parse_args()
    main(arguments.streams, arguments.requests)
