"""Bayesian search over the whole space.

It examines points anywhere besides the neighbours of the fastest and the cost model's best. Where the cost model's
scores of hundreds of points differ by less than a thousandth, as for a kernel that moves little data, its best points
and their neighbours lie close together. Where it overestimates a structure, no point near the fastest belongs to it. A
surrogate is least sure of points that differ from all measured ones, so it proposes these where the near ones promise
as little.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...passes.schedule import Point
from .bayes import NUM_RANDOM, Bayes
from .proposer import Observation


class ExhaustiveBayes(Bayes):
    """Propose the largest expected improvement in the whole space."""

    def further_points(self, known: Sequence[Observation]) -> list[Point]:
        """Return points besides the neighbours of the fastest, random ones included."""
        return [
            *super().further_points(known),
            *(self.domain.random(NUM_RANDOM, (self.seed, len(known))) if self.aided else ()),
        ]
