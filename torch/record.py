"""Runs an op script with PyTorch's own allocator and writes the snapshot with its history.

    python torch/record.py SCRIPT OUT

prints the statistics that a replay of the snapshot should come to. Requests that fail are left out,
as are the frees that belong to them. The operations are those of recorded programs: alloc, free,
record, sync, pool-new, pool-begin, pool-end, pool-release and empty.
"""

import json
import sys

import torch

DEVICE = 0


class Program:
    def __init__(self):
        self.tensors = {}
        self.streams = {"0": torch.cuda.default_stream(DEVICE)}
        self.pools = {}

    def stream(self, number):
        if number not in self.streams:
            self.streams[number] = torch.cuda.Stream(DEVICE)
        return self.streams[number]

    def pool(self, number):
        if number not in self.pools:
            self.pools[number] = torch.cuda.MemPool()
        return self.pools[number].id

    def run(self, name, words):
        getattr(self, name.replace("-", "_"))(*words)

    def alloc(self, number, size, stream="0"):
        torch.cuda.set_stream(self.stream(stream))
        try:
            self.tensors[number] = torch.empty(int(size), dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass

    def free(self, number):
        self.tensors.pop(number, None)

    def record(self, number, stream):
        if number in self.tensors:
            self.tensors[number].record_stream(self.stream(stream))

    def sync(self, stream):
        self.stream(stream).synchronize()

    def pool_new(self, number):
        self.pool(number)

    def pool_begin(self, number, stream):
        torch.cuda.set_stream(self.stream(stream))
        torch._C._cuda_beginAllocateCurrentStreamToPool(DEVICE, self.pool(number))

    def pool_end(self, number):
        torch._C._cuda_endAllocateToPool(DEVICE, self.pool(number))

    def pool_release(self, number):
        torch._C._cuda_releasePool(DEVICE, self.pool(number))

    def empty(self):
        torch.cuda.empty_cache()


def main():
    script, out = sys.argv[1:]
    torch.cuda.init()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=10_000_000)
    program = Program()
    with open(script) as lines:
        for line in lines:
            words = line.split("#")[0].split()
            if words:
                program.run(words[0], words[1:])
    torch.cuda.memory._dump_snapshot(out)
    stats = torch.cuda.memory_stats()
    print(
        json.dumps(
            {
                name: stats[name]
                for name in (
                    "reserved_bytes.all.peak",
                    "active_bytes.all.peak",
                    "num_ooms",
                    "num_alloc_retries",
                )
            }
        )
    )


if __name__ == "__main__":
    main()
