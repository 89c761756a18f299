"""Search domain in a learned order: all points with their predicted seconds."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from ...passes.schedule import Point
from ..learned import LearnedOrder, rescore
from .search_domain import FullSpace, Place, place_of


@define
class CorrectedSpace(FullSpace):
    """Points of a space, scored by the cost model and corrected."""

    correction: LearnedOrder = field(kw_only=True)
    _predictions: dict[Place, float] = field(init=False, factory=dict)

    def random(self, count: int, seed: Sequence[int]) -> list[Point]:
        """Return legal points in a random order, equally many of each structure."""
        return self.rescore(super().random(count, seed))

    def legal(self, places: Sequence[Place]) -> list[Point]:
        """Return the legal ones of given points with their scores, in order."""
        return self.rescore(super().legal(places))

    def near(self, points: Sequence[Point]) -> set[Point]:
        """Return the points that differ in one parameter."""
        return set(self.rescore(sorted(super().near(points))))

    def rescore(self, points: Sequence[Point]) -> list[Point]:
        """Return points with their predicted seconds."""
        new = [p for p in points if place_of(p) not in self._predictions]
        self._predictions |= {place_of(p): p.score for p in rescore(self.space, new, self.correction)}
        return [Point(self._predictions[place_of(p)], p.structure, p.places) for p in points]
