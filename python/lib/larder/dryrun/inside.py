"""The process of a dry run: prepares PyTorch, runs the program, writes the recording and says what
came of it.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import pickle
import runpy
import sys
import threading
import time
import traceback
from typing import Any

from larder.dryrun import page, place
from larder.dryrun.options import VARIABLE, Options
from larder.dryrun.reads import Reads
from larder.errors import Error

__all__: list[str] = []

ENTRIES_MAX = 20_000_000
LARGE_ELEMENTS = 1 << 16


class Enough(BaseException):
    """The program made as many steps as it should."""


def know_values(torch: Any, reads: Reads) -> ctypes.CDLL:
    """From now on small tensors are computed, in this thread and in those that it starts.

    The rest waits until the program itself comes to the card: until then it may set what the
    allocator reads when it begins, and only an allocator that has begun tells of new memory.
    """
    library = ctypes.CDLL(place.part(torch.__version__))

    def begin() -> None:
        library.larder_dry_begin(reads.callback)
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=ENTRIES_MAX
        )

    torch.cuda._lazy_call(begin)
    library.larder_dry_enter(1)
    run = threading.Thread.run

    def enter_and_run(self: threading.Thread) -> None:
        library.larder_dry_enter(1)
        run(self)

    threading.Thread.run = enter_and_run  # type: ignore[method-assign]
    return library


def be_one_of_many(torch: Any, options: Options) -> None:
    """Process groups are made of ranks that are not there, and whose collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed = torch.distributed
    begin = distributed.init_process_group

    def begin_alone(*_: Any, **more: Any) -> None:
        kept = {name: more[name] for name in ("timeout", "device_id") if name in more}
        begin("fake", store=FakeStore(), rank=options.rank, world_size=options.of, **kept)

    distributed.init_process_group = begin_alone
    distributed.distributed_c10d.init_process_group = begin_alone


def leave_unfilled(torch: Any) -> None:
    """What torch.nn.init fills on the CPU stays as the host gives it: pages that nobody has
    touched.
    """

    def unless_large(fill: Any) -> Any:
        def act(tensor: Any, *words: Any, **more: Any) -> Any:
            if tensor.device.type == "cpu" and tensor.numel() > LARGE_ELEMENTS:
                return tensor
            return fill(tensor, *words, **more)

        return act

    for name, fill in vars(torch.nn.init).copy().items():
        if name.endswith("_") and not name.startswith("_") and callable(fill):
            setattr(torch.nn.init, name, unless_large(fill))


def stop_after(torch: Any, steps: int) -> None:
    """Ends the program after so many steps of an optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done = 0

    def count(*_: Any) -> None:
        nonlocal done
        done += 1
        if done == steps:
            raise Enough

    register_optimizer_step_post_hook(count)


def run_program(options: Options, reads: Reads) -> tuple[int, str | None]:
    """The program's exit code, and how it ended if not by itself."""
    torch = sys.modules["torch"]
    name, *arguments = options.program[1:] if options.program[0] == "-m" else options.program
    sys.argv = [name, *arguments]
    try:
        if options.program[0] == "-m":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
            runpy.run_path(name, run_name="__main__")
    except Enough:
        return 0, f"after {options.stop_after} steps, as --stop-after says"
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return code, None if code == 0 else f"with exit code {code}"
    except torch.OutOfMemoryError as why:
        traceback.print_exc()
        return 4, f"out of memory: {str(why).splitlines()[0]}"
    except BaseException as why:
        if reads.stopped is not None:
            return 5, None
        traceback.print_exc()
        return 1, f"by an error: {type(why).__name__}"
    return 0, None


def write(torch: Any, path: str) -> dict[str, Any]:
    """Writes the recording."""
    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    opened = gzip.open(path, "wb", compresslevel=6) if path.endswith(".gz") else open(path, "wb")
    with opened as file:
        pickle.dump(snapshot, file)
    return snapshot


def main() -> int:
    """Runs the program; the exit code."""
    options = Options.of_text(os.environ[VARIABLE])
    reads = Reads(options)
    import torch

    try:
        library = know_values(torch, reads)
    except Error as error:
        print(f"larder: {error}", file=sys.stderr)
        return 1
    if options.rank is not None:
        be_one_of_many(torch, options)
    if options.no_fill:
        leave_unfilled(torch)
    if options.stop_after is not None:
        stop_after(torch, options.stop_after)
    begin = time.monotonic()
    code, ended = run_program(options, reads)
    library.larder_dry_enter(0)
    elapsed_s = time.monotonic() - begin
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    # What the program holds now was free when it began.
    room = (free + torch.cuda.memory_reserved(), total)
    snapshot = write(torch, options.recording)
    result = page.Result(options, reads, snapshot, ended, room, elapsed_s)
    sys.stdout.flush()
    result.show()
    return result.exit_code(code)


if __name__ == "__main__":
    sys.exit(main())
