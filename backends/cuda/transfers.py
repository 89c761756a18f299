"""Copies to and from a CUDA device, with a stream per thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...ir import BackendError
from ..device import Array, Pointer
from .driver import driver

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream, so kernels go on meanwhile


class CudaTransfers:
    """Streams that kernels do not wait for, and pinned host memory."""

    def __init__(self) -> None:
        self._driver = driver()
        self._local = threading.local()

    def prepare(self) -> None:
        """Do nothing: PyCUDA aborts where a thread ends with a context."""

    @contextmanager
    def _current(self) -> Iterator[Any]:
        """Make the context current, and yield this thread's stream."""
        with self._driver.current():
            if not hasattr(self._local, "stream"):
                self._local.stream = self._driver.stream(_NON_BLOCKING)
            yield self._local.stream

    def allocate_pinned(self, nbytes: int) -> Array:
        return self._pin(nbytes, lambda: self._driver.pin(max(nbytes, 1))[:nbytes])

    def pin(self, memory: Array) -> Array:
        """Return page-aligned host memory, pinned where it lies."""
        return self._pin(memory.nbytes, lambda: self._driver.register(memory))

    def _pin(self, nbytes: int, call: Callable[[], Array]) -> Array:
        """Raise `BackendError` where the driver refuses a call."""
        try:
            with self._driver.current():
                return call()
        except self._driver.Error as error:
            raise BackendError(f"cannot pin {nbytes:,} bytes of host memory: {error}") from error

    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy to the device and wait for it."""
        if source.nbytes:
            with self._current() as stream:
                self._driver.upload(destination.address, source, stream)
                stream.synchronize()

    def download(self, destination: Array, source: Pointer) -> None:
        """Copy from the device and wait for it."""
        if destination.nbytes:
            with self._current() as stream:
                self._driver.download(destination, source.address, stream)
                stream.synchronize()
