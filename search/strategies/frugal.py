"""Search by expected gain that ends early: once the last points gained nothing, and the greatest gain that is expected
of one more kernel is below the tie band, what another kernel may bring could not be told from noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from .bayes import BEGUN, Bayes
from .proposer import Known
from .surrogate import Outlook

#: A gain below this part of the best time is none: the tie band of a choice.
BAND = 0.01
#: Points in a row that gained nothing before a surrogate is believed that the next will not either.
VAIN = 6


class Frugal(Bayes):
    """Proposes what is expected to gain most, for as long as it does."""

    def goes_on(self, known: Sequence[Known], outlook: Outlook | None) -> bool:
        """Whether one of the last points gained, or one more is expected to."""
        if outlook is None:
            return False
        before = min((k.seconds for k in known[:-VAIN]), default=inf)
        if len(known) < BEGUN + VAIN or min(k.seconds for k in known[-VAIN:]) < (1.0 - BAND) * before:
            return True
        return float(outlook.gains.max()) >= BAND
