"""CuPy, Numba and RMM beside PyTorch, as far as it shows without them: small stand-ins call ours as
the libraries do.
"""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from larder import UsageError, streams
from stand_in import STAND_IN, FakeTorch, Run, Script

REPOSITORY = Path(__file__).resolve().parents[2]

Card = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs the program for a card with some words."""

# It says each call, and gives memory of the host, of which there is a mebibyte.
CALLS = r"""
static bool is_full = false;
static void say(const char *what, void *ptr, void *stream) {
    std::printf("%s %d on %zu\n", what, ptr != nullptr, (size_t)stream);
    std::fflush(stdout);
}
extern "C" void *larder_torch_take(int device, size_t size, void *stream) {
    is_full = size > 1 << 20;
    if (is_full || device != 0) {
        refusal = is_full ? "CUDA out of memory. Tried" : "there is no such GPU here";
        return nullptr;
    }
    say("take", &is_full, stream);
    return std::malloc(size);
}
extern "C" int larder_torch_was_out_of_memory() { return is_full; }
extern "C" int larder_torch_put(void *ptr) { say("put", ptr, nullptr); std::free(ptr); return 0; }
extern "C" int larder_torch_record_use(void *ptr, void *stream) {
    say("use", ptr, stream);
    return 0;
}
"""

# What PyTorch has to have for them.
TORCH = """
import contextlib
class device:
    __init__ = lambda self, index: None
    __enter__ = lambda self: None
    __exit__ = lambda self, *words: None
cuda.init = staticmethod(lambda: print("init", flush=True))
cuda.device_count = staticmethod(lambda: 1)
cuda.current_device = staticmethod(lambda: 0)
cuda.device = device
cuda.mem_get_info = staticmethod(lambda device: (3, 8))
"""

CUPY = """
from types import SimpleNamespace
class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id):
        self.ptr, self.size, self._owner = ptr, size, owner
class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr
class OutOfMemoryError(MemoryError):
    def __init__(self, size, total):
        super().__init__(f"Out of memory allocating {size:,} bytes")
class Stream:
    def __init__(self, ptr, foreign=None):
        self.ptr, self._foreign_stream_ref = ptr, foreign
    def __del__(self):
        print("destroy", self.ptr, flush=True)
state = {"stream": Stream(0), "allocator": lambda size: "CuPy's own"}
cuda = SimpleNamespace(
    UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer, Stream=Stream,
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=SimpleNamespace(getDevice=lambda: 0),
    get_current_stream=lambda: state["stream"],
    get_allocator=lambda: state["allocator"],
    set_allocator=lambda allocator: state.update(allocator=allocator),
)
class Array:
    def __init__(self, size):
        self.data = state["allocator"](size)
"""

NUMBA = """
import weakref
class HostOnlyCUDAMemoryManager:
    def __init__(self, context):
        self.context = context
class MemoryPointer:
    def __init__(self, context, pointer, size, finalizer):
        self.device_pointer = pointer.value
        weakref.finalize(self, finalizer)
    owner = property(lambda self: self)
"""

NUMBA_DRIVER = """
import collections
class CudaAPIError(Exception):
    def __init__(self, code, msg):
        self.code, self.msg = code, msg
        super().__init__(code, msg)
class GetIpcHandleMixin:
    def get_ipc_handle(self, memory):
        raise CudaAPIError(1, "invalid argument")
MemoryInfo = collections.namedtuple("MemoryInfo", "free,total")
"""

RMM_MR = """
resources = {0: "RMM's own"}
get_per_device_resource = resources.__getitem__
set_per_device_resource = resources.__setitem__
class CallbackMemoryResource:
    def __init__(self, allocate, deallocate):
        self.allocate, self.deallocate = allocate, deallocate
"""

FILES = {
    "cupy": {"cupy/__init__.py": CUPY},
    "numba": {
        "numba/__init__.py": "class config:\n    CUDA_PER_THREAD_DEFAULT_STREAM = False\n",
        "numba/cuda/__init__.py": NUMBA,
        "numba/cuda/cudadrv/__init__.py": "",
        "numba/cuda/cudadrv/driver.py": NUMBA_DRIVER,
    },
    "rmm": {"rmm/__init__.py": "from rmm import mr\n", "rmm/mr.py": RMM_MR},
}


class Neighbours:
    """Runs programs with stand-ins for PyTorch and one of the libraries."""

    def __init__(self, run_python: Run, script: Script, fake_torch: FakeTorch) -> None:
        self.run_python, self.script, self.fake_torch = run_python, script, fake_torch

    def make(self, library: str | None) -> None:
        self.fake_torch.make(source=STAND_IN + CALLS)
        with (self.fake_torch.folder / "torch" / "__init__.py").open("a") as file:
            file.write(TORCH)
        for name, text in FILES[library].items() if library else ():
            path = self.fake_torch.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def told(self, text: str, *before: str) -> list[str]:
        """What a program prints, which ends well and complains of nothing."""
        name = self.script(textwrap.dedent(text))
        done = self.run_python("-u", *before, name)
        complaints = [
            line for line in done.stderr.splitlines() if "compiling the C++ part" not in line
        ]
        assert done.returncode == 0 and not complaints, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def neighbours(run_python: Run, script: Script, fake_torch: FakeTorch) -> Neighbours:
    return Neighbours(run_python, script, fake_torch)


ON_LARDER = ("-m", "larder")


def test_cupy_takes_memory_for_its_current_stream(neighbours: Neighbours) -> None:
    neighbours.make("cupy")
    program = """
        import cupy, larder.cupy
        before = cupy.state["allocator"]
        for _ in range(2):
            larder.cupy.install()
        print(larder.cupy.is_installed())
        array = cupy.Array(4096)
        null, cupy.state["stream"] = cupy.state["stream"], cupy.Stream(7)
        other = cupy.Array(600)
        nothing = cupy.Array(0)
        print(nothing.data.ptr)
        larder.cupy.record_stream(array, 9)
        del array, other
        larder.cupy.uninstall()
        print(larder.cupy.is_installed(), cupy.state["allocator"] is before)
    """
    told = neighbours.told(program, *ON_LARDER)
    expected = [
        "init",
        "True",
        "take 1 on 0",
        "take 1 on 7",
        "0",
        "use 1 on 9",
        "put 1 on 0",
        "put 1 on 0",
    ]
    assert told[:8] == expected
    assert told[8] == "False True"


def test_cupy_is_told_what_is_wrong_in_its_own_words(neighbours: Neighbours) -> None:
    neighbours.make("cupy")
    program = """
        import cupy, larder.cupy
        larder.cupy.install()
        def told(act):
            try:
                act()
            except Exception as error:
                print(type(error).__name__, isinstance(error, MemoryError), error)
        told(lambda: cupy.Array(2 << 20))
        cupy.state["stream"].ptr = 2
        told(lambda: cupy.Array(1))
        told(lambda: larder.cupy.record_stream(object(), 0))
        cupy.state["stream"].ptr = 0
        cupy.Array(1)
    """
    _, full, per_thread, foreign, *well = neighbours.told(program, *ON_LARDER)
    assert full == (
        "OutOfMemoryError True Out of memory allocating 2,097,152 bytes. CUDA out of memory. Tried"
    )
    assert per_thread.startswith(
        "UsageError False the per-thread default stream is another one in each thread"
    )
    assert foreign.startswith("UsageError False the array's memory is not Larder's")
    assert well[:2] == ["take 1 on 0", "put 1 on 0"], "and then all is well"


def test_a_stream_of_cupys_is_forgotten_before_it_is_destroyed(neighbours: Neighbours) -> None:
    neighbours.make("cupy")
    source = neighbours.fake_torch.sources / "backend.cpp"
    said = source.read_text().replace(
        'refusal = "stream 0', 'say("forget", stream, stream); refusal = "stream 0', 1
    )
    source.write_text("static void say(const char *, void *, void *);\n" + said)
    program = """
        import cupy, larder.cupy
        larder.cupy.install()
        def use(stream):
            cupy.state["stream"] = stream
            cupy.Array(1)
            cupy.state["stream"] = null
        null = cupy.state["stream"]
        use(cupy.Stream(7))
        use(cupy.Stream(8, foreign="somebody's"))
        cupy.Stream(9)
        print("end")
    """
    told = neighbours.told(program, *ON_LARDER)
    told = [line for line in told[: told.index("end")] if line.startswith(("forget", "destroy"))]
    assert told == ["forget 1 on 7", "destroy 7", "destroy 8", "destroy 9"], (
        "who never had memory is not waited for"
    )


def test_numba_takes_memory_for_the_stream_that_is_said(neighbours: Neighbours) -> None:
    neighbours.make("numba")
    program = """
        import larder.numba
        from types import SimpleNamespace as Named
        from numba.cuda.cudadrv import driver
        manager = larder.numba._numba_memory_manager(context=Named(device=Named(id=0)))
        print(manager.interface_version)
        manager.initialize()
        first = manager.memalloc(8)
        class Stream:
            handle = None
        Stream.handle = 7
        with larder.numba.allocating_on(Stream):
            second = manager.memalloc(8)
        third = manager.memalloc(8)
        larder.numba.record_stream(Named(gpu_data=first), Stream)
        print(manager.get_memory_info())
        for size in (2 << 20, 0):
            try:
                manager.memalloc(size)
            except driver.CudaAPIError as error:
                print(error.code, error.msg)
        try:
            manager.get_ipc_handle(first)
        except driver.CudaAPIError as error:
            print(error.code, "plain_memory" in error.msg)
        del first, second
        print("end")
    """
    assert neighbours.told(program, *ON_LARDER) == [
        *(
            "1",
            "init",
            "take 1 on 0",
            "take 1 on 7",
            "take 1 on 0",
            "use 1 on 7",
            "MemoryInfo(free=3, total=8)",
        ),
        *("2 CUDA out of memory. Tried", "1 no memory of 0 bytes can be had", "1 True"),
        *("put 1 on 0", "put 1 on 0", "end", "put 1 on 0"),
    ]


def test_numba_with_per_thread_streams_is_refused(neighbours: Neighbours) -> None:
    neighbours.make("numba")
    program = """
        import larder.numba, numba
        numba.config.CUDA_PER_THREAD_DEFAULT_STREAM = True
        try:
            larder.numba.Manager(context=None).initialize()
        except larder.UsageError as error:
            print(error)
    """
    assert "per-thread default stream" in neighbours.told(program, *ON_LARDER)[-1]


def test_rmm_takes_memory_for_the_stream_that_it_names(neighbours: Neighbours) -> None:
    neighbours.make("rmm")
    program = """
        import rmm, larder.rmm
        class Stream:
            def __init__(self, handle):
                self.handle = handle
            def __cuda_stream__(self):
                return (0, self.handle)
        for _ in range(2):
            larder.rmm.install()
        print(larder.rmm.is_installed())
        resource = rmm.mr.get_per_device_resource(0)
        print(resource is larder.rmm.resource())
        block = resource.allocate(4096, Stream(1))
        class Buffer:
            ptr = block
        larder.rmm.record_stream(Buffer, Stream(9))
        for nothing in (object(), Stream(9)):
            try:
                larder.rmm.record_stream(nothing, Stream(9))
            except larder.UsageError as error:
                print(error)
        resource.deallocate(block, 4096, Stream(7))
        print(resource.allocate(0, Stream(0)))
        resource.deallocate(0, 0, Stream(0))
        for size, handle in ((2 << 20, 0), (8, 2)):
            try:
                resource.allocate(size, Stream(handle))
            except Exception as error:
                print(isinstance(error, MemoryError), error)
        larder.rmm.uninstall()
        print(larder.rmm.is_installed(), rmm.mr.get_per_device_resource(0))
    """
    told = neighbours.told(program, *ON_LARDER)
    foreign = [f"{kind} is no buffer of RMM's: it has no ptr" for kind in ("object", "Stream")]
    expected = [
        "init",
        "True",
        "True",
        "take 1 on 0",
        "use 1 on 9",
        *foreign,
        "use 1 on 7",
        "put 1 on 0",
        "0",
    ]
    assert told[:10] == expected
    assert told[10] == "True CUDA out of memory. Tried"
    assert told[11].startswith("False the per-thread default stream")
    assert told[12:] == ["False RMM's own"]


@pytest.mark.parametrize("library", ["cupy", "numba", "rmm"])
def test_what_is_missing_is_said(neighbours: Neighbours, library: str) -> None:
    program = """
        import larder.LIBRARY as ours
        ours.install() if hasattr(ours, "install") else ours.Manager(context=None).initialize()
    """
    program = textwrap.dedent(program.replace("LIBRARY", library))
    neighbours.make(None)
    done = neighbours.run_python(
        neighbours.script(f"import sys\nsys.modules[{library!r}] = None\n" + program)
    )
    assert (
        f"pip install {dict(cupy='cupy', numba='numba-cuda', rmm='rmm')[library]}"
        in done.stderr.splitlines()[-1]
    )
    for name, text in FILES[library].items():
        neighbours.script(text, f"site/{name}")
    done = neighbours.run_python(neighbours.script(program))
    assert (
        "InstallError: there is no cache to share: PyTorch's memory in this process is not Larder's"
        in done.stderr
    )
    done = neighbours.run_python(*ON_LARDER, neighbours.script(program))
    assert done.returncode == 0, done.stderr


def test_blocks_may_outlive_everything(neighbours: Neighbours) -> None:
    """Arrays in cycles and in modules' hands are given back as the interpreter goes, or not at all,
    without a word.
    """
    neighbours.make("cupy")
    program = """
        import os, sys, cupy, larder.cupy
        larder.cupy.install()
        class Cycle:
            pass
        cycle = Cycle()
        cycle.itself, cycle.array = cycle, cupy.Array(8)
        sys.modules["kept"] = [cupy.Array(8) for _ in range(3)]
        if os.fork() == 0:
            sys.exit()
        assert os.wait()[1] == 0
    """
    told = neighbours.told(program, *ON_LARDER)
    assert told.count("take 1 on 0") == 4


def test_anybodys_stream_has_a_handle() -> None:
    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 11)

    class Torchs:
        cuda_stream = 12

    class Cupys:
        ptr = 13

    class Numbas:
        class handle:
            value = None

    found = [
        streams.handle_of(stream)
        for stream in (None, 1, 10, Protocol(), Torchs(), Cupys(), Numbas())
    ]
    assert found == [0, 0, 10, 11, 12, 13, 0]
    with pytest.raises(UsageError, match="object is no stream"):
        streams.handle_of(object())
    with pytest.raises(UsageError, match="the per-thread default stream"):
        streams.handle_of(2)


# What the program for a card finds in the place of its libraries and of what must hold with them.
CARD = {
    "libraries.py": """
        from types import SimpleNamespace
        class Failure(Exception):
            pass
        def first_line(error):
            return f"{type(error).__name__}: {error}"
        def find(needed):
            found = [SimpleNamespace(name=name) for name in ("torch", "cupy")]
            return found, [("rmm", "not here: pip install it", "rmm" in needed)]
        """,
    "sharing.py": """
        import os, time, libraries
        class Skipped(Exception):
            pass
        def serves(found, options):
            return f"{found[1].name} was served"
        def waits(found, options):
            while True:
                time.sleep(1)
        def statistics(found, options):
            os._exit(7)
        def stacks(found, options):
            raise libraries.Failure("there are no stacks")
        def compiles(found, options):
            raise Skipped("there is nothing to compile with")
        """,
}


@pytest.fixture
def card(neighbours: Neighbours) -> Card:
    neighbours.make(None)
    program = (REPOSITORY / "torch/card/neighbours.py").read_text()
    short = program.replace('"waits": 30', '"waits": 1')
    assert short != program
    for name, text in {**CARD, "neighbours.py": short}.items():
        neighbours.script(text, name)
    return lambda *words: neighbours.run_python(*ON_LARDER, "neighbours.py", *words)


def test_what_hangs_or_dies_on_a_card_is_told_and_the_others_go_on(card: Card) -> None:
    done = card("serves", "waits", "statistics", "stacks", "compiles", "--need", "cupy", "rmm")
    assert done.returncode == 1, done.stderr
    assert "in waits\n" in done.stderr, "where it hung"
    told = done.stdout.splitlines()
    died = "the process ended in it with"
    assert told[told.index("| torch and cupy | result | what was seen |") + 2 :] == [
        "| rmm | FAILED | not here: pip install it |",
        "| serves | passed | cupy was served |",
        f"| waits | FAILED | {died} 1, within 1 s: what it said is above |",
        f"| statistics | FAILED | {died} 7, within 20 s: what it said is above |",
        "| stacks | FAILED | Failure: there are no stacks |",
        "| compiles | skipped | there is nothing to compile with |",
    ]


def test_a_card_where_all_holds_says_so(card: Card) -> None:
    done = card("serves", "compiles", "--need", "cupy")
    assert done.returncode == 0, done.stderr
    assert "| rmm | skipped | not here: pip install it |" in done.stdout.splitlines()


def test_a_card_has_no_more_time_than_it_is_given(card: Card) -> None:
    done = card("waits", "serves", "--limit", "0")
    assert done.returncode == 1
    assert "| serves | FAILED | not run: the 0 s for all were over |" in done.stdout.splitlines()


def test_there_is_a_page_on_them() -> None:
    page = (REPOSITORY / "docs/neighbours.md").read_text()
    for module in ("cupy", "numba", "rmm"):
        assert f"larder.{module}" in page
