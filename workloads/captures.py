"""Writes an op script of a served model whose decoding is captured as graphs, one for each batch
size, as serving engines do: each capture allocates what a forward pass does, keeps its output, and
all share one pool, or have one each.

    python workloads/captures.py shared > captures.ops      # the largest batch first, one pool
    python workloads/captures.py rising > captures.ops      # the smallest first, one pool
    python workloads/captures.py apart > captures.ops       # a pool for each graph
    larder replay captures.ops --conf expandable_segments:True,plain_captures:True
"""

import argparse

LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY, BYTES = 24, 4096, 14336, 128256, 2
BATCHES = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
STREAM = 1


class Script:
    """An op script that is being written."""

    def __init__(self):
        self.blocks = 0

    def alloc(self, elements, stream=STREAM):
        print(f"alloc {self.blocks} {elements * BYTES} {stream}")
        self.blocks += 1
        return self.blocks - 1

    def free(self, *blocks):
        for block in blocks:
            print(f"free {block}")

    def forward(self, batch):
        """A pass through the model: what its kernels allocate, and the logits, which stay."""
        hidden = self.alloc(batch * HIDDEN)
        for _ in range(LAYERS):
            normed = self.alloc(batch * HIDDEN)
            qkv = self.alloc(batch * HIDDEN * 3 // 2)
            attended = self.alloc(batch * HIDDEN)
            self.free(normed, qkv)
            projected = self.alloc(batch * HIDDEN)
            self.free(attended)
            gate = self.alloc(batch * INTERMEDIATE * 2)
            self.free(projected)
            activated = self.alloc(batch * INTERMEDIATE)
            self.free(gate)
            down = self.alloc(batch * HIDDEN)
            self.free(activated, hidden)
            hidden = down
        logits = self.alloc(batch * VOCABULARY)
        self.free(hidden)
        return logits


def main(kind):
    script = Script()
    # The weights, so that the graphs' part is what it is in a program.
    for _ in range(LAYERS):
        for elements in (
            HIDDEN * HIDDEN * 5 // 2,
            HIDDEN * INTERMEDIATE * 2,
            HIDDEN * INTERMEDIATE,
        ):
            script.alloc(elements, 0)
    for number, batch in enumerate(BATCHES if kind == "rising" else reversed(BATCHES)):
        pool = number + 1 if kind == "apart" else 1
        print(f"pool-begin {pool} capture {STREAM}")
        print(f"capture-begin {STREAM}")
        script.forward(batch)
        print(f"capture-end {STREAM}")
        print(f"pool-end {pool}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["shared", "rising", "apart"])
    main(parser.parse_args().kind)
