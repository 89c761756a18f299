"""Search by expected gain that ends early: once the last points gained nothing, and the greatest gain that is expected
of one more kernel is below the tie band, what another kernel may bring could not be told from noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ..build import Scored
from .bayes import BEGUN, Bayes
from .proposer import Known

#: A gain below this part of the best time is none: the tie band of a choice.
BAND = 0.01
#: Points in a row that gained nothing before a surrogate is believed that the next will not either.
VAIN = 6


class Frugal(Bayes):
    """Proposes what is expected to gain most, for as long as it does."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the points of the greatest expected gain; nothing where none is expected to gain."""
        return super().propose(known, best, count) if self.promising(known) else []

    def promising(self, known: Sequence[Known]) -> bool:
        """Whether one of the last points gained, or one more is expected to."""
        before = min((k.seconds for k in known[:-VAIN]), default=inf)
        if len(known) < BEGUN + VAIN or min(k.seconds for k in known[-VAIN:]) < (1.0 - BAND) * before:
            return True
        points = self.looked_at(known)
        return bool(points) and float(self.surrogate.believed(known, points).gains.max()) >= BAND
