"""Cubins of a plan's kernels: those that it has, and compiled ones.

Most plans have all of them, and the compilers are imported where one is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import KernelFunction
from ..library import DIALECT


def complete_binaries(kernels: Sequence[KernelFunction], binaries: Sequence[bytes | None], arch: str) -> list[bytes]:
    """Return the cubins of kernels, compiling missing ones; library steps have none."""
    codes: list[bytes | None] = list(binaries) if binaries else [None] * len(kernels)
    missing = [index for index, code in enumerate(codes) if code is None and kernels[index].dialect != DIALECT]
    if missing:
        from .cubins import compile_kernels

        for index, cubin in zip(missing, compile_kernels([kernels[i] for i in missing], arch), strict=True):
            codes[index] = cubin.code
    return [code or b"" for code in codes]
