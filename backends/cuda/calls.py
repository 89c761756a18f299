"""Calls of the CUDA driver through NVIDIA's bindings, with their clean-up."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


class DriverError(Exception):
    """Failed call of the driver, with the name of its error."""


class PrimaryContext:
    """Primary context of a device, shared with other libraries of the process."""

    def __init__(self, calls: DriverCalls, device: Any, raw: Any) -> None:
        self._calls, self.device, self._raw = calls, device, raw

    def is_current(self) -> bool:
        """Return whether it is current in this thread."""
        return int(self._calls.check(self._calls.cu.cuCtxGetCurrent())) == int(self._raw)

    def push(self) -> None:
        """Make it current in this thread."""
        self._calls.check(self._calls.cu.cuCtxPushCurrent(self._raw))

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
