"""Rank that ends early: once the greatest gain that a surrogate expects of one more kernel is below the tie band, what
another kernel may bring could not be told from noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from ..build import Scored
from .bayes import FEWEST, MOST, looked_at
from .model_guided import Rank
from .proposer import Known, fastest
from .surrogate import Surrogate, expected_gain

#: A gain that is expected below this part of the best time is none: the tie band of a choice.
BAND = 0.01
#: Points that are tried in any case: a surrogate of few knows too little to say that nothing is left.
TRIED = 24


class Frugal(Rank):
    """The neighbours of what was measured to be fast, for as long as a surrogate expects them to gain."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return what `rank` proposes; nothing where no point is expected to gain."""
        return super().propose(known, best, count) if self.gain(known) >= BAND else []

    def gain(self, known: Sequence[Known]) -> float:
        """Return the greatest gain that is expected of one more point, as a part of the best time."""
        ran = fastest(known, MOST)
        if len(known) < TRIED or len(ran) < FEWEST:
            return inf
        points = looked_at(self, known)
        if not points:
            return 0.0
        mean, deviation = Surrogate.fitted(self.ground, ran, self.aided).predict(points)
        return float(np.max(expected_gain(mean, deviation, ran[0].seconds)))
