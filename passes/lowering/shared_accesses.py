"""Accesses of phases to shared memory, as intervals of elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from attrs import frozen

from ...ir import (
    Guard,
    Index,
    Indirect,
    Load,
    Phase,
    Share,
    Store,
    Var,
    confine,
    index_value,
    indirects,
    post_order,
    ranges,
    substitute,
    substitute_guards,
    variables,
)

#: Most threads' elements of one access that are listed.
MAX_LISTED_POINTS = 1 << 16


@frozen
class SharedAccess:
    """Elements of a shared buffer that a phase accesses under some guards."""

    buffer: str
    address: Index
    guards: tuple[Guard, ...]


@frozen
class Extent:
    """Interval of elements of a shared buffer that a phase accesses."""

    phase: str
    buffer: str
    first: int
    last: int
    own: tuple[Index, frozenset[Share]] | None = None

    def overlaps(self, other: Extent) -> bool:
        """Return whether the two have an element in common."""
        return self.buffer == other.buffer and self.first <= other.last and other.first <= self.last

    @property
    def text(self) -> str:
        """The interval in the form of reports."""
        return f"{self.buffer}[{self.first}..{self.last}]"


def shared_accesses(phase: Phase, kind: type[Load] | type[Store]) -> list[SharedAccess]:
    """Return the accesses of one kind to shared memory."""
    nodes = (n for n in post_order(phase.roots) if isinstance(n, kind) and n.space == "shared")
    plain = (n for n in nodes if not (isinstance(n, Store) and n.into))
    return list(dict.fromkeys(SharedAccess(n.buffer, n.address, n.guards) for n in plain))


def atomic_updates(phase: Phase) -> list[SharedAccess]:
    """Return the atomic updates of shared memory in a phase."""
    nodes = (n for n in phase.roots if isinstance(n, Store) and n.space == "shared" and n.into)
    return list(dict.fromkeys(SharedAccess(n.buffer, n.address, n.guards) for n in nodes))


def access_bounds(access: SharedAccess, steps: Mapping[Var, int], size: int) -> tuple[int, int] | None:
    """Return the first and the last element that an access may touch.

    None where its guards fail in all threads. Where bounds exceed the `size` of the buffer, elements are listed: guards
    may be of digits of a thread's place.
    """
    limits = ranges(substitute_guards(access.guards, steps))
    if limits is None:
        return None
    low, high = confine(substitute(access.address, steps), limits).bounds()
    if low >= 0 and high < size:
        return low, high
    elements = touched_elements(access, steps)
    if elements is None:
        return low, high
    return (min(elements), max(elements)) if elements else None


def touched_elements(access: SharedAccess, steps: Mapping[Var, int]) -> frozenset[int] | None:
    """Return the elements that an access touches.

    None where they are too many to list.
    """
    address, guards = substitute(access.address, steps), substitute_guards(access.guards, steps)
    indices = (address, *(g.index for g in guards))
    used = sorted(frozenset[Var]().union(*map(variables, indices)), key=lambda v: v.name)
    if prod(v.extent for v in used) > MAX_LISTED_POINTS or any(map(indirects, indices)):
        return None
    at: dict[Var | Indirect, Any] = dict(zip(used, np.indices([v.extent for v in used]), strict=True))
    inside = np.ones([v.extent for v in used], dtype=bool)
    for guard in guards:
        value = index_value(guard.index, at.__getitem__)
        inside = inside & (value >= guard.low) & (value < guard.high)
    elements = np.broadcast_to(index_value(address, at.__getitem__), inside.shape)[inside]
    return frozenset(elements.tolist())


def merge_intervals(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return intervals in order, neighbours and overlapping ones as one."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found
