"""Larder in the place of PyTorch's CUDA allocator.

    import larder
    larder.torch.install()   # before the first use of CUDA

Everything that PyTorch's own allocator offers goes on working: statistics, snapshots, graphs,
memory pools. `python -m larder train.py` does the same for a whole program and its child processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from larder import children, environment, prebuilt, signature
from larder.errors import InstallError, SettingsError
from larder.torch_facts import KNOWN, TorchFacts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from larder import sleeping, symmetric
    from larder.symmetric import SymmetricPool
else:
    # Every start of a program comes by here, and most have no use for this.
    def __getattr__(name):
        if name != "SymmetricPool":
            raise AttributeError(
                f"module 'larder.torch' has no attribute '{name}'",
                name=name,
                obj=sys.modules[__name__],
            )
        from larder.symmetric import SymmetricPool

        return SymmetricPool


__all__ = [
    "SymmetricPool",
    "compile_backend",
    "forget_stream",
    "install",
    "is_installed",
    "no_region",
    "plain_memory",
    "region",
    "set_keep_limit",
    "sleep",
    "sleep_stats",
    "symmetric_pool",
    "wake",
]

_library: ctypes.CDLL | None = None


def is_installed() -> bool:
    """Whether PyTorch's CUDA memory in this process comes from Larder."""
    return _library is not None and bool(_library.larder_torch_is_installed())


def install(*, children_too: bool = True) -> None:
    """Puts Larder in the place of PyTorch's CUDA allocator, for the rest of this process.

    It must come before the first use of CUDA. Doing it again does nothing. Settings are those of
    the environment: PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF, and LARDER_CONF for our own
    keys, which docs/torch.md lists. Where PyTorch has none, segments are expandable.

    The part that fits the installed PyTorch comes with the wheel. Where it does not, a C++ compiler
    makes it, the first time; it is kept in the cache. Processes that this one starts install Larder
    too, unless `children_too` is false.

    Raises `InstallError` or `SettingsError` with one sentence if it cannot be, and then PyTorch is
    as it was.
    """
    global _library
    if is_installed():
        return
    # PyTorch's own settings are PyTorch's affair, which knows them best.
    environment.check_device()
    environment.check_own(environment.OWN, os.environ.get(environment.OWN, ""))
    torch = _import_torch()
    # Where child processes install Larder as they import torch, that was it.
    if is_installed():
        return
    facts = _examine(torch)
    _refuse_used(torch)
    library = _load_part(facts)
    # PyTorch's own settings come from PyTorch; no text stands for what LARDER_CONF says.
    code = library.larder_torch_install(None)
    if code != 0:
        said = library.larder_torch_last_error()
        raise _refusal(said.decode(errors="replace") if said else f"the C++ part says {code}")
    _library = library
    own = os.environ.get(environment.OWN, "")
    signature.arrange(torch, signature.policy_named(own, facts.release))
    if children_too:
        children.arrange(os.environ)


def forget_stream(stream: Any) -> None:
    """Says that a stream is about to be destroyed: a `torch.cuda.ExternalStream`, or one of another
    library's.

    Waits for its work; Larder makes no call about it afterwards, and gives back what is cached for
    it. PyTorch's own streams live as long as the process and need none of this.

    `stream` is PyTorch's, CuPy's, Numba's, RMM's, or anything with `__cuda_stream__`; where it does
    not name its device by PyTorch's `device_index`, it is the current one's. Raises `InstallError`
    if Larder is not installed, and `ValueError` with one sentence if the stream cannot be
    forgotten: the default stream, or one that is captured.
    """
    from larder import streams

    library = _installed()
    device = getattr(stream, "device_index", None)
    if device is None:
        device = _import_torch().cuda.current_device()
    if library.larder_torch_forget_stream(device, streams.handle_of(stream)) != 0:
        raise ValueError(library.larder_torch_last_error().decode(errors="replace"))


@contextlib.contextmanager
def plain_memory() -> Iterator[None]:
    """Gives what this thread allocates inside plain memory, which any library can export or
    register.

    That is memory from which the driver makes IPC handles (`cudaIpcGetMemHandle`) and which RDMA
    libraries register, whatever the settings say of expandable segments. It is cut from segments,
    cached and given back like all other. Memory of CUDA graphs is plain by itself, unless
    `expandable_segments:True` was asked for.

        with larder.torch.plain_memory():
            cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

    What autograd allocates in a backward pass comes from threads of its own, and is not meant.
    Raises `InstallError` if Larder is not installed.
    """
    library = _installed()
    # The devices are opened by the first use of CUDA, which may be the one inside.
    _import_torch().cuda.init()
    _done(library.larder_torch_plain_begin())
    try:
        yield
    finally:
        _done(library.larder_torch_plain_end())


def region(tag: str, keep: str = "host") -> contextlib.AbstractContextManager[None]:
    """Gives what this thread allocates inside memory of a tag, which can sleep by itself.

        with larder.torch.region("weights"):
            model = Model().cuda()
        with larder.torch.region("kv_cache", keep="drop"):
            cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

        larder.torch.sleep()             # the GPU has its memory back
        larder.torch.wake(["weights"])   # the same tensors, with what was in them
        larder.torch.wake()

    `keep` says what becomes of contents: "host" keeps them in memory of the host, "drop" forgets
    them, "zero" has zeros afterwards. It goes for all memory of the tag. Regions can be nested, and
    the innermost counts. A CUDA graph that is captured in a region sleeps with its tag; a region
    inside a capture changes nothing. What autograd allocates in a backward pass comes from threads
    of its own, and is not meant. Raises `InstallError` if Larder is not installed.
    """
    from larder import sleeping

    library = _installed()
    _import_torch().cuda.init()
    return sleeping.region(library, _done, tag, keep)


def no_region() -> contextlib.AbstractContextManager[None]:
    """Gives what this thread allocates inside memory of no tag, in whatever region it is."""
    from larder import sleeping

    library = _installed()
    _import_torch().cuda.init()
    return sleeping.leave(library, _done)


def sleep(
    tags: str | Iterable[str] | None = None, *, keep: str | None = None, device: int | None = None
) -> sleeping.Slept:
    """Puts memory to sleep: its pages go back to the GPU, and its addresses stay.

    Without `tags` that is all memory, with tags and without, as far as it is expandable; plain
    segments stay, and are counted in what this returns. What is cached goes back too. Contents are
    kept as the tags say, or as `keep` does; of memory of no tag they are kept. Nothing may use the
    memory until it wakes, neither a kernel nor a graph; tensors may be freed. It waits for all work
    of the GPU, which is the current one unless `device` names another. Raises `RuntimeError` with
    one sentence if contents cannot be kept, or inside a capture; then nothing sleeps that was
    awake.
    """
    from larder import sleeping

    return sleeping.sleep(_installed(), _done, _device_or_current(device), tags, keep)


def wake(tags: str | Iterable[str] | None = None, *, device: int | None = None) -> None:
    """Wakes memory: at the same addresses, with its contents as far as they are kept.

    If the GPU has no room for all of it, `RuntimeError` says how much is missing, and all sleeps
    on.
    """
    from larder import sleeping

    sleeping.wake(_installed(), _done, _device_or_current(device), tags)


def sleep_stats(device: int | None = None) -> sleeping.SleepStats:
    """What sleeps on a GPU. PyTorch's own statistics go on counting the tensors as allocated, and
    their memory as not reserved."""
    from larder import sleeping

    return sleeping.stats(_installed(), _done, _device_or_current(device))


def set_keep_limit(limit_bytes: int, device: int | None = None) -> None:
    """Keeps at most so much of the host's memory for contents of the next sleep, from now on; 0
    gives all of it back. Without a limit all is kept, because to pin memory takes long."""
    from larder import sleeping

    sleeping.set_limit(_installed(), _done, _device_or_current(device), limit_bytes)


def _device_or_current(device: int | None) -> int:
    torch = _import_torch()
    torch.cuda.init()
    return torch.cuda.current_device() if device is None else device


def _installed() -> ctypes.CDLL:
    if _library is None or not is_installed():
        if "torch" not in sys.modules and os.environ.get("LARDER_INSTALL") == "1":
            raise InstallError("Larder is installed when the program imports torch: do that first")
        raise InstallError(
            "Larder is not installed in this process: larder.torch.install() does it"
        )
    return _library


def _done(code: int) -> None:
    """Raises the sentence of a call to the C++ part that failed."""
    if code != 0 and _library is not None:
        raise RuntimeError(_library.larder_torch_last_error().decode(errors="replace"))


def symmetric_pool(
    group: Any = None,
    *,
    device: Any = None,
    growth: int = 0,
    exchange: symmetric.Exchange | None = None,
) -> SymmetricPool:
    """A pool of symmetric memory with the same offsets on every rank of the group, split as finely
    as any pool.

    Its segments come from PyTorch's symmetric memory, so that `rendezvous` accepts the tensors in
    it. Every rank makes it, and makes the same requests and frees in it in the same order;
    `SymmetricPool.seal` proves that they did, or tells every rank the first call that differs,
    before a collective could return wrong numbers.

        pool = larder.torch.symmetric_pool(group)
        with pool:
            tensor = torch.empty(1 << 20, device="cuda")
        handle = pool.rendezvous(tensor)

    Segments have at least `growth` bytes. `exchange` gives bytes to all ranks and returns what each
    of them gave; without it, `torch.distributed.all_gather_object` does. Raises `InstallError` if
    Larder is not installed.
    """
    from larder import symmetric

    return symmetric.make(_installed(), group, device, growth, exchange)


def _refusal(sentence: str) -> InstallError | SettingsError:
    """Why the C++ part does not install Larder. What PyTorch says of its settings is told as we
    tell it.
    """
    unread = re.fullmatch(
        r"PyTorch cannot read PYTORCH_\w+(?: or PYTORCH_\w+)?: (.*)", sentence, re.DOTALL
    )
    variables = environment.torch_variables()
    if unread and variables:
        return SettingsError(f"{' or '.join(variables)}: PyTorch cannot read it: {unread[1]}")
    return InstallError(f"Larder cannot be installed: {sentence}")


def compile_backend() -> str:
    """Compiles the C++ part for the installed PyTorch, if neither the package nor the cache has it;
    the library's path.

    `install` does it by itself. This is for whoever wants it done beforehand, as in an image.
    """
    from larder import backend

    facts = _examine(_import_torch())
    path = prebuilt.path_for(facts)
    if path is None:
        return os.fspath(backend.build(facts))
    print(
        f"larder: nothing needs compiling: the package brings the C++ part for torch "
        f"{facts.version}",
        file=sys.stderr,
    )
    return path


def _install_in_child() -> None:
    """What `sitecustomize` calls; the environment is arranged already.

    A process that asks for the driver's own allocator gets it: it was started to run on that.
    """
    torch = _import_torch()
    _examine(torch)
    if torch.cuda.get_allocator_backend() == "cudaMallocAsync":
        print(
            "larder: this process asks for backend:cudaMallocAsync and goes without Larder",
            file=sys.stderr,
        )
        return
    install(children_too=False)


def _import_torch() -> ModuleType:
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        raise InstallError(f"PyTorch is not installed for {sys.executable}: pip install torch")
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise InstallError(f"PyTorch cannot be imported: {error}") from error


def _examine(torch: ModuleType) -> TorchFacts:
    """Refuses a PyTorch that Larder cannot serve, before anything is touched."""
    version = getattr(torch, "version", None)
    if getattr(version, "hip", None) is not None:
        raise InstallError(f"torch {torch.__version__} is made for ROCm, and Larder is for CUDA")
    if getattr(version, "cuda", None) is None:
        raise InstallError(f"torch {torch.__version__} is made without CUDA: install one with CUDA")
    facts = TorchFacts.of(torch)
    oldest = KNOWN[0]
    if facts.release < oldest:
        raise InstallError(
            f"torch {facts.version} is too old: Larder needs torch {oldest[0]}.{oldest[1]} or newer"
        )
    return facts


def _refuse_used(torch: ModuleType) -> None:
    """Refuses a process in which it is too late."""
    if torch.cuda.is_initialized():
        raise InstallError(
            "CUDA is already in use in this process: install Larder before the first use of CUDA, "
            "best right after importing torch"
        )
    name = torch.cuda.get_allocator_backend()
    if name != "native":
        raise InstallError(f"PyTorch's CUDA allocator is already '{name}' in this process")


def _load_part(facts: TorchFacts) -> ctypes.CDLL:
    path = prebuilt.path_for(facts)
    if path is None:
        return _load_built(facts)
    # It calls what the native module exports, and finds it by name where that is loaded.
    importlib.import_module("larder._native")
    library = _load(path)
    prebuilt.check(library, path, facts)
    return library


def _load_built(facts: TorchFacts) -> ctypes.CDLL:
    from larder import backend

    path = backend.build(facts)
    try:
        return _load(path)
    except InstallError:
        # Another process may have cleared it away meanwhile.
        if backend.is_whole(path):
            raise
        return _load(backend.build(facts))


def _load(path: str | os.PathLike[str]) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(os.fspath(path))
    except OSError as error:
        raise InstallError(f"the C++ part cannot be loaded: {error}") from error
    from larder import sleeping

    try:
        library.larder_torch_install.argtypes = [ctypes.c_char_p]
        library.larder_torch_install.restype = ctypes.c_int
        library.larder_torch_last_error.argtypes = []
        library.larder_torch_last_error.restype = ctypes.c_char_p
        library.larder_torch_forget_stream.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.larder_torch_forget_stream.restype = ctypes.c_int
        library.larder_torch_is_installed.argtypes = []
        library.larder_torch_is_installed.restype = ctypes.c_int
        library.larder_torch_plain_begin.argtypes = []
        library.larder_torch_plain_end.argtypes = []
        sleeping.declare(library)
    except AttributeError as error:
        raise InstallError(f"{os.fspath(path)} is not Larder's C++ part: {error}") from error
    return library
