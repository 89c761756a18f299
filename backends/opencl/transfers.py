"""Copies to and from an OpenCL device, with a queue per thread."""

from __future__ import annotations

import threading
from typing import Any

from ..device import Array, Device, Pointer
from ..transfers import aligned_bytes


class OpenCLTransfers:
    """Queues beside the kernels' queue."""

    def __init__(self, device: Device) -> None:
        self._cl, self._context = device._cl, device._context  # type: ignore[attr-defined]
        self._local = threading.local()

    def prepare(self) -> None:
        """Threads need no preparation."""

    def allocate_pinned(self, nbytes: int) -> Array:
        """Return page-aligned host memory."""
        return aligned_bytes(nbytes)

    def pin(self, memory: Array) -> Array:
        """Return the memory as it is."""
        return memory

    def _queue(self) -> Any:
        if not hasattr(self._local, "queue"):
            self._local.queue = self._cl.CommandQueue(self._context)
        return self._local.queue

    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy to the device and wait for it."""
        if source.nbytes:
            self._cl.enqueue_copy(
                self._queue(), destination.buffer.handle, source, dst_offset=destination.offset, is_blocking=True
            )

    def download(self, destination: Array, source: Pointer) -> None:
        """Copy from the device and wait for it."""
        if destination.nbytes:
            self._cl.enqueue_copy(
                self._queue(), destination, source.buffer.handle, src_offset=source.offset, is_blocking=True
            )
