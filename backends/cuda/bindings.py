"""The CUDA driver through NVIDIA's bindings."""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np
from attrs import frozen

from ...ir import BackendError, KernelFunction
from ..device import Array, Launch, owning_launch
from .arguments import PackedParameters

#: Result of the driver where the device is still at work.
NOT_READY = 600
#: Bytes of shared memory of a block, without an attribute of the kernel.
DEFAULT_SHARED = 48 * 1024
_FUNCTION = re.compile(r"cu[A-Z]")


class DriverError(BackendError):
    """Failed call of the driver, with the name of its error."""


class CheckedCalls:
    """The bindings, whose functions return their results alone.

    A failed call raises `DriverError`.
    """

    def __init__(self, bindings: Any) -> None:
        self.bindings = bindings

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.bindings, name)
        if not _FUNCTION.match(name):
            return found

        def call(*arguments: Any) -> Any:
            result = found(*arguments)
            return None if len(result) == 1 and not int(result[0]) else self.check(result)

        setattr(self, name, call)
        return call

    def check(self, result: Sequence[Any]) -> Any:
        """Return the results of a call.

        Raises `DriverError` where it failed.
        """
        if int(result[0]) != 0:
            name = self.bindings.cuGetErrorName(result[0])[1]
            raise DriverError(name.decode() if isinstance(name, bytes) else str(name))
        return result[1] if len(result) == 2 else tuple(result[1:])


@contextmanager
def pushed_context(push: Callable[[], object], pop: Callable[[], object]) -> Iterator[None]:
    """Context manager that pushes a context in this thread."""
    push()
    try:
        yield
    finally:
        pop()


def has_large_shared(kernel: KernelFunction) -> bool:
    """Return whether a kernel needs an attribute for its shared memory."""
    return kernel.shared_bytes + kernel.dynamic_shared > DEFAULT_SHARED


def loading_error(kernel: KernelFunction, device: str, reason: str) -> BackendError:
    """Return the error of a cubin that a device refuses."""
    text = f"kernel {kernel.name} does not load on {device}: {reason}"
    return BackendError(text, hint="compile the model for this machine")


@frozen(eq=False)
class DeviceMemory:
    """Device memory at an address, and an owner that keeps it alive."""

    address: int
    owner: object = None

    def __int__(self) -> int:
        return self.address


@frozen(eq=False)
class ModuleFunction:
    """Function of a module."""

    function: Any
    module: Any


class BindingsDriver:
    """The bindings as a `Driver`, with the primary context of one device.

    Other libraries of the process share it.

    Raises `ImportError` where they are not installed.
    """

    Error = DriverError

    def __init__(self, bindings: Any = None) -> None:
        self.cu: Any = CheckedCalls(bindings or import_module("cuda.bindings.driver"))
        #: Path of the driver's library in place of the system's.
        self.library: str | None = getattr(bindings, "library", None)
        self.ordinal = 0
        self.device: Any = None
        self.context: Any = None

    def count(self) -> int:
        self.cu.cuInit(0)
        return int(self.cu.cuDeviceGetCount())

    def open(self, ordinal: int) -> None:
        """Open a device.

        Its context becomes current in this thread where none is: another one is that of PyTorch's current device, whose
        streams PyTorch would lose.
        """
        self.retain(ordinal)
        if not int(self.cu.cuCtxGetCurrent()):
            self.cu.cuCtxPushCurrent(self.context)

    def retain(self, ordinal: int) -> None:
        """Open a device, and leave this thread's context as it is."""
        self.ordinal, self.device = ordinal, self.cu.cuDeviceGet(ordinal)
        self.context = self.cu.cuDevicePrimaryCtxRetain(self.device)

    def current(self) -> AbstractContextManager[None]:
        """Make the context current in this thread, where it is not."""
        return nullcontext() if int(self.cu.cuCtxGetCurrent()) == int(self.context) else self.push_context()

    def push_context(self) -> AbstractContextManager[None]:
        """Make the context current in this thread."""
        return pushed_context(lambda: self.cu.cuCtxPushCurrent(self.context), self.cu.cuCtxPopCurrent)

    def release(self, owner: object, call: str, *arguments: Any) -> None:
        """Make a call in the context when `owner` is deleted.

        It is not made when the interpreter ends, as the driver cleans up.
        """
        weakref.finalize(owner, self.call_unchecked, call, *arguments).atexit = False

    def call_unchecked(self, call: str, *arguments: Any) -> None:
        """Make a call that fails only where the context is lost."""
        bindings = self.cu.bindings
        bindings.cuCtxPushCurrent(self.context)
        getattr(bindings, call)(*arguments)
        bindings.cuCtxPopCurrent()

    def name(self) -> str:
        found: bytes = self.cu.cuDeviceGetName(256, self.device)
        return found.split(b"\0")[0].decode()

    def capability(self) -> tuple[int, int]:
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    def attribute(self, name: str, fallback: int = 0) -> int:
        """Return an attribute, or the fallback where the bindings lack it."""
        code = getattr(self.cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        return fallback if code is None else int(self.cu.cuDeviceGetAttribute(code, self.device))

    def describe(self) -> dict[str, object]:
        free, total = self.cu.cuMemGetInfo()
        return {"memory_bytes": int(total), "memory_free": int(free), "driver": int(self.cu.cuDriverGetVersion())}

    def synchronize(self) -> None:
        self.cu.cuCtxSynchronize()

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Return memory of zeros."""
        found = DeviceMemory(int(self.cu.cuMemAlloc(nbytes)))
        self.release(found, "cuMemFree", found.address)
        self.cu.cuMemsetD8(found.address, 0, nbytes)
        return found

    def pin(self, nbytes: int) -> Array:
        address = int(self.cu.cuMemHostAlloc(nbytes, 0))
        return self._pinned_array((ctypes.c_uint8 * nbytes).from_address(address), "cuMemFreeHost")

    def register(self, memory: Array) -> Array:
        self.cu.cuMemHostRegister(memory.ctypes.data, memory.nbytes, 0)
        return self._pinned_array((ctypes.c_uint8 * memory.nbytes).from_buffer(memory.data), "cuMemHostUnregister")

    def _pinned_array(self, owner: Any, free: str) -> Array:
        self.release(owner, free, ctypes.addressof(owner))
        return np.ctypeslib.as_array(owner)

    def zero_words(self, address: int, count: int, stream: DriverStream) -> None:
        self.cu.cuMemsetD32Async(address, 0, count, stream.raw)

    def upload(self, address: int, source: Array, stream: DriverStream | None = None) -> None:
        if stream is None:
            self.cu.cuMemcpyHtoD(address, source.ctypes.data, source.nbytes)
        else:
            self.cu.cuMemcpyHtoDAsync(address, source.ctypes.data, source.nbytes, stream.raw)

    def download(self, target: Array, address: int, stream: DriverStream | None = None) -> None:
        if stream is None:
            self.cu.cuMemcpyDtoH(target.ctypes.data, address, target.nbytes)
        else:
            self.cu.cuMemcpyDtoHAsync(target.ctypes.data, address, target.nbytes, stream.raw)

    def copy(self, target: int, source: int, nbytes: int, stream: DriverStream) -> None:
        self.cu.cuMemcpyDtoDAsync(target, source, nbytes, stream.raw)

    def stream(self, flags: int = 0) -> DriverStream:
        return DriverStream(self, flags)

    def event(self) -> DriverEvent:
        return DriverEvent(self)

    def load(self, kernel: KernelFunction, code: bytes) -> ModuleFunction:
        """Load a cubin, which is unloaded with its last reference."""
        found = self.load_module(kernel, code)
        self.release(found, "cuModuleUnload", found.module)
        return found

    def load_module(self, kernel: KernelFunction, code: bytes) -> ModuleFunction:
        """Load a cubin, which the caller unloads.

        Raises `BackendError` where it does not load.
        """
        try:
            module = self.cu.cuModuleLoadData(code)
            function = self.cu.cuModuleGetFunction(module, kernel.name.encode())
            if has_large_shared(kernel):
                limit = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.cu.cuFuncSetAttribute(function, limit, kernel.dynamic_shared)
        except DriverError as error:
            raise loading_error(kernel, self.name(), error.message) from error
        return ModuleFunction(function, module)

    def bind(self, loaded: Any, kernel: KernelFunction, addresses: tuple[int, ...], stream: DriverStream) -> Launch:
        """Return a launch; its arguments are packed once."""
        parameters = PackedParameters(kernel, self.cu)
        parameters.set(addresses)
        geometry = (loaded.function, *kernel.grid, *kernel.block, kernel.dynamic_shared, stream.raw)
        return owning_launch((loaded, parameters), self.cu.cuLaunchKernel, *geometry, parameters.address, 0)

    def capture(self, run: Launch, stream: Any) -> Any:
        """Return the graph of the launches of `run` on a stream."""
        # Relaxed: other threads of the process may allocate during the capture.
        self.cu.cuStreamBeginCapture(stream, self.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            run()
        finally:
            graph = self.cu.cuStreamEndCapture(stream)
        return graph


class DriverStream:
    """A stream; `handle` is its number, for other libraries."""

    def __init__(self, driver: BindingsDriver, flags: int) -> None:
        self._cu = driver.cu
        self.raw = self._cu.cuStreamCreate(flags)
        self.handle = int(self.raw)
        driver.release(self, "cuStreamDestroy", self.raw)

    def synchronize(self) -> None:
        self._cu.cuStreamSynchronize(self.raw)


class DriverEvent:
    """Event on a stream."""

    def __init__(self, driver: BindingsDriver) -> None:
        self._cu = driver.cu
        self.raw = self._cu.cuEventCreate(0)
        driver.release(self, "cuEventDestroy", self.raw)

    def record(self, stream: DriverStream) -> None:
        """Record it after all current work of a stream."""
        self._cu.cuEventRecord(self.raw, stream.raw)

    def query(self) -> bool:
        """Return whether the device has reached it."""
        result = self._cu.bindings.cuEventQuery(self.raw)
        if int(result[0]) == NOT_READY:
            return False
        self._cu.check(result)
        return True

    def synchronize(self) -> None:
        self._cu.cuEventSynchronize(self.raw)

    def time_till(self, end: DriverEvent) -> float:
        """Return the milliseconds until another event."""
        return float(self._cu.cuEventElapsedTime(self.raw, end.raw))
