"""How fast groups are measured, and what that says of the model's costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from attrs import define

#: Most groups that are measured at once under a budget: whatever it cuts short, most of the rest is known then.
CHUNK, LEAST_CHUNK = 64, 8
#: Groups per second that are measured together, until it is known.
PACE = 4.0
#: Part of the measured groups that did no worse, compared with the model, than those are taken to do that were not
#: measured, where a budget may leave them so.
DOUBT = 0.75


@define
class Pace:
    """The seconds that it took to measure groups, and how many these were."""

    spent: float = 0.0
    count: int = 0

    @property
    def rate(self) -> float:
        """Groups that are measured per second."""
        return self.count / self.spent if self.count and self.spent else PACE

    def size(self, left: float) -> int:
        """Return how many groups to measure together, so that some seconds are enough for them."""
        return int(min(CHUNK, max(LEAST_CHUNK, self.rate * left)))

    def note(self, seconds: float, count: int) -> None:
        """Take in what it took to measure some groups."""
        self.spent, self.count = self.spent + seconds, self.count + count


def scale_of(ratios: Sequence[float], doubting: bool) -> float:
    """Return what the model's costs are multiplied with, given measured costs over the model's; where not all groups
    will be measured, those that are not have to be better than most, so that an optimistic guess replaces no group that
    is known to be good.
    """
    if not ratios:
        return 1.0
    return sorted(ratios)[int(DOUBT * len(ratios))] if doubting else median(ratios)
