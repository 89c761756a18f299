"""Library kernels as candidates beside generated ones: what a module that wraps a vendor's library offers to the
partition search.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

from attrs import frozen

from ..ir import FusedGroup


class LibraryCandidate(Protocol):
    """One routine of a library, for the groups that it can compute."""

    @property
    def name(self) -> str:
        """What reports call it, with the library's version."""
        ...

    def supports(self, group: FusedGroup) -> bool:
        """Whether it computes exactly what the group does."""
        ...

    def time(self, group: FusedGroup) -> float:
        """Return its seconds on the device, measured as candidates are, the best of its own algorithms; infinity where
        it fails.
        """
        ...


@frozen
class LibraryTime:
    """The fastest library routine for a group: its name, empty for none, and its seconds."""

    name: str = ""
    seconds: float = inf


def fastest_library(group: FusedGroup, candidates: Sequence[LibraryCandidate]) -> LibraryTime:
    """Return the fastest routine that computes a group; ties go to the earlier one."""
    times = [LibraryTime(c.name, c.time(group)) for c in candidates if c.supports(group)]
    return min(times, key=lambda t: t.seconds, default=LibraryTime())
