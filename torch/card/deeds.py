"""Things that a PyTorch program does with memory besides allocating it, each to be done on a card
with one allocator or another.

    python deeds.py NAME
    python -m larder deeds.py NAME

Each ends quietly if all was as it should be, and prints one line of JSON about what it saw.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile

import exports
import torch
import torch.multiprocessing as multiprocessing

MIB = 1 << 20


def out_of_memory():
    """Too much is asked for in the middle of training, which then goes on as if nothing had
    been.
    """
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    caught = 0
    for index in range(20):
        if index % 5 == 2:
            try:
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                assert "CUDA out of memory. Tried to allocate" in str(error), error
                assert "GPU 0 has a total capacity of" in str(error), error
                caught += 1
        loss = model(torch.randn(64, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert caught == 4 and torch.isfinite(loss)
    stats = torch.cuda.memory_stats()
    assert stats["num_ooms"] == 4, stats["num_ooms"]
    return {"caught": caught, "loss": loss.item()}


def snapshot():
    """A snapshot with stacks, written and read again by PyTorch's own tools."""
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history()
    kept = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (1, 3, 30)]
    del kept[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as file:
            taken = pickle.load(file)
    torch.cuda.memory._record_memory_history(enabled=None)
    actions = [entry["action"] for entry in taken["device_traces"][0]]
    assert actions.count("alloc") >= 3 and "free_completed" in actions, actions
    frames = taken["device_traces"][0][-1].get("frames", [])
    assert any(frame["name"] == "snapshot" for frame in frames), frames[:3]
    assert len(_memory_viz.trace_plot(taken)) > 1000
    assert "alloc" in _memory_viz.trace(taken)
    assert _memory_viz.segsum(taken)
    return {"entries": len(actions), "segments": len(taken["segments"])}


def _double(source, results):
    tensor = source.get()
    results.put((tensor * 2).sum().item())
    del tensor
    source.get()


def sharing():
    """A tensor sent to another process, which computes with it in place."""
    context = multiprocessing.get_context("spawn")
    source, results = context.Queue(), context.Queue()
    process = context.Process(target=_double, args=(source, results))
    process.start()
    tensor = torch.arange(1 << 20, dtype=torch.float64, device="cuda")
    source.put(tensor)
    doubled = results.get(timeout=120)
    source.put(None)
    process.join(120)
    assert process.exitcode == 0, process.exitcode
    assert doubled == float((tensor * 2).sum()), doubled
    return {"sum": doubled}


NCCL_SOURCE = """
#include <cstddef>
#include <cstdio>
extern "C" int ncclMemAlloc(void **, size_t);
extern "C" int ncclMemFree(void *);
extern "C" void *nccl_alloc(size_t size, int, void *) {
    void *memory = nullptr;
    return ncclMemAlloc(&memory, size) == 0 ? memory : nullptr;
}
extern "C" void nccl_free(void *memory, size_t, int, void *) { ncclMemFree(memory); }
"""


def nccl_allocator(backend, folder):
    """NCCL's allocator as PyTorch offers it; where it does not, the same around NCCL's own
    functions.
    """
    try:
        return backend.mem_allocator, None
    except RuntimeError:
        pass
    import importlib.util

    found = importlib.util.find_spec("nvidia.nccl")
    libraries = [
        os.path.join(place, "lib", "libnccl.so.2") for place in found.submodule_search_locations
    ]
    source, library = os.path.join(folder, "nccl.cpp"), os.path.join(folder, "nccl.so")
    with open(source, "w") as file:
        file.write(NCCL_SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source, libraries[0]], check=True)
    stock = torch.cuda.memory.CUDAPluggableAllocator(library, "nccl_alloc", "nccl_free")
    return stock.allocator(), stock


def nccl_pool():
    """A memory pool over NCCL's own allocator, used by a collective of one."""
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    backend = dist.group.WORLD._get_backend(torch.device("cuda:0"))
    folder = tempfile.mkdtemp()
    allocator, kept = nccl_allocator(backend, folder)
    pool = torch.cuda.MemPool(allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.ones(4 * MIB, device="cuda")
    registered = True
    try:
        backend.register_mem_pool(pool)
    except RuntimeError as error:
        registered = str(error).splitlines()[0]
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    assert float(tensor.sum()) == 4 * MIB
    segments = pool.snapshot()
    assert len(segments) == 1 and tuple(segments[0]["segment_pool_id"]) == tuple(pool.id)
    if registered is True:
        backend.deregister_mem_pool(pool)
    del tensor, pool
    torch.cuda.empty_cache()
    dist.destroy_process_group()
    return {
        "segment": segments[0]["total_size"],
        "registered": registered,
        "shim": kept is not None,
    }


def pluggable():
    """The other direction: PyTorch's stock pluggable allocator around Larder's library."""
    library = os.environ.get("LARDER_LIBRARY")
    if library is None:
        import larder

        library = larder.library_path()
    code = f"""
import torch
names = "larder_torch_alloc", "larder_torch_free"
larder = torch.cuda.memory.CUDAPluggableAllocator({library!r}, *names)
torch.cuda.memory.change_current_allocator(larder)
model = torch.nn.Linear(64, 64).cuda()
for _ in range(50):
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    loss.backward()
assert torch.isfinite(loss)
"""
    environment = {key: value for key, value in os.environ.items() if key != "LARDER_INSTALL"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    stock = torch.cuda.memory.CUDAPluggableAllocator(
        library, "larder_torch_alloc", "larder_torch_free"
    )
    pool = torch.cuda.MemPool(stock.allocator())
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.full((MIB,), 3.0, device="cuda")
    assert float(tensor.sum()) == 3.0 * MIB
    return {"library": os.path.basename(library)}


DEEDS = {
    deed.__name__: deed
    for deed in (
        out_of_memory,
        snapshot,
        sharing,
        exports.exported,
        exports.graph_statistics,
        nccl_pool,
        pluggable,
    )
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("deed", choices=DEEDS)
    print(json.dumps(DEEDS[parser.parse_args().deed]()))


if __name__ == "__main__":
    main()
