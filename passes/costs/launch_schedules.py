"""Schedules of kernels that share a launch.

The time of a small kernel is a launch and a round trip to memory for nearly all schedules, and many narrow blocks slow
a shared launch down. So kernels without sums are scheduled for their share of the machine, and those over the same axes
with one schedule where that is legal, so that their blocks are equally wide. Products of one row, as of queries and
keys, take nearly the same time with blocks of several widths.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from attrs import evolve, frozen

from ...ir import FusedGroup, Schedule, Target
from ..fusion import form_key
from ..schedule import Candidate, assess, check_schedule, choose
from .executor import ModelQuery

#: Candidates among which one with blocks of a wanted width is looked for.
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


def schedule_as_wide(form: FusedGroup, candidate: Candidate, threads: float, target: Target) -> Candidate:
    """Return a candidate with blocks of some threads, if there is one."""
    varied = choose(form, target, count=VARIED_CANDIDATES)
    found = next((c for c in varied if c.features["threads"] == threads), None)
    return candidate if found is None else evolve(found, measured=candidate.measured)


def _part_of(target: Target, count: int) -> Target:
    """Return one of `count` equal parts of a machine."""
    return evolve(
        target,
        NUM_SM=max(1, target.NUM_SM // count),
        PERF_peak=target.PERF_peak / count,
        BW_global=target.BW_global / count,
        l2_bandwidth=target.l2_bandwidth / count,
    )
