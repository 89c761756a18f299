"""Loop fusion of independent reductions over one row, which share loads.

acc0 = sum over r of dy[n, r]; acc1 = sum over r of dy[n, r] * (x[n, r] - mean[n])
    ->  for r: acc0 += dy[n, r]; acc1 += dy[n, r] * (x[n, r] - mean[n])
"""

from __future__ import annotations

from functools import lru_cache

from ....ir import Reduction, ReductionSchedule, Segment, reads


@lru_cache(maxsize=4096)
def shareable_loops(segment: Segment) -> tuple[bool, ...]:
    """Return, per reduction, whether it may join the preceding reduction's loop.

    It runs over the same elements and reads no result of the reductions in that loop.
    """
    found: list[bool] = []
    run: list[Reduction] = []
    for reduction in segment.reductions:
        names = {r.name for r in run}
        same_row = bool(run) and run[-1].reduce == reduction.reduce and not (run[-1].along or reduction.along)
        found.append(same_row and not any(read.tensor in names for read in reads(reduction.body)))
        run = [*run, reduction] if found[-1] else [reduction]
    return tuple(found)


def can_share_loop(schedule: ReductionSchedule, before: ReductionSchedule) -> bool:
    """Return whether schedules let a reduction join the preceding loop.

    Nothing may be staged.
    """
    plain = not (schedule.staging or before.staging or schedule.atom or before.atom)
    return plain and schedule.dims == before.dims
