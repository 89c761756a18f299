"""Copies between host and device beside the kernels' queue, from several threads at once."""

from __future__ import annotations

import mmap
from typing import Protocol

import numpy as np

from .device import Array, Pointer


class Transfers(Protocol):
    """What moves data beside the queue that kernels are launched in; each call returns when its copy is done."""

    def pinned(self, nbytes: int) -> Array:
        """Return bytes of host memory, page-aligned, that the device copies from at full speed."""

    def upload(self, destination: Pointer, source: Array) -> None:
        """Copy to the device."""

    def download(self, destination: Array, source: Pointer) -> None:
        """Copy from the device."""

    def prepare(self) -> None:
        """Make the calling thread ready to copy; once in each thread."""


def aligned_bytes(nbytes: int) -> Array:
    """Return page-aligned host memory."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)[:nbytes]
