"""Schedules of kernels that share a launch.

What a small kernel takes by itself is a launch and a round trip to memory, whatever its schedule: 26 gathers in blocks
of 32 elements took 20 us on an H200, each of them 1.5 us. So kernels without sums are scheduled for their part of the
machine, those over the same axes alike where that is legal, so that their blocks are equally wide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from attrs import evolve, frozen

from ..ir import FusedGroup, Schedule, Target
from .schedule import Candidate, assess, check_schedule, choose


@frozen(eq=False)
class Alike:
    """Kernels without sums over the same axes, each as one of `count` in a launch, and what the model says of each by
    itself.
    """

    forms: tuple[FusedGroup, ...]
    scores: tuple[float, ...]
    count: int
    target: Target


#: Returns the kernels of each row as `scheduled_alike` has them, nothing for the rows that are left to who asks: of a
#: training step of Inception-v3 there are two hundred, which take a process 20 seconds.
Ask: TypeAlias = Callable[[Sequence[Alike]], Sequence[Sequence[Candidate] | None]]


def scheduled_alike(row: Alike, over: Callable[[], bool] = lambda: False) -> list[Candidate]:
    """Return each kernel with the schedule of the one in front of it, where that is legal, else with the model's for
    its part of the machine. Once it is `over`, those at the end are left out.
    """
    found: list[Candidate] = []
    schedule: Schedule | None = None
    for form, score in zip(row.forms, row.scores, strict=True):
        if over():
            break
        if schedule is None or check_schedule(form, schedule, row.target):
            schedule = choose(form, _part_of(row.target, row.count))[0].schedule
        found.append(assess(form, schedule, row.target, score))
    return found


def _part_of(target: Target, count: int) -> Target:
    """Return one of so many equal parts of a machine."""
    return evolve(
        target,
        NUM_SM=max(1, target.NUM_SM // count),
        PERF_peak=target.PERF_peak / count,
        BW_global=target.BW_global / count,
        l2_bandwidth=target.l2_bandwidth / count,
    )
