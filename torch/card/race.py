"""One thread captures graphs again and again, with a side stream and record_stream, while others
allocate, free, record and empty the cache on streams of their own. To be run on a card with one
allocator or another.

    python race.py [--seconds N]
    python -m larder race.py [--seconds N]

It ends quietly if nobody crashed and all data was what it should be, and prints one line of JSON
about it.
"""

import argparse
import ctypes
import json
import random
import threading
import time

import torch

ELEMENTS = 1 << 18


def capture_again_and_again(until, result):
    """Graphs on a stream and a side stream, each replayed a few times and compared."""
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    source = torch.arange(ELEMENTS, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    while time.monotonic() < until:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=main, capture_error_mode="thread_local"):
            total = torch.zeros_like(source)
            for factor in range(1, 5):
                part = source * factor
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    doubled = part + part
                    part.record_stream(side)
                del part
                main.wait_stream(side)
                doubled.record_stream(main)
                total += doubled
                del doubled
        with torch.cuda.stream(main):
            for _ in range(3):
                graph.replay()
            wrong = (total != source * 20).sum()
        main.synchronize()
        if wrong.item() != 0:
            raise AssertionError(f"{wrong.item()} elements of a graph are wrong")
        result["captures"] += 1
        del graph, total, wrong


def work(until, result, seed):
    """Tensors on two streams of this thread's own, filled, read by the other stream, compared and
    freed.
    """
    chance = random.Random(seed)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    live = []
    while time.monotonic() < until:
        if len(live) < 12 and chance.random() < 0.6:
            at, value = chance.randrange(2), chance.randrange(1 << 30)
            with torch.cuda.stream(streams[at]):
                live.append(
                    (
                        at,
                        value,
                        torch.full((chance.randrange(1, 4 * ELEMENTS),), value, device="cuda"),
                    )
                )
            result["tensors"] += 1
        elif live:
            at, value, tensor = live.pop(chance.randrange(len(live)))
            other = streams[1 - at]
            other.wait_stream(streams[at])
            with torch.cuda.stream(other):
                found = (tensor != value).sum()
                tensor.record_stream(other)
            del tensor
            other.synchronize()
            if found.item() != 0:
                raise AssertionError(f"{found.item()} elements are wrong")
        if chance.random() < 0.002:
            torch.cuda.empty_cache()
    live.clear()


def come_and_go(until, result):
    """Streams that are made by the driver, used from PyTorch and destroyed."""
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    larder_torch = forgetter()
    while time.monotonic() < until:
        handle = ctypes.c_void_p()
        if runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) != 0:
            raise AssertionError("no stream could be made")
        stream = torch.cuda.ExternalStream(handle.value)
        with torch.cuda.stream(stream):
            tensor = torch.full((ELEMENTS,), 7, device="cuda")
            wrong = (tensor != 7).sum()
        stream.synchronize()
        if wrong.item() != 0:
            raise AssertionError(f"{wrong.item()} elements are wrong")
        del tensor, wrong
        if larder_torch is not None:
            larder_torch.forget_stream(stream)
        if runtime.cudaStreamDestroy(handle) != 0:
            raise AssertionError("the stream could not be destroyed")
        result["streams"] += 1
        time.sleep(0.002)


def forgetter():
    """Larder, if the memory is Larder's: it wants to be told of streams that go."""
    try:
        import larder.torch
    except ImportError:
        return None
    return larder.torch if larder.torch.is_installed() else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    torch.cuda.init()
    until = time.monotonic() + options.seconds
    result = {"captures": 0, "tensors": 0, "streams": 0}
    failed = []

    def guarded(act, *words):
        try:
            act(until, result, *words)
        except BaseException as error:
            failed.append(repr(error))
            raise

    threads = [threading.Thread(target=guarded, args=(capture_again_and_again,))]
    threads += [threading.Thread(target=guarded, args=(work, seed)) for seed in (1, 2)]
    # PyTorch's own allocator has no way to be told that a stream is gone.
    if forgetter() is not None:
        threads.append(threading.Thread(target=guarded, args=(come_and_go,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"a thread failed: {failed[0]}")
    torch.cuda.synchronize()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
