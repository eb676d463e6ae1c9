"""Compiles kernels.cu to kernels.ptx with NVRTC, which needs no GPU.

Usage: python3 compile.py path/to/libnvrtc.so kernels.cu kernels.ptx
"""

import ctypes
import pathlib
import sys

OPTIONS = [b"--gpu-architecture=compute_75", b"--std=c++17"]


def main() -> None:
    library, source, out = sys.argv[1:]
    # Its built-in functions are a library of their own beside it.
    for builtins in sorted(pathlib.Path(library).parent.glob("libnvrtc-builtins.so*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    text = pathlib.Path(source).read_bytes()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    compiled = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetProgramLog(program, log))
    if compiled != 0:
        sys.exit(log.value.decode())
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, ptx))
    lines = (line.rstrip() for line in ptx.value.decode().splitlines())
    mark = f"// made from kernels.cu {fingerprint(text):016x}"
    pathlib.Path(out).write_text(mark + "\n" + "\n".join(lines).strip() + "\n")


def fingerprint(text: bytes) -> int:
    """FNV-1a, by which a test sees that the two files belong together."""
    value = 0xCBF29CE484222325
    for byte in text:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def check(code: int) -> None:
    if code != 0:
        sys.exit(f"NVRTC refused a call: error {code}")


main()
