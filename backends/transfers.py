"""Copies between host and device beside the kernels' queue.

Several threads copy at once.
"""

from __future__ import annotations

import mmap
from typing import Protocol

import numpy as np

from .device import Array, Pointer


class Transfers(Protocol):
    """Moves data beside the kernels' queue.

    Each call returns when its copy is done.
    """

    def allocate_pinned(self, nbytes: int) -> Array:
        """Return page-aligned bytes of host memory for fast copies."""

    def pin(self, memory: Array) -> Array:
        """Return page-aligned host memory, pinned where it lies until it is dropped."""

    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy to the device."""

    def download(self, destination: Array, source: Pointer) -> None:
        """Copy from the device."""

    def prepare(self) -> None:
        """Make the calling thread ready to copy; once in each thread."""


def aligned_bytes(nbytes: int) -> Array:
    """Return page-aligned host memory."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)[:nbytes]
