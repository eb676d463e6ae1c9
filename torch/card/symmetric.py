"""Symmetric memory on one card: two ranks that share it, and NCCL and NVSHMEM with one rank each.

    python -m larder symmetric.py   # Larder's symmetric pool, and NCCL's and NVSHMEM's
                                    # memory under Larder
    python symmetric.py                      # PyTorch's own pool, for comparison

Both print one line of JSON for each part. Two ranks share the card, which PyTorch allows with
TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1; what goes over links and networks between cards this
does not show.
"""

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import larder

MIB = 1 << 20
TENSORS = 500
LIVE_MAX = 60


def sizes(seed, count):
    """Elements of tensors, small and large."""
    chance = random.Random(seed)
    kinds = [lambda: chance.randrange(1, 4096), lambda: chance.randrange(4096, 1 << 17)]
    kinds.append(lambda: chance.randrange(1 << 17, 1 << 20))
    return [chance.choices(kinds, weights=[5, 4, 1])[0]() for _ in range(count)]


class NativePool:
    """PyTorch's own pool, by the calls that ours has."""

    def __init__(self, device):
        self.pool = symm_mem.get_mem_pool(device)
        self.device = device

    def __enter__(self):
        self.scope = torch.cuda.use_mem_pool(self.pool, device=self.device)
        self.scope.__enter__()

    def __exit__(self, *error):
        self.scope.__exit__(*error)

    def rendezvous(self, tensor):
        return symm_mem.rendezvous(tensor, dist.group.WORLD)

    def get_buffer(self, handle, rank, tensor):
        return handle.get_buffer(rank, tuple(tensor.shape), tensor.dtype)

    def seal(self):
        """It has nothing of the kind."""


def make_pool(device):
    return (
        larder.torch.symmetric_pool(device=device)
        if larder.torch.is_installed()
        else NativePool(device)
    )


def held_bytes(pool):
    return sum(segment["total_size"] for segment in pool.pool.snapshot(include_traces=False))


def offset_in_segment(pool, tensor):
    address = tensor.data_ptr()
    segments = pool.pool.snapshot(include_traces=False)
    found = [s for s in segments if s["address"] <= address < s["address"] + s["total_size"]]
    return address - found[0]["address"]


def gather(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def read_each_others(rank, device):
    """Each rank writes its tensors, and reads the other's through the handle."""
    pool = make_pool(device)
    live, wrong, words, offsets, peak_bytes, live_bytes = [], 0, 0, [], 0, 0
    chance = random.Random(7)
    for number, elements in enumerate(sizes(1, TENSORS)):
        with pool:
            tensor = torch.empty(elements, dtype=torch.int64, device=device)
        offsets.append(
            tuple(pool.position_of(tensor))
            if larder.torch.is_installed()
            else offset_in_segment(pool, tensor)
        )
        tensor.fill_(number * 2 + rank)
        torch.cuda.synchronize()
        handle = pool.rendezvous(tensor)
        dist.barrier()
        other = pool.get_buffer(handle, 1 - rank, tensor)
        wrong += int((other != number * 2 + 1 - rank).sum())
        words += elements
        torch.cuda.synchronize()
        dist.barrier()
        del other, handle
        live.append(tensor)
        del tensor
        peak_bytes = max(peak_bytes, held_bytes(pool))
        live_bytes = max(live_bytes, sum(t.numel() * 8 for t in live))
        if len(live) > LIVE_MAX or chance.random() < 0.3:
            live.pop(chance.randrange(len(live)))
    pool.seal()
    everyones = gather(offsets)
    return {
        "part": "two ranks",
        "tensors": TENSORS,
        "words_read": words,
        "wrong_words": wrong,
        "equal_offsets": everyones[0] == everyones[1],
        "peak_held_bytes": peak_bytes,
        "peak_live_bytes": live_bytes,
    }


def one_differs(rank, device):
    """Rank 1 makes one tensor more; then both go on as if nothing had happened."""
    pool = make_pool(device)
    said = "nothing"
    wrong = None
    with pool:
        kept = [torch.full((1000,), rank, dtype=torch.int64, device=device) for _ in range(3)]
        if rank == 1:
            kept.append(torch.empty(70_000, dtype=torch.int64, device=device))
        tensor = torch.full((1000,), 10 + rank, dtype=torch.int64, device=device)
    torch.cuda.synchronize()
    try:
        handle = pool.rendezvous(tensor)
        dist.barrier()
        other = pool.get_buffer(handle, 1 - rank, tensor)
        wrong = int((other != 11 - rank).sum())
        dist.barrier()
    except larder.DivergenceError as error:
        said = str(error)
    return {"part": "one rank differs", "told": gather(said), "wrong_words": gather(wrong)}


def run_rank(rank, ranks):
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for part in (read_each_others, one_differs):
        try:
            told = part(rank, device)
        except Exception:
            told = {"part": part.__name__, "failed": traceback.format_exc().splitlines()[-1]}
        if rank == 0:
            print(json.dumps({"larder": larder.torch.is_installed(), **told}), flush=True)
    dist.destroy_process_group()


def run_two_ranks():
    starter = [sys.executable, *(["-m", "larder"] if larder.torch.is_installed() else [])]
    environment = dict(
        os.environ,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29513",
        TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES="1",
    )
    children = [
        subprocess.Popen([*starter, __file__, "--rank", str(rank)], env=environment)
        for rank in range(2)
    ]
    return max(child.wait(timeout=600) for child in children)


def nccl_alone():
    """A collective on registered memory of NCCL's, and segments that come and go."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29514")
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=device)
    backend = dist.group.WORLD._get_backend(device)
    told = {"part": "nccl, one rank"}
    try:
        allocators = [backend.mem_allocator]
    except RuntimeError as error:
        # PyTorch offers NCCL's memory only where the GPU has multicast; NCCL registers plain memory
        # too.
        told["memory of NCCL's own"], allocators = str(error), []
    for symmetric in (False, True):
        pool = torch.cuda.MemPool(*allocators)
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.arange(1 << 20, dtype=torch.float32, device=device)
        try:
            backend.register_mem_pool(pool, symm=symmetric)
        except RuntimeError as error:
            told["symmetric" if symmetric else "plain"] = str(error).splitlines()[0]
            del tensor, pool
            continue
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        wrong = int((tensor != torch.arange(1 << 20, dtype=torch.float32, device=device)).sum())
        backend.deregister_mem_pool(pool)
        told["symmetric" if symmetric else "plain"] = {
            "wrong": wrong,
            "segments": len(pool.snapshot(include_traces=False)),
        }
        del tensor, pool
    dist.destroy_process_group()
    return told


def nvshmem_library():
    import nvidia

    for folder in nvidia.__path__:
        path = os.path.join(folder, "nvshmem", "lib", "libnvshmem_host.so.3")
        if os.path.exists(path):
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL("libnvshmem_host.so.3", mode=ctypes.RTLD_GLOBAL)


class UniqueId(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), ("internal", ctypes.c_char * 124)]


class InitAttributes(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int),
        ("mpi_comm", ctypes.c_void_p),
        ("args_version", ctypes.c_int),
        ("args", ctypes.c_char * 124),
    ]


def nvshmem_alone():
    """One processing element: allocates, puts and gets through a symmetric pool of Larder's own
    allocator.
    """
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    library = nvshmem_library()
    library.nvshmem_malloc.restype = ctypes.c_void_p
    library.nvshmem_malloc.argtypes = [ctypes.c_size_t]
    library.nvshmem_free.argtypes = [ctypes.c_void_p]
    for move in (library.nvshmem_putmem, library.nvshmem_getmem):
        move.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    identity = UniqueId(version=(1 << 16) + 128)
    attributes = InitAttributes(version=(1 << 16) + 144, args_version=(1 << 16) + 128)
    codes = [
        library.nvshmemx_get_uniqueid(ctypes.byref(identity)),
        library.nvshmemx_set_attr_uniqueid_args(
            0, 1, ctypes.byref(identity), ctypes.byref(attributes)
        ),
        library.nvshmemx_hostlib_init_attr(8, ctypes.byref(attributes)),
    ]
    if any(codes):
        return {"part": "nvshmem, one rank", "failed": f"starting it gave {codes}"}
    source = larder.Source(
        lambda size, stream: library.nvshmem_malloc(size),
        lambda address, size, stream: library.nvshmem_free(address),
        collective=True,
        registrar="NVSHMEM's symmetric heap",
    )
    allocator = larder.Allocator("cuda:0")
    pool = allocator.symmetric_pool(source, growth=4 * MIB)
    count = 1 << 16
    with pool:
        there, here = allocator.malloc(count * 8), allocator.malloc(count * 8)
    values = torch.arange(count, dtype=torch.int64, device="cuda")
    back = torch.zeros_like(values)
    library.nvshmem_putmem(there, values.data_ptr(), count * 8, 0)
    library.nvshmem_barrier_all()
    library.nvshmem_getmem(back.data_ptr(), there, count * 8, 0)
    torch.cuda.synchronize()
    wrong = int((back != values).sum())
    positions = [tuple(pool.position_of(address)) for address in (there, here)]
    pool.seal(lambda said: [said])
    allocator.free(there)
    allocator.free(here)
    trimmed = pool.trim()
    counts = pool.source_counts()
    return {
        "part": "nvshmem, one rank",
        "wrong": wrong,
        "positions": positions,
        "trimmed": trimmed,
        "counts": counts,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, help="be this one of the two ranks")
    parser.add_argument("--part", choices=["ranks", "nccl", "nvshmem"], help="this part alone")
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options.rank, 2)
        return 0
    code = 0
    if options.part in (None, "ranks"):
        code = run_two_ranks()
    # What ends a process ends no more than its part.
    for part, body in (("nccl", nccl_alone), ("nvshmem", nvshmem_alone)):
        if options.part == part:
            try:
                told = body()
            except Exception:
                told = {"part": part, "failed": traceback.format_exc().splitlines()[-1]}
            print(json.dumps({"larder": larder.torch.is_installed(), **told}), flush=True)
        elif options.part is None:
            starter = [sys.executable, *(["-m", "larder"] if larder.torch.is_installed() else [])]
            code = max(
                code, subprocess.run([*starter, __file__, "--part", part], check=False).returncode
            )
    return code


if __name__ == "__main__":
    sys.exit(main())
