"""Time budget of a compilation, and the number of processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf
from pathlib import Path
from time import monotonic

from attrs import define, field

#: Share of a budget that is used up when a decision by measured times must be made, in the order of work: algorithms,
#: groups (by the cost model first), schedules, partition refinement, and horizontal fusion.
ALGORITHMS_SHARE, MODEL_SHARE, PARTITION_SHARE = 0.33, 0.48, 0.66
SCHEDULES_SHARE, REFINEMENT_SHARE, FULL_SHARE = 0.85, 0.92, 1.0
#: Share that is used up when kernels that no search reached must be checked.
UNSEARCHED_SHARE = 0.96
#: Seconds, and the largest part of a budget, that are reserved for the work after the last measurement.
RESERVE_SECONDS, RESERVE_SHARE = 2.0, 0.1
#: Seconds by which a budget may be exceeded, counted from the moment when only the needed seconds are left: a plan
#: without a search may take longer than the budget. `STOP_GRACE_SECONDS` is the same limit after a request to stop.
GRACE_SECONDS, STOP_GRACE_SECONDS = 3.0, 1.0
#: File of Linux with a container's processor quota: microseconds of processor time, in a period of microseconds.
QUOTA = Path("/sys/fs/cgroup/cpu.max")


@define
class Budget:
    """Seconds that a compilation may take; infinity without a limit.

    `clock` returns the time in seconds. `stopped` is set by `stop`. `spent` has the seconds of each stage that `stage`
    timed, `stages` the begin and end of each, `needed` the seconds that the work after the last measurement is known to
    take, `final_seconds` those of measurements after the search. Shares are counted from the moment when
    `counted` seconds were used up.
    """

    seconds: float = inf
    clock: Callable[[], float] = monotonic
    stopped: bool = False
    spent: dict[str, float] = field(factory=dict)
    stages: list[tuple[str, float, float]] = field(factory=list)
    needed: float = 0.0
    final_seconds: float = 0.0
    counted: float = field(default=0.0, init=False)
    begun: float = field(init=False)

    @begun.default
    def _clock_time(self) -> float:
        return self.clock()

    @staticmethod
    def of(seconds: float | None, clock: Callable[[], float] = monotonic) -> Budget:
        """Return a budget that begins now; none where there are no seconds."""
        return Budget(inf if seconds is None else seconds, clock)

    @staticmethod
    def since(begun: float, seconds: float | None) -> Budget:
        """Return a budget that began earlier, by the usual clock."""
        made = Budget.of(seconds)
        made.begun = min(made.begun, begun)
        return made

    @staticmethod
    def of_measuring(seconds: float | None, clock: Callable[[], float] = monotonic) -> Budget:
        """Return a budget that leaves so many seconds for measurements."""
        more = None if seconds is None else min(seconds + RESERVE_SECONDS, seconds / (1 - RESERVE_SHARE))
        return Budget.of(more, clock)

    @property
    def is_limited(self) -> bool:
        """Return whether the budget has an end."""
        return self.seconds < inf

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self.clock() - self.begun

    def remaining(self, share: float = FULL_SHARE) -> float:
        """Return the seconds until a share of the budget is used up.

        Reserved seconds are not counted; 0 where the share is over.
        """
        return max(0.0, self.counted + share * (self.seconds - self.reserved - self.counted) - self.elapsed)

    @property
    def reserved(self) -> float:
        """Seconds at the end in which no search runs."""
        if not self.is_limited:
            return 0.0
        return max(min(RESERVE_SECONDS, RESERVE_SHARE * self.seconds), self.committed) + self.final_seconds

    @property
    def committed(self) -> float:
        """Seconds that are known to be needed after the last measurement.

        At most the whole budget: a plan is made in any case.
        """
        return min(self.needed, self.seconds)

    def has(self, seconds: float) -> bool:
        """Return whether so many seconds are left, reserved ones included."""
        return self.elapsed + seconds <= self.seconds

    def over(self, share: float = FULL_SHARE) -> bool:
        """Return whether a share of it is used up."""
        return self.remaining(share) == 0.0

    def overdue(self) -> bool:
        """Return whether optional work must stop.

        True some time after only the seconds needed for an answer were left.
        """
        return self.elapsed > self.latest

    @property
    def latest(self) -> float:
        """Seconds since the beginning after which the budget is overdue."""
        return self.seconds - self.committed + (STOP_GRACE_SECONDS if self.stopped else GRACE_SECONDS)

    @contextmanager
    def restart_shares(self) -> Iterator[None]:
        """Count shares in a block as parts of the remaining seconds."""
        before, self.counted = self.counted, self.elapsed
        try:
            yield
        finally:
            self.counted = before

    @contextmanager
    def final_measurements(self) -> Iterator[float]:
        """Release the seconds reserved for measurements after the search, and yield them.

        Seconds that the block does not use are reserved again.
        """
        kept, start, self.final_seconds = self.final_seconds, self.elapsed, 0.0
        try:
            yield kept
        finally:
            self.final_seconds = max(0.0, kept - (self.elapsed - start))

    def stop(self) -> None:
        """End the budget now; its users take the best result so far."""
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


@define
class BudgetShares:
    """Budget of compilations that follow one another, of unknown number.

    Each may take half of the seconds that are left, the last one all of them. Where graph breaks divide a function,
    none is known to be the last. `begun` is the time from which seconds count: tracing does, too.
    """

    seconds: float = inf
    is_divided: bool = False
    clock: Callable[[], float] = monotonic
    spent: float = 0.0
    begun: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.begun = self.clock()

    def resume(self) -> None:
        """Count seconds from now on."""
        self.begun = self.clock()

    def restart(self) -> None:
        """Give all seconds back, for the same compilations of other shapes."""
        self.spent = 0.0
        self.resume()

    @contextmanager
    def share(self, is_last: bool) -> Iterator[Budget]:
        """Yield the budget of the next compilation."""
        left = max(0.0, self.seconds - self.spent)
        budget = Budget(left if is_last and not self.is_divided else left / 2, self.clock)
        budget.begun = self.begun
        try:
            yield budget
        finally:
            self.spent += budget.elapsed
            self.resume()


def processor_count(quota: Path = QUOTA) -> int:
    """Return the number of processors that this process may run on.

    Its affinity and the quota of its container limit it.
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        share, period = quota.read_text().split()
        return max(1, min(found, ceil(int(share) / int(period))))
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return found
