"""Execution of generated kernels on an NVIDIA GPU through the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar, cast

from ...ir import BackendError, KernelFunction, Target
from ..array_interface import dense_array_bytes
from ..compilers import complete_binaries
from ..device import Array, Buffer, Device, Launch, MemoryPart, Pointer, Timing, owning_launch
from ..gap_free_timing import EventTimer
from ..launch_sequence import BoundSequence
from ..library import DIALECT, Routine
from ..native import has_native_library
from .bindings import BindingsDriver, DeviceMemory
from .driver import check_architecture, driver

Method = TypeVar("Method", bound=Callable[..., Any])


def in_context(method: Method) -> Method:
    """Return a method that runs in the primary context."""

    @wraps(method)
    def run(device: CudaDevice, *arguments: Any, **options: Any) -> Any:
        with device.current():
            return method(device, *arguments, **options)

    return cast(Method, run)


class CudaDevice(Device):
    """Current CUDA device with one stream of its own.

    The stream is a blocking one: PyCUDA's synchronous copies run on the default stream and are thereby ordered with
    these kernels.
    """

    branches = True

    def __init__(self, target: Target) -> None:
        self._driver = driver()
        self.target, self.name = target, self._driver.name()
        check_architecture(target.arch, f"this machine's {self.name}", self._driver.capability(), "use --target cuda")
        with self.current():
            self._stream = self._driver.stream()
        self.stream_handle = int(self._stream.handle)
        self._flush: Any = None
        self._timer = EventTimer(self._stream, self._driver.event, self._check_device, self._empty_cache, self._warm)

    @in_context
    def allocate(self, nbytes: int) -> Buffer:
        """Allocate device memory, filled with zeros.

        Raises `BackendError` where the driver has too little memory.
        """
        try:
            return Buffer(self._driver.allocate(max(nbytes, 1)), nbytes)
        except self._driver.Error as error:
            raise BackendError(f"cannot allocate {nbytes:,} bytes on {self.name}: {error}") from error

    @in_context
    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy from the host, blocking."""
        if source.nbytes:
            self._driver.upload(destination.address, source)

    @in_context
    def download(self, destination: Array, source: Pointer) -> None:
        """Copy to the host, blocking."""
        if destination.nbytes:
            self._check_device(lambda: self._driver.download(destination, source.address))

    @in_context
    def copy(self, destination: Pointer, source: Pointer, nbytes: int) -> None:
        """Copy within the device on its stream."""
        if nbytes:
            self._driver.copy(destination.address, source.address, nbytes, self._stream)

    @in_context
    def adopt(self, value: object) -> tuple[Pointer, Any] | None:
        """Return the address and interface of an array with `__cuda_array_interface__`."""
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None:
            return None
        nbytes = dense_array_bytes(interface)
        if interface.get("stream") is not None:  # the producer of the array may still write it
            self._driver.synchronize()
        return Pointer(Buffer(DeviceMemory(int(interface["data"][0]), value), nbytes)), interface

    @in_context
    def build(self, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None] = ()) -> tuple[object, ...]:
        """Load cubins, compiling missing ones."""
        codes = complete_binaries(kernels, binaries, self.target.arch)
        return tuple(self._load(kernel, code) for kernel, code in zip(kernels, codes, strict=True))

    def _load(self, kernel: KernelFunction, code: bytes) -> Any:
        if kernel.dialect == DIALECT:
            return Routine(kernel)
        self._check_shared(kernel)
        return self._driver.load(kernel, code)

    def _check_shared(self, kernel: KernelFunction) -> None:
        """Refuse a kernel for a device with more shared memory, such as an A100's on an A10."""
        needed = kernel.shared_bytes + kernel.dynamic_shared
        most = self._driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", needed)
        if needed > most:
            raise BackendError(
                f"kernel {kernel.name}, made for {self.target.name}, needs {needed:,} bytes of shared memory a block; "
                f"{self.name} has {most:,}",
                hint="compile the model for this machine: --target cuda",
            )

    @in_context
    def bind(self, loaded: object, kernel: KernelFunction, pointers: Sequence[Pointer]) -> Launch:
        """Compute the addresses once; the launch goes to the device's stream."""
        if isinstance(loaded, Routine):
            return loaded.bind(self, kernel, pointers)
        if 0 in kernel.grid:
            return lambda: None
        launch = self._driver.bind(loaded, kernel, tuple(pointer.address for pointer in pointers), self._stream)
        return owning_launch(pointers, launch)

    @in_context
    def capture(self, run: Launch) -> Launch:
        """Record launches as a CUDA graph and return its replay.

        It is one call; PyCUDA has none for it, and `run` itself is returned.
        """
        if not isinstance(self._driver, BindingsDriver):
            return run
        cu, stream = self._driver.cu, self._stream.raw
        graph = self._driver.capture(run, stream)
        executable = cu.cuGraphInstantiate(graph, 0)
        cu.cuGraphDestroy(graph)
        return owning_launch(run, cu.cuGraphLaunch, executable, stream)  # the graph has addresses only

    @in_context
    def record(self, sequence: BoundSequence) -> Launch:
        """Record a sequence as a CUDA graph and return its replay.

        The launches are its nodes, with their dependencies and L2 policies, as in PyTorch's memory. By PyCUDA, or
        without the library in C, nothing is recorded.
        """
        if not isinstance(self._driver, BindingsDriver) or not has_native_library():
            return sequence.launch
        from .launch_graph import CudaLaunchSequence

        arch, bound = self.target.arch, sequence.launches
        made = CudaLaunchSequence(
            self._driver, arch, sequence.plan, sequence.kernels, sequence.loaded, lambda: self, bound
        )
        return made.replay([block.address for block in sequence.blocks], self._stream.handle, keep=sequence)

    @in_context
    def synchronize(self) -> None:
        """Wait for the device's stream."""
        self._check_device(self._stream.synchronize)

    @in_context
    def settle(self) -> None:
        """Wait for all streams of the context, those of other libraries included."""
        self._check_device(self._driver.synchronize)

    def current(self) -> AbstractContextManager[None]:
        """Make the primary context current in this thread, where it is not."""
        return self._driver.current()

    @in_context
    def time(
        self, run: Launch, *, warmup: int = 3, repeats: int = 20, cold: bool = False, warm: Sequence[MemoryPart] = ()
    ) -> Timing:
        return self._timer.time(run, warmup, repeats, warm if cold else None)

    @in_context
    def time_each(self, runs: Sequence[Launch], *, warmup: int = 1, repeats: int = 10) -> tuple[Timing, ...]:
        return self._timer.time_each(runs, warmup, repeats)

    def _empty_cache(self) -> None:
        words = 2 * self.target.l2_bytes // 4
        if self._flush is None:
            self._flush = self._driver.allocate(words * 4)
        self._driver.zero_words(int(self._flush), words, self._stream)

    def _warm(self, part: MemoryPart) -> None:
        self._driver.copy(int(self._flush), part[0].address, part[1], self._stream)

    def _check_device(self, action: Any) -> Any:
        """Return an action's result; a failure on the device becomes an error."""
        try:
            return action()
        except self._driver.Error as error:
            raise BackendError(
                f"a kernel failed on {self.name}: {error}", hint="the CUDA context is lost; start a new process"
            ) from error

    @in_context
    def describe(self) -> dict[str, object]:
        """Return the values that `cuts device` shows."""
        return super().describe() | self._driver.describe()
