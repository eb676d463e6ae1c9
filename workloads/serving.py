"""Writes the requests of `serving` in torch/card/large.py as an op script, with the same choices.

python workloads/serving.py 600 > serving.ops
larder replay serving.ops --policy tight --memory 139GiB --json
"""

import argparse
import random

LAYERS = 16
TOKEN_BYTES = 2 * 32 * 128 * 2


class Script:
    """An op script that is being written."""

    def __init__(self):
        self.blocks = 0

    def cache(self, tokens):
        print(f"alloc {self.blocks} {TOKEN_BYTES * tokens} 0")
        self.blocks += 1
        return self.blocks - 1

    def free(self, caches):
        for cache in caches:
            print(f"free {cache}")

    def grow(self, caches, tokens, more):
        """All layers' caches are copied into larger ones before the old ones go."""
        grown = []
        for _ in caches:
            added = self.cache(more)
            grown.append(self.cache(tokens + more))
            self.free([added])
        self.free(caches)
        return grown


def main(steps):
    chance, script, conversations = random.Random(9), Script(), []
    for _ in range(steps):
        held = 0
        for index in range(len(conversations) - 1, -1, -1):
            tokens, limit, caches = conversations[index]
            if tokens >= limit:
                script.free(caches)
                del conversations[index]
                continue
            if chance.random() < 0.3:
                more = chance.randrange(64, 512)
                conversations[index] = [tokens + more, limit, script.grow(caches, tokens, more)]
                tokens += more
            held += tokens
        while held < 52 * 4096:
            tokens = chance.randrange(512, 6000)
            limit = tokens + chance.randrange(256, 4000)
            conversations.append([tokens, limit, [script.cache(tokens) for _ in range(LAYERS)]])
            held += tokens


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Writes the requests of `serving` as an op script."
    )
    parser.add_argument("steps", type=int, help="how many steps")
    main(parser.parse_args().steps)
