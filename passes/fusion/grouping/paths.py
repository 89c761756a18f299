"""Reachability between the groups of a partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import define

V = TypeVar("V")


@define
class Paths(Generic[V]):
    """Reachability between the vertices of a partition.

    Units are bits: each vertex `has` some, `leads` to others, directly or indirectly, and `follows` others; `at` has
    the vertex of each unit.

    A merged set must stay convex: no path leaves it and comes back. Nearly every considered merge asks for that, and
    graph walks take a tenth of the partition time of a training step. A merged vertex leads to all that its parts led
    to, and so do the vertices that led to one of them; those that led to all of them did so before.
    """

    has: dict[V, int]
    leads: dict[V, int]
    follows: dict[V, int]
    at: list[V]

    @classmethod
    def of(cls, owner: Mapping[str, V], successors: Callable[[V], Iterable[V]]) -> Paths[V]:
        """Return the reachability of a partition, given owners and successors."""
        has: dict[V, int] = {}
        for number, vertex in enumerate(owner.values()):
            has[vertex] = has.get(vertex, 0) | 1 << number
        readers = {vertex: tuple(successors(vertex)) for vertex in has}
        sources: dict[V, list[V]] = {vertex: [] for vertex in has}
        for vertex, following in readers.items():
            for reader in following:
                sources[reader].append(vertex)
        return cls(has, _closure(has, readers, reversed), _closure(has, sources, iter), list(owner.values()))

    def join(self, parts: Collection[V], merged: V) -> None:
        """Replace several vertices by one."""
        has, leads, after_all = self._union(parts, self.leads)
        _, follows, before_all = self._union(parts, self.follows)
        self._extend(self.leads, follows & ~before_all & ~has, has | leads)
        self._extend(self.follows, leads & ~after_all & ~has, has | follows)
        for part in parts:
            del self.has[part], self.leads[part], self.follows[part]
        for number in _bits(has):
            self.at[number] = merged
        self.has[merged], self.leads[merged], self.follows[merged] = has, leads, follows

    def _union(self, parts: Collection[V], reached: Mapping[V, int]) -> tuple[int, int, int]:
        """Return the units of vertices, those that some of them reach, and those that all of them reach."""
        has, some, every = 0, 0, -1
        for part in parts:
            has, some, every = has | self.has[part], some | reached[part], every & reached[part]
        return has, some, every

    def _extend(self, reached: dict[V, int], units: int, more: int) -> None:
        """Let the vertices of some units reach more units."""
        while units:
            vertex = self.at[(units & -units).bit_length() - 1]
            reached[vertex] |= more
            units &= ~self.has[vertex]

    def lead_to(self, vertices: Iterable[V], ends: Iterable[V]) -> bool:
        """Return whether a path leads from some vertices to others."""
        wanted = 0
        for end in ends:
            wanted |= self.has[end]
        return any(self.leads[vertex] & wanted for vertex in vertices)

    def copy(self) -> Paths[V]:
        """Return an independent copy."""
        return Paths(dict(self.has), dict(self.leads), dict(self.follows), list(self.at))


def _closure(
    has: Mapping[V, int], following: Mapping[V, Sequence[V]], order: Callable[[Any], Iterator[V]]
) -> dict[V, int]:
    """Return the units that each vertex reaches."""
    reached, changed = dict.fromkeys(has, 0), True
    while changed:  # two rounds suffice for groups in graph order
        changed = False
        for vertex in order(has):
            found = 0
            for other in following[vertex]:
                found |= has[other] | reached[other]
            changed = changed or found != reached[vertex]
            reached[vertex] = found
    return reached


def _bits(units: int) -> Iterator[int]:
    """Yield the numbers of units."""
    while units:
        yield (units & -units).bit_length() - 1
        units &= units - 1
