"""Emission of thread-level kernels in tests."""

from __future__ import annotations

from cuts.backends import source
from cuts.ir import HorizontalKernel, Kernel, KernelFunction
from cuts.passes.instructions import select_instructions


def emit(kernel: Kernel | HorizontalKernel, dialect: str) -> KernelFunction:
    """Select the instructions of an extracted kernel, and return its function."""
    if isinstance(kernel, Kernel):
        return source.emit(select_instructions(kernel, dialect), dialect)
    return source.emit(HorizontalKernel(tuple(select_instructions(k, dialect) for k in kernel.kernels)), dialect)
