"""CUDA driver in C on host memory, in place of libcuda."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cuts.backends.native import compile_c
from cuts.runtime import Plan

SOURCE = Path(__file__).parents[1] / "runtime/native_c/fake_cuda.c"
#: Function over the values of a kernel's parameters.
Run = CFUNCTYPE(None, POINTER(c_uint64))


@cache
def scratch_folder() -> Path:
    """Return a folder that is removed at the end of the process."""
    folder = TemporaryDirectory(prefix="cuts-native-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def fake_path(*options: str) -> Path:
    """Return the library of the driver, built once for its options."""
    path = scratch_folder() / f"libfakecuda{len(options)}.so"
    compile_c(path, [SOURCE], ["-shared", *options])
    return path


class FakeCuda:
    """Driver in C, with kernels of a plan or a test.

    An old one has neither data of edges nor graphs of recordings.
    """

    def __init__(self, old: bool = False) -> None:
        self.path = fake_path(*(["-DOLD_DRIVER"] if old else []))
        self.library = ctypes.CDLL(str(self.path))
        self.library.fake_log.restype = c_char_p
        self.library.fake_busy_seconds.restype = c_double
        self.library.fake_update_count.restype = c_uint64
        self.library.fake_declare.restype = self.library.fake_graph_of.restype = c_void_p
        self.library.fake_reset()
        self.kept: list[Any] = []

    def declare(self, plan: Plan) -> FakeCuda:
        """Let the kernels of a plan be found."""
        for kernel in plan.kernels:
            kinds = "".join("P" if argument.map is None else "M" for argument in kernel.arguments)
            self.library.fake_declare(kernel.name.encode(), kinds.encode())
        return self

    def define(self, name: str, run: Callable[..., object], count: int) -> int:
        """Return the function of a kernel in Python, of so many parameters."""
        function = Run(lambda values: run(*values[:count]))
        self.kept.append(function)
        kernel = int(self.library.fake_declare(name.encode(), b"P" * count))
        self.library.fake_define(c_void_p(kernel), function)
        return kernel

    def set(self, capability: int = 90, failing: str = "", idle: bool = False) -> None:
        """Choose the architecture, a failing call, and whether to log and execute."""
        self.failing = failing.encode()
        self.library.fake_set(capability, c_char_p(self.failing), idle, idle)

    def lines(self, word: str) -> list[str]:
        """Return the recorded calls that begin with a word."""
        return [line for line in self.library.fake_log().decode().splitlines() if line.startswith(word)]

    def edges(self) -> dict[tuple[str, str], bool]:
        """Return the edges of recorded graphs, and whether each is early."""
        found = (line.split()[1:] for line in self.lines("edge "))
        return {(before, after): early == "1" for before, after, early in found}

    @property
    def update_count(self) -> int:
        """Number of nodes that were updated."""
        return int(self.library.fake_update_count())

    @property
    def live(self) -> int:
        """Number of objects that were not given back."""
        return int(self.library.fake_live())
