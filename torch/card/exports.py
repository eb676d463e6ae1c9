"""Memory that other processes read through the driver's own handles, as custom collectives and RDMA
libraries take them.

Used by deeds.py.
"""

import contextlib
import ctypes
import subprocess
import sys

import torch

MIB = 1 << 20
IPC_HANDLE_BYTES = 64

# A process that knows nothing of PyTorch or of an allocator opens the handle and reads.
READER = """
import ctypes, sys
library, handle = sys.argv[1], bytes.fromhex(sys.argv[2])
offset, count = int(sys.argv[3]), int(sys.argv[4])
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
cudart = ctypes.CDLL(library)
opened, given = ctypes.c_void_p(), Handle.from_buffer_copy(handle)
code = cudart.cudaIpcOpenMemHandle(ctypes.byref(opened), given, ctypes.c_uint(1))
assert code == 0, f"cudaIpcOpenMemHandle says {code}"
seen = ctypes.create_string_buffer(count)
there = ctypes.c_void_p(opened.value + offset)
code = cudart.cudaMemcpy(seen, there, ctypes.c_size_t(count), ctypes.c_int(2))
assert code == 0, f"cudaMemcpy says {code}"
print(sorted(set(seen.raw)))
"""


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * IPC_HANDLE_BYTES)]


def runtime():
    """The file of the runtime library that this process has loaded."""
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if "libcudart" in line)


def segment_of(tensor):
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]:
            return segment
    raise AssertionError("no segment holds the tensor")


def read_elsewhere(tensor):
    """The different bytes of a tensor, as another process reads them."""
    library = runtime()
    handle = Handle()
    code = ctypes.CDLL(library).cudaIpcGetMemHandle(
        ctypes.byref(handle), ctypes.c_void_p(tensor.data_ptr())
    )
    assert code == 0, f"cudaIpcGetMemHandle says {code}"
    offset = tensor.data_ptr() - segment_of(tensor)["address"]
    words = [library, bytes(handle).hex(), str(offset), str(tensor.nbytes)]
    ran = subprocess.run(
        [sys.executable, "-c", READER, *words], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def captured(body):
    """A graph whose memory is its own, and what its body returned."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = body()
    graph.replay()
    torch.cuda.synchronize()
    return graph, kept


def plain_memory():
    """Where Larder is in place, its word for memory that can be exported; PyTorch's own always
    can.
    """
    larder = sys.modules.get("larder")
    if larder is None or not larder.torch.is_installed():
        return contextlib.nullcontext()
    return larder.torch.plain_memory()


def exported():
    """Tensors of a graph's pool and of the default pool, small and large, are read in another
    process.
    """
    sizes = (256, 3 * MIB, 30 * MIB)
    _graph, kept = captured(
        lambda: [torch.full((size,), 7, dtype=torch.uint8, device="cuda") for size in sizes]
    )
    for tensor in kept:
        assert read_elsewhere(tensor) == "[7]"
    with plain_memory():
        others = [torch.full((size,), 9, dtype=torch.uint8, device="cuda") for size in sizes]
    torch.cuda.synchronize()
    for tensor in others:
        assert read_elsewhere(tensor) == "[9]"
    return {"graph_pool": len(kept), "default_pool": len(others)}


def graph_statistics():
    """Three tensors of a graph of each size count as segments of PyTorch's sizes, and outlive the
    graph.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # Bytes of a tensor, and how many segments of which size three of them take.
    for size, count, segment_bytes in (
        (MIB, 2, 2 * MIB),
        (MIB + 512, 1, 20 * MIB),
        (10 * MIB - 512, 2, 20 * MIB),
        (10 * MIB + 512, 3, 12 * MIB),
    ):
        graph, kept = captured(
            lambda: [torch.full((size,), 5, dtype=torch.uint8, device="cuda") for _ in range(3)]
        )
        pools = {segment_of(tensor)["segment_pool_id"] for tensor in kept}
        assert len(pools) == 1, pools
        sizes = {segment_of(tensor)["address"]: segment_of(tensor)["total_size"] for tensor in kept}
        assert sorted(sizes.values()) == [segment_bytes] * count, (size, sizes)
        last = kept[-1]
        del graph, kept
        torch.cuda.empty_cache()
        assert bool((last == 5).all()), "what a graph computed is gone with it"
        del last
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        left = [
            segment
            for segment in torch.cuda.memory_snapshot()
            if segment["segment_pool_id"] in pools
        ]
        assert not left, left
    return {"sizes": 4}
