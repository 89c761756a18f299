"""Optimisations of one thread's kernel: merged, vectorised and interleaved accesses, shared reciprocals."""

from .quotients import share_reciprocals
from .spread import spread_copies
from .widen import widen
from .windows import LARGEST, merge_windows

__all__ = ["LARGEST", "merge_windows", "share_reciprocals", "spread_copies", "widen"]
