"""Bayesian search with early stop, when little improvement is expected.

It stops once the last points gained nothing beyond noise and little is expected of one more kernel. The constants come
from recorded spaces (`bench/stops.py`, docs/search.md): a search that waits for one point more tries a seventh more,
and its kernel is 0.1 to 1.4 % faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from attrs import define

from .bayes import Bayes
from .proposer import Known
from .surrogate import Outlook

#: Relative gain below which times count as equal: the tie band of a choice.
TIE_BAND = 0.01
#: Points in a row without a gain after which the surrogate may end the search.
VAIN = 3
#: Points that are measured before unsuccessful ones count (with one, kernels were 3.4 % slower).
FEW = 2
#: Relative gain of one more kernel below which the search ends.
WORTH = 0.02


@define
class Frugal(Bayes):
    """Propose the largest expected improvement, until it is small.

    The search ends after `vain` unsuccessful points if the expected relative gain is below `worth`.
    """

    vain: int = VAIN
    worth: float = WORTH

    def goes_on(self, known: Sequence[Known], outlook: Outlook | None) -> bool:
        """Return whether a recent point gained, or the next is expected to."""
        if outlook is None:
            return False
        vain = self.vain if _differ(known) else 2 * self.vain
        before = min((k.seconds for k in known[:-vain]), default=inf)
        if (
            len(known) < max(FEW, self.begun) + vain
            or min(k.seconds for k in known[-vain:]) < (1.0 - TIE_BAND) * before
        ):
            return True
        return float(outlook.gains.max()) >= self.worth


def _differ(known: Sequence[Known]) -> bool:
    """Return whether times differ: equal ones say nothing about the cause of a faster kernel."""
    ran = [k.seconds for k in known if k.seconds < inf]
    return max(ran, default=0.0) > (1.0 + TIE_BAND) * min(ran, default=0.0)
