"""Memory, streams, events and kernels through NVIDIA's bindings, as in PyCUDA."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .arguments import MAP_KIND, pack_parameters
from .calls import DriverCalls

#: Result of the driver where the device is still at work.
NOT_READY = 600


class DriverMemory:
    """Device memory; its integer value is its address."""

    def __init__(self, calls: DriverCalls, nbytes: int) -> None:
        self._address = int(calls.check(calls.cu.cuMemAlloc(nbytes)))
        calls.release(self, calls.cu.cuMemFree, self._address)

    def __int__(self) -> int:
        return self._address


class DriverStream:
    """A stream; `handle` is its number, for other libraries."""

    def __init__(self, calls: DriverCalls, flags: int) -> None:
        self._calls = calls
        self.raw = calls.check(calls.cu.cuStreamCreate(flags))
        self.handle = int(self.raw)
        calls.release(self, calls.cu.cuStreamDestroy, self.raw)

    def synchronize(self) -> None:
        """Wait for all its work."""
        self._calls.check(self._calls.cu.cuStreamSynchronize(self.raw))


class DriverEvent:
    """Event on a stream."""

    def __init__(self, calls: DriverCalls) -> None:
        self._calls = calls
        self.raw = calls.check(calls.cu.cuEventCreate(0))
        calls.release(self, calls.cu.cuEventDestroy, self.raw)

    def record(self, stream: DriverStream) -> None:
        """Record it after all current work of a stream."""
        self._calls.check(self._calls.cu.cuEventRecord(self.raw, stream.raw))

    def query(self) -> bool:
        """Return whether the device has reached it."""
        result = self._calls.cu.cuEventQuery(self.raw)
        if int(result[0]) == NOT_READY:
            return False
        self._calls.check(result)
        return True

    def synchronize(self) -> None:
        """Wait for it."""
        self._calls.check(self._calls.cu.cuEventSynchronize(self.raw))

    def time_till(self, end: DriverEvent) -> float:
        """Return the milliseconds until another event."""
        return float(self._calls.check(self._calls.cu.cuEventElapsedTime(self.raw, end.raw)))


class DriverModule:
    """A loaded cubin."""

    def __init__(self, calls: DriverCalls, code: bytes) -> None:
        self._calls = calls
        self._raw = calls.check(calls.cu.cuModuleLoadData(code))
        calls.release(self, calls.cu.cuModuleUnload, self._raw)

    def get_function(self, name: str) -> DriverFunction:
        """Return one of its kernels."""
        return DriverFunction(
            self, self._calls, self._calls.check(self._calls.cu.cuModuleGetFunction(self._raw, name.encode()))
        )


class DriverFunction:
    """A kernel of addresses and tensor maps; it keeps its module."""

    def __init__(self, module: DriverModule, calls: DriverCalls, raw: Any) -> None:
        self._module, self._calls, self._raw = module, calls, raw

    def set_attribute(self, attribute: Any, value: int) -> None:
        """Set an attribute of the kernel."""
        self._calls.check(self._calls.cu.cuFuncSetAttribute(self._raw, attribute, value))

    def prepare(self, kinds: str) -> None:
        """Declare the argument types: only addresses and tensor maps are supported."""
        assert re.fullmatch(f"(P|([0-9]+x)?{MAP_KIND})*", kinds), f"arguments {kinds}, expected addresses"

    def prepared_async_call(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        stream: DriverStream,
        *arguments: int | bytes,
        shared_size: int = 0,
    ) -> None:
        """Launch it on a stream."""
        parameters = pack_parameters(arguments)
        self._calls.check(
            self._calls.cu.cuLaunchKernel(
                self._raw, *_three(grid), *_three(block), shared_size, stream.raw, parameters.address, 0
            )
        )


def _three(extents: Sequence[int]) -> tuple[int, ...]:
    return (*extents, 1, 1)[:3]
