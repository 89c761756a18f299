"""CUDA driver through NVIDIA's bindings, under the names of PyCUDA.

PyCUDA is built from source against a CUDA toolkit; the bindings are a wheel. Where only they are installed, plans still
run: this module has the calls of `pycuda.driver` that this package makes, and no others.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from ..device import Array
from .handles import (
    DriverCalls,
    DriverError,
    DriverEvent,
    DriverMemory,
    DriverModule,
    DriverStream,
    PrimaryContext,
)

#: Environment variable with the number of the device to open, as for PyCUDA.
ORDINAL_VARIABLE = "CUDA_DEVICE"


class _Names:
    """Members of an enumeration by the end of their names, as PyCUDA names them."""

    def __init__(self, members: Any, prefix: str) -> None:
        self._members, self._prefix = members, prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._members, f"{self._prefix}{name}")


class BindingsDriver(DriverCalls):
    """The driver, and the primary context of one device.

    Calls raise `DriverError` where they fail.
    """

    Error = DriverError

    def __init__(self, cu: Any = None) -> None:
        super().__init__(cu)
        self.device_attribute = _Names(self.cu.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_")
        self.function_attribute = _Names(self.cu.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_")
        self.Device, self.Context = _Devices(self), _Contexts(self)

    def init(self) -> None:
        """Start the driver."""
        self.check(self.cu.cuInit(0))

    def open(self) -> PrimaryContext:
        """Return the device's primary context.

        It becomes current in this thread where no context is: another one is that of PyTorch's current device, whose
        streams PyTorch would lose.
        """
        if self.context is None:
            device = self.check(self.cu.cuDeviceGet(int(os.environ.get(ORDINAL_VARIABLE, "0"))))
            self.context = PrimaryContext(self, device, self.check(self.cu.cuDevicePrimaryCtxRetain(device)))
            if not int(self.check(self.cu.cuCtxGetCurrent())):
                self.context.push()
        return self.context

    # ---- memory

    def mem_alloc(self, nbytes: int) -> DriverMemory:
        """Allocate device memory, freed with the object."""
        return DriverMemory(self, nbytes)

    def memset_d8(self, address: int, value: int, count: int) -> None:
        """Fill bytes."""
        self.check(self.cu.cuMemsetD8(address, value, count))

    def memset_d32_async(self, address: int, value: int, count: int, stream: DriverStream) -> None:
        """Fill words on a stream."""
        self.check(self.cu.cuMemsetD32Async(address, value, count, stream.raw))

    def memcpy_htod(self, destination: int, source: Array) -> None:
        """Copy a dense array to the device."""
        self.check(self.cu.cuMemcpyHtoD(destination, source.ctypes.data, source.nbytes))

    def memcpy_dtoh(self, destination: Array, source: int) -> None:
        """Copy to a dense array."""
        self.check(self.cu.cuMemcpyDtoH(destination.ctypes.data, source, destination.nbytes))

    def memcpy_htod_async(self, destination: int, source: Array, stream: DriverStream) -> None:
        """Copy a dense array to the device on a stream."""
        self.check(self.cu.cuMemcpyHtoDAsync(destination, source.ctypes.data, source.nbytes, stream.raw))

    def memcpy_dtoh_async(self, destination: Array, source: int, stream: DriverStream) -> None:
        """Copy to a dense array on a stream."""
        self.check(self.cu.cuMemcpyDtoHAsync(destination.ctypes.data, source, destination.nbytes, stream.raw))

    def memcpy_dtod_async(self, destination: int, source: int, nbytes: int, stream: DriverStream) -> None:
        """Copy within the device on a stream."""
        self.check(self.cu.cuMemcpyDtoDAsync(destination, source, nbytes, stream.raw))

    def pagelocked_empty(self, count: int, dtype: str) -> Array:
        """Return an array in pinned host memory."""
        nbytes = count * np.dtype(dtype).itemsize
        address = int(self.check(self.cu.cuMemHostAlloc(nbytes, 0)))
        owner = (ctypes.c_uint8 * nbytes).from_address(address)
        self.release(owner, self.cu.cuMemFreeHost, address)
        return np.ctypeslib.as_array(owner).view(dtype)

    def register_host_memory(self, memory: Array) -> Array:
        """Return page-aligned host memory, pinned where it lies."""
        address, nbytes = memory.ctypes.data, memory.nbytes
        self.check(self.cu.cuMemHostRegister(address, nbytes, 0))
        owner = (ctypes.c_uint8 * nbytes).from_buffer(memory.data)
        self.release(owner, self.cu.cuMemHostUnregister, address)
        return np.ctypeslib.as_array(owner)

    def mem_get_info(self) -> tuple[int, int]:
        """Return the bytes that are free, and all there are."""
        free, total = self.check(self.cu.cuMemGetInfo())
        return int(free), int(total)

    def get_driver_version(self) -> int:
        """Return the driver's newest supported CUDA version, as 1000 times its number."""
        return int(self.check(self.cu.cuDriverGetVersion()))

    # ---- work

    def Stream(self, flags: int = 0) -> DriverStream:
        """Return a new stream."""
        return DriverStream(self, flags)

    def Event(self) -> DriverEvent:
        """Return a new event."""
        return DriverEvent(self)

    def module_from_buffer(self, code: bytes) -> DriverModule:
        """Load a cubin."""
        return DriverModule(self, code)


class _Contexts:
    """Methods of PyCUDA's context class, for the current context."""

    def __init__(self, driver: BindingsDriver) -> None:
        self._driver = driver

    def get_device(self) -> GpuDevice:
        return GpuDevice(self._driver, self._driver.open().device)

    def synchronize(self) -> None:
        self._driver.check(self._driver.cu.cuCtxSynchronize())

    def pop(self) -> None:
        self._driver.check(self._driver.cu.cuCtxPopCurrent())


class _Devices:
    def __init__(self, driver: BindingsDriver) -> None:
        self._driver = driver

    def count(self) -> int:
        return int(self._driver.check(self._driver.cu.cuDeviceGetCount()))


class GpuDevice:
    """Device whose attributes can be queried."""

    def __init__(self, driver: BindingsDriver, raw: Any) -> None:
        self._driver, self._raw = driver, raw

    def name(self) -> str:
        """The model's name."""
        found: bytes = self._driver.check(self._driver.cu.cuDeviceGetName(256, self._raw))
        return found.split(b"\0")[0].decode()

    def get_attribute(self, attribute: Any) -> int:
        """Return the value of an attribute."""
        return int(self._driver.check(self._driver.cu.cuDeviceGetAttribute(attribute, self._raw)))

    def compute_capability(self) -> tuple[int, int]:
        """Return major and minor number."""
        names = self._driver.device_attribute
        return self.get_attribute(names.COMPUTE_CAPABILITY_MAJOR), self.get_attribute(names.COMPUTE_CAPABILITY_MINOR)
