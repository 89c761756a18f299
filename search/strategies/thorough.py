"""Search by expected gain over all of a space: beside what lies near to the fastest, and the model's best, points that
lie anywhere are looked at.

Where the model tells hundreds of points from each other by less than a thousandth, as of a kernel that moves little
data, its best lie side by side, and so do their neighbours. Where it holds a structure for slower than it is, nothing
near the fastest belongs to it. A surrogate is least sure of points that are unlike all that ran, so that it asks for
these where what is near promises as little.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...passes.schedule import Point
from .bayes import RANDOM, Bayes
from .proposer import Known


class Thorough(Bayes):
    """Proposes what is expected to gain most, wherever it lies."""

    def beyond(self, known: Sequence[Known]) -> list[Point]:
        """Return what is looked at beside the neighbours of the fastest: with the model's help its best, too."""
        return [*super().beyond(known), *(self.ground.random(RANDOM, (self.seed, len(known))) if self.aided else ())]
