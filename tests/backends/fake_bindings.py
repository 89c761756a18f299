"""Driver in Python that stands in for `cuda.bindings.driver`, on host memory.

Kernels are Python functions. Every call except those that start the driver requires a context that is current in the
thread, as the real driver does.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

ANYWHERE = {"cuInit", "cuDeviceGet", "cuDeviceGetCount", "cuDeviceGetName", "cuDeviceGetAttribute", "cuGetErrorName",
            "cuDevicePrimaryCtxRetain", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuCtxPushCurrent",
            "cuDriverGetVersion", "cuCtxGetCurrent"}  # fmt: skip
#: The primary context of the device, and one of another.
PRIMARY, OTHER = 16, 32
INVALID, NO_CONTEXT, NO_MEMORY, NOT_READY = 1, 201, 2, 600


class FakeNames:
    """Enumeration whose members are their names."""

    def __getattr__(self, name: str) -> str:
        return name


class FakeTensorMap:
    """Tensor map whose first word is the address, followed by the rank."""

    def __init__(self, address: int, rank: int) -> None:
        self.words = (ctypes.c_uint64 * 16)(address, rank)

    def getPtr(self) -> int:
        return ctypes.addressof(self.words)


class FakeBindings:
    """Driver of one device with 1 MB of memory.

    `live` holds the objects that are created and not destroyed. A `busy` device has reached no event yet, a `faulty`
    one fails.
    """

    CUtensorMapDataType = CUtensorMapInterleave = CUtensorMapSwizzle = FakeNames()
    CUtensorMapL2promotion = CUtensorMapFloatOOBfill = FakeNames()
    cuuint64_t = cuuint32_t = int
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic shared")

    def __init__(self, kernels: Mapping[str, Callable[..., None]], attributes: Mapping[str, int]) -> None:
        self.kernels, self.attributes = kernels, attributes
        names = {f"CU_DEVICE_ATTRIBUTE_{name}": name for name in attributes}
        self.CUdevice_attribute = SimpleNamespace(**names)
        self.live: dict[int, Any] = {}
        self.log: list[str] = []
        self.busy = self.faulty = False
        self._current = threading.local()
        self._made = 0

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        found = getattr(type(self), f"_{name}", None)
        if found is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            if name not in ANYWHERE and not self.contexts:
                return (NO_CONTEXT,)
            result: tuple[Any, ...] = found(self, *arguments)
            return result

        return call

    @property
    def contexts(self) -> list[int]:
        """The contexts of this thread, the current one last."""
        if not hasattr(self._current, "stack"):
            self._current.stack = []
        found: list[int] = self._current.stack
        return found

    def _make(self, what: Any) -> tuple[int, int]:
        self._made += 1
        self.live[self._made] = what
        return 0, self._made

    def _destroy(self, number: int) -> tuple[int]:
        del self.live[int(number)]
        return (0,)

    # ---- devices and contexts

    def _cuInit(self, flags: int) -> tuple[int]:
        return (0,)

    def _cuGetErrorName(self, code: int) -> tuple[int, bytes]:
        return 0, {
            INVALID: b"CUDA_ERROR_INVALID_VALUE",
            NO_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
            NO_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
        }[code]

    def _cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def _cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def _cuDeviceGetName(self, length: int, device: int) -> tuple[int, bytes]:
        return 0, b"Fake GPU".ljust(length, b"\0")

    def _cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[int, int]:
        return 0, self.attributes[attribute]

    def _cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, int]:
        return 0, PRIMARY

    def _cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, self.contexts[-1] if self.contexts else 0

    def _cuCtxPushCurrent(self, context: int) -> tuple[int]:
        self.contexts.append(context)
        return (0,)

    def _cuCtxPopCurrent(self) -> tuple[int, int]:
        return 0, self.contexts.pop()

    def _cuCtxSynchronize(self) -> tuple[int]:
        self.log.append("wait for all")
        return (0,)

    def _cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 13000

    def _encode_map(
        self, kind: str, rank: int, address: int, dims: list[int], strides: list[int], box: list[int], *rest: object
    ) -> tuple[int, FakeTensorMap | None]:
        assert len(dims) == len(box) == rank and len(strides or ()) == rank - 1
        self.log.append(f"map {kind} {dims} {strides} {box} {' '.join(map(str, rest[1:]))}")
        return (INVALID, None) if address % 16 else (0, FakeTensorMap(address, rank))

    _cuTensorMapEncodeTiled = _encode_map

    def _cuTensorMapEncodeIm2col(
        self, kind: str, rank: int, address: int, dims: list[int], strides: list[int], *walk: object
    ) -> tuple[int, FakeTensorMap | None]:
        assert len(dims) == rank == len(strides) + 1
        self.log.append(f"walk {kind} {dims} {' '.join(map(str, walk))}")
        return (INVALID, None) if address % 16 else (0, FakeTensorMap(address, rank))

    # ---- memory

    def _cuMemGetInfo(self) -> tuple[int, int, int]:
        return 0, 1 << 19, 1 << 20

    def _cuMemAlloc(self, nbytes: int) -> tuple[int, ...]:
        if nbytes > 1 << 20:
            return (NO_MEMORY,)
        memory = (ctypes.c_uint8 * nbytes)()
        self.live[ctypes.addressof(memory)] = memory
        return 0, ctypes.addressof(memory)

    def _cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[int, ...]:
        return self._cuMemAlloc(nbytes)

    def _cuMemsetD8(self, address: int, value: int, count: int) -> tuple[int]:
        ctypes.memset(address, value, count)
        return (0,)

    def _cuMemsetD32Async(self, address: int, value: int, count: int, stream: int) -> tuple[int]:
        (ctypes.c_uint32 * count).from_address(address)[:] = [value] * count
        return (0,)

    def _cuMemcpyHtoD(self, destination: int, source: int, nbytes: int) -> tuple[int]:
        ctypes.memmove(destination, source, nbytes)
        return (0,)

    def _cuMemcpyHtoDAsync(self, destination: int, source: int, nbytes: int, stream: int) -> tuple[int]:
        assert stream in self.live
        return self._cuMemcpyHtoD(destination, source, nbytes)

    _cuMemcpyDtoH = _cuMemcpyHtoD
    _cuMemcpyDtoHAsync = _cuMemcpyDtoDAsync = _cuMemcpyHtoDAsync
    _cuMemFree = _cuMemFreeHost = _cuModuleUnload = _cuStreamDestroy = _cuEventDestroy = _destroy

    # ---- work

    def _cuStreamCreate(self, flags: int) -> tuple[int, int]:
        return self._make(f"stream {flags}")

    def _cuStreamSynchronize(self, stream: int) -> tuple[int]:
        assert stream in self.live
        return (0,)

    _cuEventSynchronize = _cuStreamSynchronize

    def _cuEventCreate(self, flags: int) -> tuple[int, int]:
        return self._make([])

    def _cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        assert stream in self.live
        self.live[event].append(stream)
        return (0,)

    def _cuEventQuery(self, event: int) -> tuple[int]:
        assert self.live[event]
        return (NO_MEMORY if self.faulty else NOT_READY if self.busy else 0,)

    def _cuEventElapsedTime(self, begin: int, end: int) -> tuple[int, float]:
        assert self.live[begin] and self.live[end]
        return 0, 0.25

    def _cuModuleLoadData(self, code: bytes) -> tuple[int, int]:
        return self._make(code)

    def _cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, str]:
        assert module in self.live
        return 0, name.decode()

    def _cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> tuple[int]:
        self.log.append(f"{function}: {attribute} {value}")
        return (0,)

    def _cuLaunchKernel(self, function: str, *rest: Any) -> tuple[int]:
        *geometry, shared, stream, arguments, extra = rest
        assert len(geometry) == 6 and stream in self.live and extra == 0
        run = self.kernels[function]
        places = (ctypes.c_void_p * run.__code__.co_argcount).from_address(arguments)
        run(*(ctypes.c_uint64.from_address(place or 0).value for place in places))
        self.log.append(f"{function} shared {shared}")
        return (0,)
