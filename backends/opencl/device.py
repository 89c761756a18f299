"""Execution of generated kernels through OpenCL.

OpenCL pointers carry no offset, so every pointer parameter `p` of a kernel is followed by an `int`, the element of `p`
at which the tensor begins. Dynamic shared memory is one more `__local` pointer at the end.
"""

from __future__ import annotations

import ctypes
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from ...ir import BackendError, KernelFunction, Target
from ..compiler_diagnostics import compile_error
from ..device import Array, Buffer, Device, Launch, MemoryPart, Pointer, Timing
from ..host_memory import require_host_memory
from .device_choice import _LOG, POCL, DeviceChoice, choose_device, device_context, import_opencl
from .pocl_cache import quarantine_programs
from .program_binaries import ProgramBinaries, compiler_settings
from .programs import KernelProgram, programs_of

#: Options of builds; `-w`, since clang prints the number of its warnings to the terminal.
_OPTIONS = ["-cl-std=CL1.2", "-cl-mad-enable", "-w"]


@frozen(eq=False)
class _BoundKernel:
    """Launch with its arguments; it keeps the memory of its arguments alive."""

    function: Any
    enqueue: Callable[[], object]
    pointers: tuple[Pointer, ...]

    def __call__(self) -> None:
        self.enqueue()


@frozen(eq=False)
class _MovedKernel:
    """Launch of a shared kernel object, with the arguments that other launches change."""

    bound: _BoundKernel
    set_number: Callable[[int, Any], None]
    bases: list[tuple[int, Any]]

    def __call__(self) -> None:
        for number, base in self.bases:
            self.set_number(number, base)
        self.bound.enqueue()


class OpenCLDevice(Device):
    """One OpenCL device with an in-order queue."""

    def __init__(self, target: Target, choice: DeviceChoice | None = None) -> None:
        self._cl = import_opencl()
        self._process = os.getpid()
        self.choice = choice or choose_device()
        self.target = target
        self.name = self.choice.text
        self._context = device_context(self.choice.device)
        self._binaries = ProgramBinaries(self.choice, _OPTIONS)
        self._queue = self._cl.CommandQueue(self._context)

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate device memory, filled with zeros.

        Raises `BackendError` where the device allows no allocation of that size, or has too little memory.
        """
        limit = int(self.choice.device.max_mem_alloc_size)
        if nbytes > limit:
            raise BackendError(
                f"the plan needs one allocation of {nbytes:,} bytes, {self.name} allows {limit:,}",
                hint="use smaller shapes",
            )
        if self.choice.device.type & self._cl.device_type.CPU:
            require_host_memory(nbytes, "the plan")
        try:
            memory = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(nbytes, 1))
            self._cl.enqueue_fill_buffer(self._queue, memory, np.uint8(0), 0, max(nbytes, 1))
            return Buffer(memory, nbytes)
        except self._cl.Error as error:
            raise BackendError(f"cannot allocate {nbytes:,} bytes on {self.name}: {error}") from error

    @property
    def shares_host_memory(self) -> bool:
        """Return whether kernels run on host memory, as PoCL's do on CPUs."""
        return self.choice.platform.name == POCL and bool(self.choice.device.type & self._cl.device_type.CPU)

    def wrap_host_memory(self, address: int, nbytes: int) -> Buffer:
        """Return host memory of another owner as device memory."""
        if not nbytes:
            return self.allocate(1)
        flags = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.USE_HOST_PTR
        return Buffer(self._cl.Buffer(self._context, flags, hostbuf=host_bytes(address, nbytes)), nbytes)

    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy from the host, blocking."""
        if source.nbytes:
            self._cl.enqueue_copy(
                self._queue, destination.buffer.handle, source, dst_offset=destination.offset, is_blocking=True
            )

    def download(self, destination: Array, source: Pointer) -> None:
        """Copy to the host, blocking."""
        if destination.nbytes:
            self._cl.enqueue_copy(
                self._queue, destination, source.buffer.handle, src_offset=source.offset, is_blocking=True
            )

    def copy(self, destination: Pointer, source: Pointer, nbytes: int) -> None:
        """Copy within the device."""
        if nbytes:
            places = {"src_offset": source.offset, "dst_offset": destination.offset, "byte_count": nbytes}
            self._cl.enqueue_copy(self._queue, destination.buffer.handle, source.buffer.handle, **places)

    def adopt(self, value: object) -> tuple[Pointer, Any] | None:
        """Return None: arrays of other libraries come through host memory."""
        return None

    def build(self, kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None] = ()) -> tuple[object, ...]:
        """Load binaries of this device, and compile other kernels.

        Many are compiled in one program, as starting clang is slow.
        """
        for kernel in kernels:
            self._check_limits(kernel)
        programs: dict[str, Any] = {}
        for program in _different_programs(kernels):
            members = list(program.kernels.values())
            code = self._binaries.find(program.source, binaries)
            built = code and self._load_binary(code, list(program.kernels))
            found = [built] * len(members) if built else self._compile(members)
            programs.update(zip((kernel.source for kernel in members), found, strict=True))
        return tuple(programs[kernel.source] for kernel in kernels)

    def binaries(self, kernels: Sequence[KernelFunction]) -> tuple[bytes | None, ...]:
        """Return each program's binary with its first kernel."""
        loaded = {k.source: p for k, p in zip(kernels, self.build(kernels), strict=True)}
        found: dict[str, bytes | None] = {}
        for program in _different_programs(kernels):
            first = next(iter(program.kernels.values())).source
            found[first] = self._binaries.pack(program.source, loaded[first], self._cl.program_info.BINARIES)
        return tuple(found.pop(kernel.source, None) for kernel in kernels)

    def _load_binary(self, code: bytes, names: Sequence[str]) -> Any:
        """Return a program from its binary; None where the driver refuses it, or kernels are missing."""
        try:
            program = self._cl.Program(self._context, [self.choice.device], [code]).build(_OPTIONS)
            return program if set(names) <= set(program.kernel_names.split(";")) else None
        except self._cl.Error:
            return None

    def _compile(self, kernels: Sequence[KernelFunction]) -> list[Any]:
        """Compile kernels in one program; where it does not build, each separately for its error."""
        (program,) = programs_of(kernels)
        try:
            return [self._program_with_kernels(program.source, list(program.kernels))] * len(kernels)
        except self._cl.RuntimeError as error:
            if len(kernels) > 1:
                return [self._compile([kernel])[0] for kernel in kernels]
            log = str(error).split("(options:")[0].strip()
            raise compile_error(kernels[0], self.name, program.source, log) from error

    def _program_with_kernels(self, source: str, names: Sequence[str]) -> Any:
        """Return a built program with all its kernels; a cached one without some is built again."""
        program = self._program(source)
        lost = set(names) - {name for name in program.kernel_names.split(";") if name}
        kept = os.environ.get("POCL_CACHE_DIR")
        if not lost or not kept:
            return program
        for name in lost:
            for aside in quarantine_programs(Path(kept), name):
                _LOG.warning("a damaged program in PoCL's cache was set aside as %s and is built anew", aside)
        return self._program(source)

    def _program(self, source: str) -> Any:
        program = self._cl.Program(self._context, source)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # compiler chatter; and the next line disables PyOpenCL's own cache of pickles
            program.get_info(self._cl.program_info.NUM_DEVICES)
            return program.build(_OPTIONS)

    def _check_limits(self, kernel: KernelFunction) -> None:
        device = self.choice.device
        threads, shared = int(np.prod(kernel.block)), kernel.shared_bytes + kernel.dynamic_shared
        if threads > device.max_work_group_size:
            raise BackendError(
                f"kernel {kernel.name} has {threads} threads per block, {self.name} allows {device.max_work_group_size}"
            )
        if shared > device.local_mem_size:
            raise BackendError(
                f"kernel {kernel.name} needs {shared} bytes of shared memory, {self.name} has {device.local_mem_size}"
            )

    def bind(self, loaded: object, kernel: KernelFunction, pointers: Sequence[Pointer]) -> Launch:
        """Set the arguments of a new kernel object; launching is one call.

        Raises `BackendError` where the kernel has other parameters.
        """
        if 0 in kernel.grid:
            return _nothing
        function = self._cl.Kernel(loaded, kernel.name)
        arguments: list[Any] = []
        for argument, pointer in zip(kernel.arguments, pointers, strict=True):
            arguments += [pointer.buffer.handle, np.int32(_base(pointer, argument.dtype.size, kernel))]
        if kernel.dynamic_shared:
            arguments.append(self._cl.LocalMemory(kernel.dynamic_shared))
        try:
            if function.num_args != len(arguments):
                raise TypeError(f"there are {function.num_args}")
            # One by one: for all of them at once PyOpenCL writes, compiles and keeps a function for each kernel's name.
            for number, value in enumerate(arguments):
                function.set_arg(number, value)
        except (self._cl.Error, TypeError) as error:
            raise BackendError(
                f"kernel {kernel.name}: its parameters are not the {len(arguments)} that were bound: {error}"
            ) from error
        size = tuple(blocks * threads for blocks, threads in zip(kernel.grid, kernel.block, strict=True))
        return _BoundKernel(
            function,
            lambda: self._cl.enqueue_nd_range_kernel(self._queue, function, size, kernel.block),
            tuple(pointers),
        )

    def bind_turns(
        self, loaded: object, kernel: KernelFunction, turns: Sequence[Sequence[Pointer]]
    ) -> tuple[Launch, ...]:
        """Share one kernel object among all iterations.

        A kernel object is slow to create; a launch first sets the beginnings of its arguments.
        """
        first = self.bind(loaded, kernel, turns[0])
        if not isinstance(first, _BoundKernel):
            return (first,) * len(turns)
        arguments = list(zip(kernel.arguments, zip(*turns, strict=True), strict=True))
        places = [[_base(p, argument.dtype.size, kernel) for p in each] for argument, each in arguments]
        moving = [n for n, bases in enumerate(places) if len(set(bases)) > 1]
        if not moving:
            return (first,) * len(turns)
        # `set_arg` finds the kind of its argument by trial, which takes longer than the launch.
        set_number = getattr(first.function, "_set_arg_buf", first.function.set_arg)
        values = zip(*(map(np.int32, places[n]) for n in moving), strict=True)
        numbers = [2 * n + 1 for n in moving]
        return tuple(_MovedKernel(first, set_number, list(zip(numbers, each, strict=True))) for each in values)

    def current(self) -> AbstractContextManager[None]:
        """Refuse a process that was forked from the one with the device."""
        if os.getpid() != self._process:
            import_opencl()
        return nullcontext()

    def synchronize(self) -> None:
        """Wait for the queue."""
        self._queue.finish()

    def time(
        self, run: Launch, *, warmup: int = 3, repeats: int = 20, cold: bool = False, warm: Sequence[MemoryPart] = ()
    ) -> Timing:
        """Time with the host's clock.

        With `cold` the last-level cache is flushed by streaming over it, and then over the `warm` parts.
        """
        flush = np.zeros(2 * self.target.l2_bytes if cold else 0, np.uint8)
        aside = Pointer(self.allocate(max((nbytes for _, nbytes in warm), default=0) if cold else 0))
        for _ in range(warmup):
            run()
        self.synchronize()
        samples = []
        for _ in range(repeats):
            flush += 1
            for place, nbytes in warm if cold else ():
                self.copy(aside, place, nbytes)
            self.synchronize()
            start = time.perf_counter()
            run()
            self.synchronize()
            samples.append(time.perf_counter() - start)
        return Timing(tuple(samples))

    def describe(self) -> dict[str, object]:
        """Return the values that `cuts device` shows."""
        device = self.choice.device
        return super().describe() | {
            "version": device.version.strip(),  # PoCL's names the processor that it compiles for
            "settings": ", ".join(f"{name}={value}" for name, value in compiler_settings().items()),
            "compute_units": int(device.max_compute_units),
            "max_threads": int(device.max_work_group_size),
            "shared_bytes": int(device.local_mem_size),
            "memory_bytes": int(device.global_mem_size),
            "max_allocation": int(device.max_mem_alloc_size),
        }


def build_options() -> str:
    """Return the options of all builds, as one text."""
    return " ".join(_OPTIONS)


def launched_function(launch: Launch) -> Any:
    """Return the kernel object that a launch enqueues; None without one."""
    if isinstance(launch, _MovedKernel):
        return launch.bound.function
    return launch.function if isinstance(launch, _BoundKernel) else None


def host_bytes(address: int, nbytes: int) -> Array:
    """Return host memory of another owner as bytes."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _different_programs(kernels: Sequence[KernelFunction]) -> list[KernelProgram]:
    return programs_of(list({kernel.source: kernel for kernel in kernels}.values()))


def _nothing() -> None:
    """Launch a grid without blocks."""


def _base(pointer: Pointer, size: int, kernel: KernelFunction) -> int:
    assert pointer.offset % size == 0, "tensors are aligned to their elements"
    base = pointer.offset // size
    if base >= 2**31:
        raise BackendError(
            f"kernel {kernel.name}: a tensor begins at element {base:,}, beyond what a 32-bit index reaches"
        )
    return base
