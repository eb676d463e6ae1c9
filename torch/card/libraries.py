"""The libraries that share PyTorch's cache in neighbours.py, each behind the same few calls: how it
makes memory on a stream, where that lies, and how it fills it. A stream is whoever's: PyTorch's,
the library's own, or a handle."""

import warnings

import torch

import larder
from larder.streams import handle_of


class Failure(Exception):
    """Something is not as it should be."""


def expect(holds, sentence):
    if not holds:
        raise Failure(sentence)


def first_line(error):
    return f"{type(error).__name__}: {(str(error) or repr(error)).splitlines()[0]}"


class Handle:
    """A stream of anybody's, as other libraries take it."""

    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return (0, handle_of(self.stream))


def of_torch(stream):
    """A stream of anybody's, as PyTorch takes it."""
    return (
        stream
        if isinstance(stream, torch.cuda.Stream)
        else torch.cuda.ExternalStream(handle_of(stream))
    )


def count_wrong(words, value):
    """How many words are not this value, once the current stream is done with them. The host
    compares, so that it needs no kernel of anybody's."""
    return int((words.cpu() != value).sum())


class Torch:
    """A library; this one is PyTorch itself."""

    name = "torch"
    is_full = torch.OutOfMemoryError
    # Whether streams that it makes are forgotten without a word from the program.
    forgets_streams = False

    def make(self, size, stream):
        with torch.cuda.stream(of_torch(stream)):
            return torch.empty(size, dtype=torch.uint8, device="cuda")

    def address(self, made):
        return made.data_ptr()

    def words(self, made):
        """The memory as whole words of 64 bits, as a tensor that keeps it alive."""
        return (
            torch.as_tensor(made, device="cuda")
            .view(torch.uint8)[: self.size(made) // 8 * 8]
            .view(torch.int64)
        )

    def size(self, made):
        return made.nbytes

    def fill(self, made, value, stream):
        with torch.cuda.stream(of_torch(stream)):
            self.words(made).fill_(value)

    def record_stream(self, made, stream):
        made.record_stream(of_torch(stream))

    def new_stream(self):
        """A stream that is destroyed with the last reference to it; none where its streams live for
        ever.
        """
        return None


class Cupy(Torch):
    name = "cupy"
    forgets_streams = True

    def __init__(self):
        import cupy

        import larder.cupy

        self.cupy, self.ours = cupy, larder.cupy
        self.is_full = cupy.cuda.memory.OutOfMemoryError
        larder.cupy.install()
        larder.cupy.install()
        expect(larder.cupy.is_installed(), "larder.cupy.install() did not install")
        self.has_kernels = self.fills()

    def fills(self):
        """Whether its kernels run on this card."""
        words = self.cupy.empty(16, dtype=self.cupy.int64)
        try:
            words.fill(7)
            return bool((words.get() == 7).all())
        except Exception as error:
            print(
                f"CuPy's kernels do not run here, and PyTorch fills its arrays: "
                f"{first_line(error)}",
                flush=True,
            )
            return False

    def on(self, stream):
        streams = self.cupy.cuda
        return (
            stream
            if isinstance(stream, streams.Stream)
            else streams.Stream.from_external(Handle(stream))
        )

    def make(self, size, stream):
        with self.on(stream):
            return self.cupy.empty(size, dtype=self.cupy.uint8)

    def address(self, made):
        return made.data.ptr

    def fill(self, made, value, stream):
        if not self.has_kernels:
            return super().fill(made, value, stream)
        with self.on(stream):
            made[: made.size // 8 * 8].view(self.cupy.int64).fill(value)

    def record_stream(self, made, stream):
        self.ours.record_stream(made, stream)

    def new_stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)


class Numba(Torch):
    name = "numba"

    def __init__(self):
        import numpy
        from numba import cuda

        import larder.numba

        self.cuda, self.numpy, self.ours = cuda, numpy, larder.numba
        self.is_full = cuda.cudadrv.driver.CudaAPIError
        cuda.set_memory_manager(larder.numba.Manager)
        warnings.filterwarnings("ignore", message="Grid size")
        self.kernel = self.compiled()

    def compiled(self):
        """A kernel that fills words, or none where Numba's compiler does not go with this
        driver.
        """
        cuda = self.cuda
        words = cuda.device_array(16, dtype=self.numpy.int64)

        @cuda.jit
        def fill(words, value):
            start = cuda.grid(1)
            for index in range(start, words.size, cuda.gridsize(1)):
                words[index] = value

        try:
            fill[1, 16](words, 7)
            expect((words.copy_to_host() == 7).all(), "Numba's kernel filled nothing")
            return fill
        except Failure:
            raise
        except Exception as error:
            print(
                f"Numba's kernels do not run here, and PyTorch fills its arrays: "
                f"{first_line(error)}",
                flush=True,
            )
            return None

    def make(self, size, stream):
        with self.ours.allocating_on(stream):
            return self.cuda.device_array(size, dtype=self.numpy.uint8)

    def address(self, made):
        return int(made.gpu_data.device_pointer)

    def fill(self, made, value, stream):
        if self.kernel is None:
            return super().fill(made, value, stream)
        words = made[: made.size // 8 * 8].view(self.numpy.int64)
        handle = handle_of(stream)
        self.kernel[64, 256, self.cuda.external_stream(handle) if handle else 0](words, value)

    def record_stream(self, made, stream):
        self.ours.record_stream(made, stream)

    def new_stream(self):
        return self.cuda.stream()


class Rmm(Torch):
    name = "rmm"
    is_full = MemoryError

    def __init__(self):
        import rmm
        from rmm.pylibrmm.stream import Stream

        import larder.rmm

        self.rmm, self.stream, self.ours = rmm, Stream, larder.rmm
        larder.rmm.install()
        larder.rmm.install()
        expect(larder.rmm.is_installed(), "larder.rmm.install() did not install")

    def make(self, size, stream):
        named = stream if isinstance(stream, self.stream) else self.stream(Handle(stream))
        return self.rmm.DeviceBuffer(size=size, stream=named)

    def address(self, made):
        return made.ptr

    def size(self, made):
        return made.size

    def record_stream(self, made, stream):
        self.ours.record_stream(made, stream)

    def new_stream(self):
        return self.stream()


NAMES = {library.name: library for library in (Cupy, Numba, Rmm)}


def find(needed):
    """The libraries that are here, PyTorch first, and sentences about those that are not, with
    whether that is a failure.
    """
    found, missing = [Torch()], []
    for name, library in NAMES.items():
        try:
            found.append(library())
        except Exception as error:
            # A library that is there and not well is told as one that is not there; one that we
            # broke is not.
            is_failure = isinstance(error, Failure) or name in needed
            is_absent = isinstance(error, (ImportError, larder.InstallError))
            missing.append(
                (name, f"{'not here' if is_absent else 'broken'}: {first_line(error)}", is_failure)
            )
    return found, missing
