"""CUDA device and NVIDIA libraries in host memory.

Addresses are real, so results that are computed through them can be checked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.device import Array, Buffer, Device, Launch, MemoryPart, Pointer, Timing
from cuts.backends.devices import find_target
from cuts.backends.library.routine import Routine
from cuts.ir.compiled import KernelFunction


class Memory(np.ndarray):
    """Bytes that convert to their address, as PyCUDA's allocations do."""

    def __int__(self) -> int:
        return int(self.ctypes.data)


def at(address: int, count: int) -> np.ndarray:
    """Return floats that begin at an address."""
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))


class HostDevice(Device):
    """Device that runs library steps.

    `seconds` gives the time of other kernels by the kernel that is timed, `features` the counters that counting kernels
    write.
    """

    def __init__(
        self,
        seconds: Callable[[KernelFunction], float] = lambda kernel: 1e-3,
        counts: Callable[[KernelFunction], Sequence[int]] = lambda kernel: (0, 1),
    ) -> None:
        self.name, self.target, self.stream_handle = (
            "Made-up GPU",
            evolve(find_target("cuda:h200"), name="Made-up GPU"),
            7,
        )
        self.seconds, self.counts = seconds, counts
        self.allocated: list[int] = []
        self._took = 0.0
        self._counted: Sequence[int] = ()

    def allocate(self, nbytes: int) -> Buffer:
        self.allocated.append(nbytes)
        return Buffer(np.zeros(min(nbytes, 1 << 22), np.uint8).view(Memory), nbytes)

    def upload(self, destination: Pointer, source: Array) -> None:
        ctypes.memmove(int(destination.buffer.handle) + destination.offset, source.ctypes.data, source.nbytes)

    def download(self, destination: Array, source: Pointer) -> None:
        if destination.dtype == np.int64:
            destination[:] = self._counted
        else:
            ctypes.memmove(destination.ctypes.data, int(source.buffer.handle) + source.offset, destination.nbytes)

    def copy(self, destination: Pointer, source: Pointer, nbytes: int) -> None:
        self._took += 2 * nbytes / 4e12

    def adopt(self, value: object) -> tuple[Pointer, Any] | None:
        return None

    def build(self, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None] = ()) -> tuple[object, ...]:
        compile_kernels([k for k in kernels if k.dialect == "library"], "sm_90")
        return tuple(Routine(k) if k.dialect == "library" else k for k in kernels)

    def bind(self, loaded: object, kernel: KernelFunction, pointers: Sequence[Pointer]) -> Launch:
        if isinstance(loaded, Routine):
            return loaded.bind(self, kernel, pointers)

        def run() -> None:
            self._took += self.seconds(kernel)
            self._counted = self.counts(kernel)

        return run

    def synchronize(self) -> None:
        pass

    def time(
        self, run: Launch, *, warmup: int = 3, repeats: int = 20, cold: bool = False, warm: Sequence[MemoryPart] = ()
    ) -> Timing:
        self._took = 0.0
        run()
        return Timing((self._took,) * repeats)


class HostCuBLAS:
    """Host implementation of cuBLAS as nvmath binds it: column-major matrices."""

    Operation = IntEnum("Operation", {"N": 0, "T": 1})
    Math = IntEnum("Math", {"DEFAULT_MATH": 0, "PEDANTIC_MATH": 2})

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def create(self) -> int:
        return 1

    def get_property(self, place: int) -> int:
        return (13, 2, 1)[place]

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, arguments))

    def sgemm_strided_batched(
        self, handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, lda: int, step_a: int,
        b: int, ldb: int, step_b: int, beta: int, c: int, ldc: int, step_c: int, count: int,
    ) -> None:  # fmt: skip
        assert lda >= (k if ta else m) and ldb >= (n if tb else k) and ldc >= m, (
            "a column is longer than their distance"
        )
        assert (at(alpha, 1)[0], at(beta, 1)[0]) == (1.0, 0.0)
        for item in range(count):
            left = self._matrix(a + 4 * item * step_a, lda, m, k, ta)
            right = self._matrix(b + 4 * item * step_b, ldb, k, n, tb)
            self._matrix(c + 4 * item * step_c, ldc, m, n, 0)[...] = left @ right

    @staticmethod
    def _matrix(address: int, leading: int, rows: int, columns: int, transposed: int) -> np.ndarray:
        high, wide = (columns, rows) if transposed else (rows, columns)
        stored = np.lib.stride_tricks.as_strided(
            at(address, (wide - 1) * leading + high), (high, wide), (4, 4 * leading)
        )
        return stored.T if transposed else stored


class HostCuDNN:
    """Host implementation of cuDNN's frontend, with three plans.

    One plan does not build and one is slower. It records its requests.
    """

    def __init__(self, device: HostDevice) -> None:
        self.device = device
        self.graphs: list[Any] = []
        self.data_type = SimpleNamespace(FLOAT="float", HALF="half", BFLOAT16="bfloat16")
        self.heur_mode = SimpleNamespace(A="a", B="b", FALLBACK="fallback")
        self.numerical_note = SimpleNamespace(TENSOR_CORE="tensor core", DOWN_CONVERT_INPUTS="down convert")

    def backend_version(self) -> int:
        return 91900

    def create_handle(self) -> object:
        return object()

    def set_stream(self, handle: object, stream: int) -> None:
        assert stream == self.device.stream_handle

    def pygraph(self, **options: object) -> Any:
        graph = _HostGraph(self.device, options)
        self.graphs.append(graph)
        return graph


class _Tensor:
    def __init__(self, **facts: object) -> None:
        self.facts = facts

    def __getattr__(self, name: str) -> Callable[..., _Tensor]:
        def note(value: object) -> _Tensor:
            self.facts[name.removeprefix("set_")] = value
            return self

        return note


class _HostGraph:
    seconds = (3e-3, 1e-3, 2e-3)

    def __init__(self, device: HostDevice, options: dict[str, object]) -> None:
        self.device, self.options = device, options
        self.convolution: dict[str, Any] = {}
        self.barred: list[object] = []
        self.ran: list[tuple[int, dict[Any, int], int]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None

    def tensor(self, **facts: object) -> _Tensor:
        return _Tensor(**facts)

    def conv_fprop(self, **facts: object) -> _Tensor:
        return self._compute_convolution("fprop", facts)

    def conv_dgrad(self, **facts: object) -> _Tensor:
        return self._compute_convolution("dgrad", facts)

    def conv_wgrad(self, **facts: object) -> _Tensor:
        return self._compute_convolution("wgrad", facts)

    def _compute_convolution(self, kind: str, facts: dict[str, object]) -> _Tensor:
        self.kind, self.convolution, self.made = kind, facts, _Tensor()
        return self.made

    def deselect_numeric_notes(self, notes: Sequence[object]) -> None:
        self.barred += notes

    def get_execution_plan_count(self) -> int:
        return 4

    def build_plan_at_index(self, index: int) -> None:
        if index == 3:
            raise RuntimeError("this plan does not build")

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 1024 * index

    def get_plan_name_at_index(self, index: int) -> str:
        return f"plan {index}"

    def execute_plan_at_index(self, pack: dict[Any, int], workspace: int, index: int, handle: object) -> None:
        self.ran.append((index, pack, workspace))
        self.device._took += self.seconds[index]
