"""Schedules of kernels that share a launch.

The time of a small kernel is a launch and a round trip to memory for nearly all schedules, and many narrow blocks slow
a shared launch down. So kernels without sums are scheduled for their share of the machine, and those over the same axes
with one schedule where that is legal, so that their blocks are equally wide. So are products of one row, as of queries
and keys: alone, a small one takes short blocks that fill the machine, and each computes the norm of the row again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice

from attrs import evolve, frozen

from ...ir import FusedGroup, Schedule, Target
from ..fusion import form_key
from ..schedule import Candidate, assess, check_schedule, choose
from .executor import ModelQuery

#: Candidates among which one is looked for that is legal for all products.
VARIED_CANDIDATES = 16


@frozen(eq=False)
class MemberRow(ModelQuery[Sequence[Candidate]]):
    """Kernels without sums over the same axes that share a launch.

    Each is one of `count` members; `scores` are the seconds of each alone by the cost model. A training step of
    Inception-v3 has two hundred rows, which take one process 20 seconds.
    """

    forms: tuple[FusedGroup, ...]
    scores: tuple[float, ...]
    count: int
    target: Target

    @property
    def key(self) -> Hashable:
        """Key of rows with equal answers."""
        return tuple(map(form_key, self.forms)), self.scores, self.count


def schedule_row(row: MemberRow, over: Callable[[], bool] = lambda: False) -> list[Candidate]:
    """Return the kernels of a row with schedules for a shared launch.

    Each has the schedule of its predecessor where that is legal, else the best by the model for its share of the
    machine. Once it is `over`, the rest of the row is left out.
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


def schedule_products(forms: Sequence[FusedGroup], target: Target) -> list[Candidate]:
    """Return products of one row with one schedule, or nothing.

    It is the best of the largest product for its share of the machine that is legal for all.
    """
    sizes = [sum(form.tensors[name].nbytes for name in form.inputs) for form in forms]
    largest = forms[sizes.index(max(sizes))]
    for candidate in choose(largest, _part_of(target, sum(sizes) / max(sizes)), count=VARIED_CANDIDATES):
        schedules = [_adopt(candidate.schedule, form) for form in forms]
        if not any(check_schedule(form, schedule, target) for form, schedule in zip(forms, schedules, strict=True)):
            return [assess(form, schedule, target) for form, schedule in zip(forms, schedules, strict=True)]
    return []


def _adopt(schedule: Schedule, form: FusedGroup) -> Schedule:
    """Return a schedule over the axes of another group."""
    segments = []
    for own, segment in zip(schedule.segments, form.segments, strict=False):
        axes = iter(segment.axes)
        segments.append(evolve(own, dims=tuple(evolve(d, axes=tuple(islice(axes, len(d.axes)))) for d in own.dims)))
    return evolve(schedule, segments=tuple(segments))


def _part_of(target: Target, count: float) -> Target:
    """Return one of `count` equal parts of a machine."""
    return evolve(
        target,
        NUM_SM=max(1, int(target.NUM_SM / count)),
        PERF_peak=target.PERF_peak / count,
        BW_global=target.BW_global / count,
        l2_bandwidth=target.l2_bandwidth / count,
    )
