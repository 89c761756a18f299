"""Execution of generated kernels on an NVIDIA GPU through the driver."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np

from ...ir import BackendError, GraphError, KernelFunction, Target
from ..device import Array, Buffer, Device, Launch, MemoryPart, Pointer, Timing
from ..launch_sequence import MAX_RECORDED_LAUNCHES, BoundSequence
from ..library import DIALECT, Routine
from .arguments import parameter, parameter_kinds
from .driver import current_device, driver, in_primary_context, primary_context
from .gap_free_timing import GapFreeSampler
from .handles import Foreign

_DEFAULT_SHARED = 48 * 1024  # of a block, without an attribute of the kernel
#: Launches with an event that the host issues while the device writes twice its L2 cache.
LAUNCHES_PER_FLUSH = 2


class _BoundKernel:
    """Launch with its arguments: addresses and tensor maps are computed once, and the memory is kept alive."""

    def __init__(self, function: Any, kernel: KernelFunction, pointers: tuple[Pointer, ...], stream: Any) -> None:
        self._launch = function.prepared_async_call
        self._geometry = (kernel.grid, kernel.block, stream)
        self._arguments = tuple(
            parameter(argument.map, _address(pointer))
            for argument, pointer in zip(kernel.arguments, pointers, strict=True)
        )
        self._shared = kernel.dynamic_shared
        self._pointers = pointers

    def __call__(self) -> None:
        self._launch(*self._geometry, *self._arguments, shared_size=self._shared)


class CudaDevice(Device):
    """Current CUDA device with one stream of its own.

    The stream is a blocking one: PyCUDA's synchronous copies run on the default stream and are thereby ordered with
    these kernels.
    """

    branches = True

    def __init__(self, target: Target) -> None:
        self._driver = driver()
        self._cu = getattr(self._driver, "cu", None)  # NVIDIA's bindings, which PyCUDA is used without
        self._device = current_device()
        self.target = target
        self.name = self._device.name()
        major, minor = self._device.compute_capability()
        self._check_architecture(target.arch, major, minor)
        with self.current():
            self._stream = self._driver.Stream()
        self.stream_handle = int(self._stream.handle)
        self._flush: Any = None
        self.sampler = GapFreeSampler()

    def _check_architecture(self, arch: str, major: int, minor: int) -> None:
        digits = arch.removeprefix("sm_").rstrip("af")
        if int(digits[:-1]) != major or int(digits[-1]) > minor:
            raise BackendError(
                f"the plan is for {arch}, this machine's {self.name} is sm_{major}{minor}", hint="use --target cuda"
            )

    @in_primary_context
    def allocate(self, nbytes: int) -> Buffer:
        """Allocate device memory, filled with zeros.

        Raises `BackendError` where the driver has too little memory.
        """
        try:
            memory = self._driver.mem_alloc(max(nbytes, 1))
            self._driver.memset_d8(int(memory), 0, max(nbytes, 1))
            return Buffer(memory, nbytes)
        except self._driver.Error as error:
            raise BackendError(f"cannot allocate {nbytes:,} bytes on {self.name}: {error}") from error

    @in_primary_context
    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy from the host, blocking."""
        if source.nbytes:
            self._driver.memcpy_htod(_address(destination), source)

    @in_primary_context
    def download(self, destination: Array, source: Pointer) -> None:
        """Copy to the host, blocking."""
        if destination.nbytes:
            self._check_device(lambda: self._driver.memcpy_dtoh(destination, _address(source)))

    @in_primary_context
    def copy(self, destination: Pointer, source: Pointer, nbytes: int) -> None:
        """Copy within the device on its stream."""
        if nbytes:
            self._driver.memcpy_dtod_async(_address(destination), _address(source), nbytes, self._stream)

    @in_primary_context
    def adopt(self, value: object) -> tuple[Pointer, Any] | None:
        """Return the address and interface of an array with `__cuda_array_interface__`.

        PyTorch, CuPy, JAX, Numba and PyCUDA have such arrays.

        Raises `GraphError` where the array is not dense.
        """
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None:
            return None
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
        strides = interface.get("strides")
        dense = tuple(int(s) * dtype.itemsize for s in np.cumprod((1, *shape[:0:-1]))[::-1]) if shape else ()
        if (
            strides is not None
            and 0 not in shape
            and any(a != b for a, b, n in zip(strides, dense, shape, strict=True) if n > 1)
        ):
            raise GraphError(
                f"a device array of shape {shape} has strides {tuple(strides)}", hint="expected a dense array: copy it"
            )
        if interface.get("stream") is not None:  # the producer of the array may still write it
            self._driver.Context.synchronize()
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return Pointer(Buffer(Foreign(int(interface["data"][0]), value), nbytes)), interface

    @in_primary_context
    def build(self, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None] = ()) -> tuple[object, ...]:
        """Load cubins, compiling missing ones."""
        codes = complete_binaries(kernels, binaries, self.target.arch)
        return tuple(self._load(kernel, code) for kernel, code in zip(kernels, codes, strict=True))

    def _load(self, kernel: KernelFunction, code: bytes) -> Any:
        if kernel.dialect == DIALECT:
            return Routine(kernel)
        self._check_shared(kernel)
        try:
            function = self._driver.module_from_buffer(code).get_function(kernel.name)
            if kernel.shared_bytes + kernel.dynamic_shared > _DEFAULT_SHARED:
                limit = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                function.set_attribute(limit, kernel.dynamic_shared)
            function.prepare(parameter_kinds(kernel))
        except self._driver.Error as error:
            raise BackendError(f"kernel {kernel.name} does not load on {self.name}: {error}") from error
        return function

    def _check_shared(self, kernel: KernelFunction) -> None:
        """Refuse a kernel for a device with more shared memory, such as an A100's on an A10."""
        attribute = getattr(self._driver.device_attribute, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", None)
        needed = kernel.shared_bytes + kernel.dynamic_shared
        if attribute is not None and needed > (most := int(self._device.get_attribute(attribute))):
            raise BackendError(
                f"kernel {kernel.name}, made for {self.target.name}, needs {needed:,} bytes of shared memory a block; "
                f"{self.name} has {most:,}",
                hint="compile the model for this machine: --target cuda",
            )

    @in_primary_context
    def bind(self, loaded: object, kernel: KernelFunction, pointers: Sequence[Pointer]) -> Launch:
        """Compute the addresses once; the launch goes to the device's stream."""
        if isinstance(loaded, Routine):
            return loaded.bind(self, kernel, pointers)
        if 0 in kernel.grid:
            return _nothing
        return _BoundKernel(loaded, kernel, tuple(pointers), self._stream)

    @in_primary_context
    def capture(self, run: Launch) -> Launch:
        """Record launches as a CUDA graph and return its replay.

        It is one call; PyCUDA has none for it, and `run` itself is returned.
        """
        if self._cu is None:
            return run
        from .graphs import capture_graph

        return capture_graph(run, self._stream.raw, self.target.arch, self._cu, self._driver.check)

    @in_primary_context
    def record(self, sequence: BoundSequence) -> Launch:
        """Record a sequence as a CUDA graph and return its replay.

        The launches are its nodes, with their dependencies and L2 policies, as in PyTorch's memory. By PyCUDA, or with
        too many launches, nothing is recorded.
        """
        if self._cu is None or len(sequence.launches) > MAX_RECORDED_LAUNCHES:
            return sequence.launch
        from .graph_nodes import GraphDriver
        from .launch_graph import CudaLaunchSequence

        driver = GraphDriver(self._cu, self._driver.check, self._driver.context.raw, self.target.arch, lambda: self)
        made = CudaLaunchSequence(driver, sequence.plan, sequence.kernels, sequence.loaded, sequence.launches)
        return made.replay([_address(block) for block in sequence.blocks], self._stream.raw, keep=sequence)

    @in_primary_context
    def synchronize(self) -> None:
        """Wait for the device's stream."""
        self._check_device(self._stream.synchronize)

    @in_primary_context
    def settle(self) -> None:
        """Wait for all streams of the context, those of other libraries included."""
        self._check_device(self._driver.Context.synchronize)

    def current(self) -> AbstractContextManager[None]:
        """Make the primary context current in this thread, where it is not."""
        return primary_context()

    @in_primary_context
    def time(
        self, run: Launch, *, warmup: int = 3, repeats: int = 20, cold: bool = False, warm: Sequence[MemoryPart] = ()
    ) -> Timing:
        """Time with events around each run.

        With `cold`, twice the L2 cache's size is written before each run, and the `warm` parts are read afterwards. A
        run that the device had to wait for is timed again, after more such work.
        """
        for _ in range(warmup):
            run()
        if not cold:
            return Timing(tuple(self._sample([run], 0)[0][0] for _ in range(repeats)))
        taken = self.sampler.samples(repeats, lambda pieces: self._sample([run], pieces, warm))
        return Timing(tuple(seconds for (seconds,) in taken))

    @in_primary_context
    def time_each(self, runs: Sequence[Launch], *, warmup: int = 1, repeats: int = 10) -> tuple[Timing, ...]:
        """Time with events between launches, without gaps.

        The device is kept busy until the host has launched all of them.
        """
        least = 1 + len(runs) // LAUNCHES_PER_FLUSH
        for _ in range(warmup):
            self._sample(runs, least)
        taken = self.sampler.samples(repeats, lambda pieces: self._sample(runs, least * pieces))
        return tuple(Timing(tuple(samples)) for samples in zip(*taken, strict=True))

    def _sample(
        self, runs: Sequence[Launch], flushes: int, warm: Sequence[MemoryPart] = ()
    ) -> tuple[list[float], bool]:
        """Return the seconds of launches in a row after cache flushes, and whether the device waited for the host."""
        events = [self._driver.Event() for _ in range(len(runs) + 1)]
        for _ in range(flushes):
            self._empty_cache()
        for place, nbytes in warm:
            self._driver.memcpy_dtod_async(int(self._flush), _address(place), nbytes, self._stream)
        events[0].record(self._stream)
        for run, event in zip(runs, events[1:], strict=True):
            run()
            event.record(self._stream)
        waited = bool(self._check_device(events[0].query))
        self._check_device(events[-1].synchronize)
        return [1e-3 * before.time_till(after) for before, after in pairwise(events)], waited

    def _empty_cache(self) -> None:
        words = 2 * self.target.l2_bytes // 4
        if self._flush is None:
            self._flush = self._driver.mem_alloc(words * 4)
        self._driver.memset_d32_async(int(self._flush), 0, words, self._stream)

    def _check_device(self, action: Any) -> Any:
        """Return an action's result; a failure on the device becomes an error."""
        try:
            return action()
        except self._driver.Error as error:
            raise BackendError(
                f"a kernel failed on {self.name}: {error}", hint="the CUDA context is lost; start a new process"
            ) from error

    @in_primary_context
    def describe(self) -> dict[str, object]:
        """Return the values that `cuts device` shows."""
        free, total = self._driver.mem_get_info()
        return super().describe() | {
            "memory_bytes": total,
            "memory_free": free,
            "driver": self._driver.get_driver_version(),
        }


def complete_binaries(kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None], arch: str) -> list[bytes]:
    """Return the cubins of kernels, compiling missing ones; library steps have none."""
    codes: list[bytes | None] = list(binaries) if binaries else [None] * len(kernels)
    missing = [index for index, code in enumerate(codes) if code is None and kernels[index].dialect != DIALECT]
    if missing:
        from ..compilers import compile_kernels  # a saved plan mostly has its cubins

        for index, cubin in zip(missing, compile_kernels([kernels[i] for i in missing], arch), strict=True):
            codes[index] = cubin.code
    return [code or b"" for code in codes]


def _nothing() -> None:
    """Launch a grid without blocks."""


def _address(pointer: Pointer) -> int:
    return int(pointer.buffer.handle) + pointer.offset
