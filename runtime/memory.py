"""Placement of buffers in a plan's arena by lifetime.

Two buffers that are live at the same step never overlap.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Protocol, Self, TypeVar

from attrs import frozen

#: Every buffer begins at a multiple of this; the widest vector loads and cache lines of all targets divide it.
ALIGNMENT = 256

Key = TypeVar("Key", bound=Hashable)


class LifetimeLike(Protocol):
    """Lifetime of a buffer."""

    @property
    def first(self) -> int:
        """First step of the lifetime; at equal sizes the earlier goes first."""

    def overlaps(self, other: Self) -> bool:
        """Return whether two buffers must not share memory."""


AnyLife = TypeVar("AnyLife", bound=LifetimeLike)


@frozen
class Lifetime:
    """First and last step at which a buffer holds a needed value."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether both are live at some step."""
        return self.first <= other.last and other.first <= self.last

    def extend(self, step: int) -> Lifetime:
        """Return the lifetime that also covers a step."""
        return Lifetime(min(self.first, step), max(self.last, step))


@frozen
class Placement:
    """A buffer's place in the arena, in bytes."""

    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte after it that another buffer may use."""
        return self.offset + align_bytes(self.nbytes)


def align_bytes(nbytes: int) -> int:
    """Round up to the alignment.

    An empty buffer still gets a place of its own.
    """
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


def place_buffers(sizes: Mapping[Key, int], lifetimes: Mapping[Key, AnyLife]) -> tuple[dict[Key, Placement], int]:
    """Place every buffer and return the arena's size.

    Large buffers come first, each in the tightest gap between its contemporaries.
    """
    placed: dict[Key, Placement] = {}
    taken: list[tuple[int, int, int, AnyLife]] = []  # where each placed buffer begins and ends, in order; its number
    order = sorted(sizes, key=lambda key: (-sizes[key], lifetimes[key].first))
    for number, key in enumerate(order):
        life = lifetimes[key]
        place = placed[key] = Placement(_best_gap(align_bytes(sizes[key]), life, taken), sizes[key])
        insort(taken, (place.offset, place.end, number, life), key=itemgetter(0, 1, 2))
    return {key: placed[key] for key in sizes}, max((end for _, end, _, _ in taken), default=0)


def _best_gap(needed: int, life: AnyLife, taken: Sequence[tuple[int, int, int, AnyLife]]) -> int:
    """Return the offset of the smallest sufficient gap between the buffers live at some step of a lifetime, or the end
    after them; `taken` is ordered by begin.
    """
    best, slack, cursor = -1, 0, 0
    for begin, end, _, other in taken:
        if end <= cursor or not other.overlaps(life):
            continue
        gap = begin - cursor
        if gap >= needed and (best < 0 or gap - needed < slack):
            best, slack = cursor, gap - needed
        cursor = end
    return best if best >= 0 else cursor
