"""Driver calls through NVIDIA's bindings, with handles as PyCUDA has them."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from attrs import frozen

from ...ir import BackendError
from .arguments import MAP_KIND, pack_parameters

#: Result of the driver where the device is still at work.
NOT_READY = 600


class DriverError(BackendError):
    """Failed call of the driver, with the name of its error."""


class PrimaryContext:
    """Primary context of a device, shared with other libraries of the process."""

    def __init__(self, calls: DriverCalls, device: Any, raw: Any) -> None:
        self._calls, self.device, self.raw = calls, device, raw

    def is_current(self) -> bool:
        """Return whether it is current in this thread."""
        return int(self._calls.check(self._calls.cu.cuCtxGetCurrent())) == int(self.raw)

    def push(self) -> None:
        """Make it current in this thread."""
        self._calls.check(self._calls.cu.cuCtxPushCurrent(self.raw))

    def pop(self) -> None:
        """Restore the previously current context."""
        self._calls.check(self._calls.cu.cuCtxPopCurrent())


class DriverCalls:
    """Bindings, and the context that was opened through them.

    Raises `ImportError` where they are not installed.
    """

    def __init__(self, cu: Any = None) -> None:
        self.cu: Any = cu or import_module("cuda.bindings.driver")
        self.context: PrimaryContext | None = None

    def check(self, result: Sequence[Any]) -> Any:
        """Return the result of a call.

        Raises `DriverError` where it failed.
        """
        if int(result[0]) != 0:
            name = self.cu.cuGetErrorName(result[0])[1]
            raise DriverError(name.decode() if isinstance(name, bytes) else str(name))
        return result[1] if len(result) == 2 else tuple(result[1:])

    def release(self, owner: object, action: Callable[..., Any], *arguments: Any) -> None:
        """Run an action in the context when `owner` is deleted.

        It does not run when the interpreter ends, as the driver cleans up.
        """
        weakref.finalize(owner, self._in_context, action, *arguments).atexit = False

    def _in_context(self, action: Callable[..., Any], *arguments: Any) -> None:
        if self.context is not None:
            self.context.push()
            action(*arguments)  # a failure now means that the context is lost, and its memory with it
            self.context.pop()


class DriverMemory:
    """Device memory; its integer value is its address."""

    def __init__(self, calls: DriverCalls, nbytes: int) -> None:
        self._address = int(calls.check(calls.cu.cuMemAlloc(nbytes)))
        calls.release(self, calls.cu.cuMemFree, self._address)

    def __int__(self) -> int:
        return self._address


@frozen
class Foreign:
    """Device memory that another library owns; `owner` keeps it alive."""

    address: int
    owner: object

    def __int__(self) -> int:
        return self.address


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
        self._module, self._calls, self.raw = module, calls, raw

    def set_attribute(self, attribute: Any, value: int) -> None:
        """Set an attribute of the kernel."""
        self._calls.check(self._calls.cu.cuFuncSetAttribute(self.raw, attribute, value))

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
                self.raw, *_three(grid), *_three(block), shared_size, stream.raw, parameters.address, 0
            )
        )


def _three(extents: Sequence[int]) -> tuple[int, ...]:
    return (*extents, 1, 1)[:3]
