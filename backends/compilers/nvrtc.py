"""NVRTC of the CUDA bindings, and a second one of another version.

NVRTC 13 compiles for sm_75 and later. The wheel of NVRTC 12, which may be installed beside it, also compiles for sm_50
to sm_70; a library called through `ctypes` has the functions of the bindings that compilation takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import frozen

from .toolchain import RejectedSourceError, Toolchain

#: Report of ptxas, and macros of math.h, which nvcc includes and NVRTC does not.
_NVRTC_OPTIONS = (
    b"--ptxas-options=-v",
    b"--no-source-include",
    b"-DINFINITY=__int_as_float(0x7f800000)",
    b"-DNAN=__int_as_float(0x7fffffff)",
)
#: Leaves out declarations that generated kernels do not need, which take 6 of 24 ms of an empty kernel.
_MINIMAL = b"--minimal"
#: Package of the second NVRTC, and its file.
_SECOND_PACKAGE, _SECOND_LIBRARY = "nvidia.cuda_nvrtc", "lib/libnvrtc.so.[0-9]*"


@cache
def find_nvrtc() -> Toolchain | None:
    """Return the NVRTC of the CUDA bindings, where there is one."""
    try:
        return _toolchain(import_module("cuda.bindings.nvrtc"))
    except Exception:  # the bindings raise errors of their own where the library is missing
        return None


@cache
def find_second_nvrtc() -> Toolchain | None:
    """Return the NVRTC of an earlier version's wheel, if installed."""
    try:
        spec = find_spec(_SECOND_PACKAGE)
        folders = spec.submodule_search_locations if spec is not None else None
        files = [path for folder in folders or () for path in sorted(Path(folder).glob(_SECOND_LIBRARY))]
        return _toolchain(NvrtcLibrary(ctypes.CDLL(str(files[0])))) if files else None
    except (ImportError, OSError):
        return None


@frozen
class NvrtcLibrary:
    """Shared library with the interface of `cuda.bindings.nvrtc`.

    Every function returns the status, and its results.
    """

    library: ctypes.CDLL

    def nvrtcVersion(self) -> tuple[int, int, int]:
        """Return the status, the major and the minor version."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        return self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), major.value, minor.value

    def nvrtcGetSupportedArchs(self) -> tuple[int, list[int]]:
        """Return the status, and the supported compute capabilities."""
        count = ctypes.c_int()
        status = self.library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        return status or self.library.nvrtcGetSupportedArchs(numbers), list(numbers)

    def nvrtcGetErrorString(self, status: int) -> tuple[int, bytes]:
        """Return the text of a status."""
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return 0, self.library.nvrtcGetErrorString(status)

    def nvrtcCreateProgram(
        self, source: bytes, name: bytes, count: int, headers: Sequence[bytes], names: Sequence[bytes]
    ) -> tuple[int, ctypes.c_void_p]:
        """Return the status, and a program without headers."""
        program = ctypes.c_void_p()
        return self.library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None), program

    def nvrtcCompileProgram(self, program: ctypes.c_void_p, count: int, options: Sequence[bytes]) -> tuple[int]:
        """Compile a program and return the status."""
        return (self.library.nvrtcCompileProgram(program, count, (ctypes.c_char_p * count)(*options)),)

    def nvrtcDestroyProgram(self, program: ctypes.c_void_p) -> tuple[int]:
        """Destroy a program and return the status."""
        return (self.library.nvrtcDestroyProgram(ctypes.byref(program)),)

    def __getattr__(self, name: str) -> Any:
        """Return a function that asks for a size (`...Size`) or fills a buffer."""
        if not name.startswith("nvrtcGet"):
            raise AttributeError(name)
        return partial(self._size if name.endswith("Size") else self._fill, getattr(self.library, name))

    def _size(self, function: Any, program: ctypes.c_void_p) -> tuple[int, int]:
        size = ctypes.c_size_t()
        return function(program, ctypes.byref(size)), size.value

    def _fill(self, function: Any, program: ctypes.c_void_p, buffer: bytearray) -> tuple[int]:
        return (function(program, (ctypes.c_char * len(buffer)).from_buffer(buffer)),)


def _toolchain(nvrtc: Any) -> Toolchain | None:
    status, major, minor = nvrtc.nvrtcVersion()
    if int(status) != 0:
        return None
    call = lambda source, arch, timeout: run_nvrtc(nvrtc, source, arch)  # noqa: E731
    return Toolchain("nvrtc", f"{major}.{minor}", call, cache(lambda: _architectures(nvrtc)))


def _architectures(nvrtc: Any) -> tuple[int, ...]:
    status, numbers = nvrtc.nvrtcGetSupportedArchs()
    return tuple(map(int, numbers)) if int(status) == 0 else ()


@cache
def nvrtc_options(nvrtc: Any) -> tuple[bytes, ...]:
    """Return the options of every kernel that this NVRTC knows."""
    status, program = nvrtc.nvrtcCreateProgram(b"", b"nothing.cu", 0, [], [])
    if int(status) != 0:
        return _NVRTC_OPTIONS
    try:
        known = int(nvrtc.nvrtcCompileProgram(program, 1, [_MINIMAL])[0]) == 0
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return (*_NVRTC_OPTIONS, *([_MINIMAL] if known else []))


def run_nvrtc(nvrtc: Any, source: str, arch: str) -> tuple[bytes, str]:
    """Return the cubin and the log of a source.

    Raises `RejectedSourceError` where it does not compile.
    """

    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RejectedSourceError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) > 1 else None

    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        options = [f"--gpu-architecture={arch}".encode(), *nvrtc_options(nvrtc)]
        failed = int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0
        log = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        text = bytes(log).rstrip(b"\0").decode(errors="replace")
        if failed:
            raise RejectedSourceError(text.strip())
        code = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
        check(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code), text
    finally:
        nvrtc.nvrtcDestroyProgram(program)
