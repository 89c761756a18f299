"""What a compilation may take: one clock that every stage looks at, and how many processors there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf
from pathlib import Path
from time import monotonic

from attrs import define, field

#: What share of a budget is used up when a decision by measured times must have been made, in the order of work: which
#: algorithms, which groups (by the model first), which schedules, whether groups are taken apart again, and which share
#: a launch.
ALGORITHMS_SHARE, MODEL_SHARE, PARTITION_SHARE = 0.33, 0.48, 0.66
SCHEDULES_SHARE, SECOND_SHARE, WHOLE = 0.85, 0.92, 1.0
#: What share is used up when kernels that no search came to must have been looked at.
LOOK_SHARE = 0.96
#: Seconds, and the part of a budget at most, that are kept back for what comes behind the last measurement.
RESERVE, RESERVE_SHARE = 2.0, 0.1
#: Seconds after which a budget is overdue, behind the moment in which only what is needed is left of it: so long the
#: plan that there is without a budget may take more than one. The same where somebody waits for it to stop.
GRACE, STOPPED = 3.0, 1.0
#: Where Linux says how much of the processors a container gets: microseconds of them, in so many.
QUOTA = Path("/sys/fs/cgroup/cpu.max")


@define
class Budget:
    """Seconds that a compilation may take, from when this was made; infinity where nobody set a limit.

    `clock` tells the time in seconds. `stopped` says that it was ended early, by `stop`. `spent` has the seconds of
    each stage that `stage` timed, `stages` when each began and ended, `needed` the seconds that what comes behind the
    last measurement is known to take, `later` those of measurements behind the search. Shares are counted from where
    `counted` seconds of it were used up.
    """

    seconds: float = inf
    clock: Callable[[], float] = monotonic
    stopped: bool = False
    spent: dict[str, float] = field(factory=dict)
    stages: list[tuple[str, float, float]] = field(factory=list)
    needed: float = 0.0
    later: float = 0.0
    counted: float = field(default=0.0, init=False)
    begun: float = field(init=False)

    @begun.default
    def _now(self) -> float:
        return self.clock()

    @staticmethod
    def of(seconds: float | None, clock: Callable[[], float] = monotonic) -> Budget:
        """Return a budget that begins now; none where there are no seconds."""
        return Budget(inf if seconds is None else seconds, clock)

    @staticmethod
    def since(begun: float, seconds: float | None) -> Budget:
        """Return a budget that began at a moment of the usual clock, when whoever asks was asked."""
        made = Budget.of(seconds)
        made.begun = min(made.begun, begun)
        return made

    @staticmethod
    def of_measuring(seconds: float | None, clock: Callable[[], float] = monotonic) -> Budget:
        """Return a budget that begins now, of which so many seconds may be measured."""
        more = None if seconds is None else min(seconds + RESERVE, seconds / (1 - RESERVE_SHARE))
        return Budget.of(more, clock)

    @property
    def limited(self) -> bool:
        """Whether there is an end at all."""
        return self.seconds < inf

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self.clock() - self.begun

    def left(self, share: float = WHOLE) -> float:
        """Return the seconds until a share of it is used up, what is kept back for the end of the work not counted;
        nothing where it is over.
        """
        return max(0.0, self.counted + share * (self.seconds - self.kept_back - self.counted) - self.elapsed)

    @property
    def kept_back(self) -> float:
        """Seconds at the end in which nothing is searched for."""
        if not self.limited:
            return 0.0
        return max(min(RESERVE, RESERVE_SHARE * self.seconds), self.promised) + self.later

    @property
    def promised(self) -> float:
        """Seconds of the budget that are known to be needed for what comes behind the last measurement: all of them,
        for a plan is made whatever was measured.
        """
        return min(self.needed, self.seconds)

    def has(self, seconds: float) -> bool:
        """Whether so many seconds are left until the very end, what is kept back for it counted."""
        return self.elapsed + seconds <= self.seconds

    def over(self, share: float = WHOLE) -> bool:
        """Whether a share of it is used up."""
        return self.left(share) == 0.0

    def overdue(self) -> bool:
        """Whether no more than what is needed for an answer was left some time ago, so that all else is left out."""
        return self.elapsed > self.latest

    @property
    def latest(self) -> float:
        """The seconds since it began behind which it is overdue."""
        return self.seconds - self.promised + (STOPPED if self.stopped else GRACE)

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Count shares in a block from its beginning on: they are of what is left."""
        before, self.counted = self.counted, self.elapsed
        try:
            yield
        finally:
            self.counted = before

    @contextmanager
    def behind_search(self) -> Iterator[float]:
        """Have the seconds that are kept back for measurements behind the search, and yield them; what a block does not
        take of them is kept back again.
        """
        kept, start, self.later = self.later, self.elapsed, 0.0
        try:
            yield kept
        finally:
            self.later = max(0.0, kept - (self.elapsed - start))

    def stop(self) -> None:
        """End it now: whoever looks at it takes the best so far."""
        self.seconds, self.stopped = min(self.seconds, self.elapsed), True

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to those of a stage."""
        start = self.clock()
        try:
            yield
        finally:
            end = self.clock()
            self.spent[name] = self.spent.get(name, 0.0) + end - start
            self.stages.append((name, start, end))


def cores(quota: Path = QUOTA) -> int:
    """Return the number of processors that this process may run on: those of the machine, as far as its affinity and
    the quota of its container let it.
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        share, period = quota.read_text().split()
        return max(1, min(found, ceil(int(share) / int(period))))
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return found
