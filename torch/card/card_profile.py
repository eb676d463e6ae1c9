"""Reads off a card what a dry run has to answer in its place, and prints it as JSON.

    python card_profile.py > h200.json

Properties and attributes by the runtime and the driver, what memory is free once there is a
context, where plain allocations are put, and cuDNN's description of the card.
"""

import ctypes
import json
import pathlib
import random
import sys

import torch

MIB = 1 << 20
# CUDA numbers its attributes upwards without large gaps.
ATTRIBUTES = range(1, 160)
PROPERTIES_BYTES = 1008


def library(pattern):
    """A library of the wheels that PyTorch came with."""
    for folder in map(pathlib.Path, sys.path):
        for found in sorted(folder.glob(f"nvidia/*/lib/{pattern}")):
            return ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(pattern)


def checked(status, what):
    if status != 0:
        raise RuntimeError(f"{what} says {status}")


def memory_info(runtime):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    checked(runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)), "cudaMemGetInfo")
    return [free.value, total.value]


def attributes(ask):
    """What is said of each attribute that the card knows."""
    known = {}
    for number in ATTRIBUTES:
        value = ctypes.c_int()
        if ask(ctypes.byref(value), number, 0) == 0:
            known[number] = value.value
    return known


def places(runtime, steps=400):
    """Plain allocations and frees in an order that is the same each time, and where each lay."""
    chance, held, seen = random.Random(3), [], []
    sizes = [2, 2, 2, 20, 20, 12, 34, 64, 130, 500, 1030]
    for _ in range(steps):
        if held and chance.random() < 0.45:
            address, number = held.pop(chance.randrange(len(held)))
            checked(runtime.cudaFree(ctypes.c_void_p(address)), "cudaFree")
            seen.append(["free", number])
            continue
        size, place = chance.choice(sizes) * MIB, ctypes.c_void_p()
        checked(runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(size)), "cudaMalloc")
        held.append((place.value, len(seen)))
        seen.append(["alloc", size, hex(place.value)])
    for address, _ in held:
        checked(runtime.cudaFree(ctypes.c_void_p(address)), "cudaFree")
    return seen


def description(cudnn):
    """cuDNN's own description of the card, which it takes back where there is none."""
    device_properties, device_id, json_text = 38, 2700, 2702
    of_int32, of_char = 23, 24
    handle = ctypes.c_void_p()
    checked(cudnn.cudnnBackendCreateDescriptor(device_properties, ctypes.byref(handle)), "create")
    number = ctypes.c_int32(0)
    set_attribute = cudnn.cudnnBackendSetAttribute
    checked(
        set_attribute(handle, device_id, of_int32, ctypes.c_int64(1), ctypes.byref(number)), "set"
    )
    checked(cudnn.cudnnBackendFinalize(handle), "finalize")
    room, count = ctypes.create_string_buffer(1 << 16), ctypes.c_int64()
    checked(
        cudnn.cudnnBackendGetAttribute(
            handle, json_text, of_char, ctypes.c_int64(len(room)), ctypes.byref(count), room
        ),
        "get",
    )
    return room.raw[: count.value].decode().rstrip("\0")


def attempt(act):
    try:
        return act()
    except (RuntimeError, OSError, AttributeError) as why:
        return f"not known: {why}"


def main():
    runtime, driver = library("libcudart.so.13"), ctypes.CDLL("libcuda.so.1")
    checked(runtime.cudaFree(None), "cudaFree")
    found = {"memory_after_context": memory_info(runtime)}
    room = ctypes.create_string_buffer(PROPERTIES_BYTES + 1024)
    checked(runtime.cudaGetDeviceProperties(room, 0), "cudaGetDeviceProperties")
    found["name"] = room.raw[:256].split(b"\0")[0].decode()
    found["properties"] = room.raw[:PROPERTIES_BYTES].hex()
    found["runtime_attributes"] = attributes(runtime.cudaDeviceGetAttribute)
    found["driver_attributes"] = attributes(driver.cuDeviceGetAttribute)
    total, version = ctypes.c_size_t(), ctypes.c_int()
    checked(driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0), "cuDeviceTotalMem")
    checked(driver.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
    least, greatest = ctypes.c_int(), ctypes.c_int()
    runtime.cudaDeviceGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest))
    found["stream_priorities"] = [least.value, greatest.value]
    found["total_memory"], found["driver_version"] = total.value, version.value
    found["places"] = attempt(lambda: places(runtime))
    found["memory_after_places"] = memory_info(runtime)
    torch.zeros(1, device="cuda")
    found["memory_after_torch"] = memory_info(runtime)
    torch.zeros(64, 64, device="cuda") @ torch.zeros(64, 64, device="cuda")
    found["memory_after_cublas"] = [*memory_info(runtime), torch.cuda.memory_reserved()]
    torch.nn.functional.conv2d(
        torch.zeros(1, 8, 32, 32, device="cuda"), torch.zeros(8, 8, 3, 3, device="cuda")
    )
    found["memory_after_cudnn"] = [*memory_info(runtime), torch.cuda.memory_reserved()]
    found["torch"] = torch.__version__
    found["cudnn"] = attempt(lambda: description(library("libcudnn.so.9")))
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
