"""Search by expected gain that ends early: once the last points gained nothing that could be told from noise, and
little is expected of one more kernel.

How many and how little, and from which point on a surrogate is asked, recorded spaces say (`bench/stops.py`,
docs/search.md): a search that waits for one point more tries a seventh more, and its kernel is 0.1 to 1.4 % faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from attrs import define

from .bayes import Bayes
from .proposer import Known
from .surrogate import Outlook

#: A gain below this part of the best time is none: the tie band of a choice.
BAND = 0.01
#: Points in a row that gained nothing before a surrogate is believed that the next will not either.
VAIN = 3
#: Points that are known before those in vain are counted: behind one and three in vain, kernels were 3.4 % slower.
FEW = 2
#: A gain of one more kernel, as a part of the best time, that is worth no search if no more is expected.
WORTH = 0.02


@define
class Frugal(Bayes):
    """Proposes what is expected to gain most, until a few points were in `vain` and less than `worth` is expected."""

    vain: int = VAIN
    worth: float = WORTH

    def goes_on(self, known: Sequence[Known], outlook: Outlook | None) -> bool:
        """Whether one of the last points gained, or one more is expected to."""
        if outlook is None:
            return False
        vain = self.vain if _differ(known) else 2 * self.vain
        before = min((k.seconds for k in known[:-vain]), default=inf)
        if len(known) < max(FEW, self.begun) + vain or min(k.seconds for k in known[-vain:]) < (1.0 - BAND) * before:
            return True
        return float(outlook.gains.max()) >= self.worth


def _differ(known: Sequence[Known]) -> bool:
    """Whether points take different times: where all take the same, nothing is known of what makes one faster."""
    ran = [k.seconds for k in known if k.seconds < inf]
    return max(ran, default=0.0) > (1.0 + BAND) * min(ran, default=0.0)
