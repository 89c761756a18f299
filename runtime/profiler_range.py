"""NVTX ranges around launches, where the package nvtx is installed.

Profilers show the range "cuts: NAME" of a plan above its kernels.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any


def profiler_range(name: str) -> AbstractContextManager[Any]:
    """Return a range of a plan's name, which can be entered repeatedly."""
    annotate = _annotate()
    return nullcontext() if annotate is None else annotate(f"cuts: {name}", color="green")


@cache
def _annotate() -> Any:
    try:
        return import_module("nvtx").annotate
    except ImportError:
        return None
