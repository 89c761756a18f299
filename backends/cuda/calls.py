"""Calls of the CUDA driver through NVIDIA's bindings: what they return, and what is undone when an object is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


class DriverError(Exception):
    """A call of the driver that failed, by the name of its error."""


class PrimaryContext:
    """The primary context of a device, which other libraries of the process use too."""

    def __init__(self, calls: DriverCalls, device: Any, raw: Any) -> None:
        self._calls, self.device, self._raw = calls, device, raw

    def push(self) -> None:
        """Make it current in this thread."""
        self._calls.checked(self._calls.cu.cuCtxPushCurrent(self._raw))

    def pop(self) -> None:
        """Make what was current before current again."""
        self._calls.checked(self._calls.cu.cuCtxPopCurrent())


class DriverCalls:
    """The bindings, and the context that was opened through them.

    Raises `ImportError` where they are not installed.
    """

    def __init__(self, cu: Any = None) -> None:
        self.cu: Any = cu or import_module("cuda.bindings.driver")
        self.context: PrimaryContext | None = None

    def checked(self, result: Sequence[Any]) -> Any:
        """Return what a call returned. Raises `DriverError` where it failed."""
        if int(result[0]) != 0:
            name = self.cu.cuGetErrorName(result[0])[1]
            raise DriverError(name.decode() if isinstance(name, bytes) else str(name))
        return result[1] if len(result) == 2 else tuple(result[1:])

    def release(self, owner: object, action: Callable[..., Any], *arguments: Any) -> None:
        """Do something in the context when `owner` is gone, but not when the interpreter ends: the driver cleans up."""
        weakref.finalize(owner, self._within, action, *arguments).atexit = False

    def _within(self, action: Callable[..., Any], *arguments: Any) -> None:
        if self.context is not None:
            self.context.push()
            action(*arguments)  # what fails now fails because the context is lost, and its memory with it
            self.context.pop()
