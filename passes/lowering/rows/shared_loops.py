"""Reductions over one row that do not wait for each other: one loop serves them, and what they share is loaded once.

acc0 = sum over r of dy[n, r]; acc1 = sum over r of dy[n, r] * (x[n, r] - mean[n])
    ->  for r: acc0 += dy[n, r]; acc1 += dy[n, r] * (x[n, r] - mean[n])
"""

from __future__ import annotations

from functools import lru_cache

from ....ir import Reduction, ReductionSchedule, Segment, reads


@lru_cache(maxsize=4096)
def may_share(segment: Segment) -> tuple[bool, ...]:
    """Return of each reduction whether the loop of the one before it may serve it too: it runs over the same elements
    and reads no result of those that this loop serves.
    """
    found: list[bool] = []
    run: list[Reduction] = []
    for reduction in segment.reductions:
        names = {r.name for r in run}
        alike = bool(run) and run[-1].reduce == reduction.reduce and not (run[-1].along or reduction.along)
        found.append(alike and not any(read.tensor in names for read in reads(reduction.body)))
        run = [*run, reduction] if found[-1] else [reduction]
    return tuple(found)


def share_loop(schedule: ReductionSchedule, before: ReductionSchedule) -> bool:
    """Whether a schedule lets a reduction take part in the loop of the one before it: nothing is staged."""
    plain = not (schedule.staging or before.staging or schedule.atom or before.atom)
    return plain and schedule.dims == before.dims
