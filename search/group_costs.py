"""Costs of groups: measured times, else those of the scaled cost model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf, isnan
from statistics import median

from attrs import define, field, frozen

from ..ir import FusedGroup, Target
from ..passes import MeasuredTimes, Roofline
from ..passes.fusion import GroupEvaluator, form_key, form_text
from ..store import digest
from .tasks import TuningTask
from .tuner import Tuner

#: Largest and smallest number of groups that are measured at once under a budget: when it ends, most of the rest is
#: known.
MAX_GROUPS_AT_ONCE, MIN_GROUPS_AT_ONCE = 96, 8
#: Assumed number of groups measured per second, until it is known.
GROUPS_PER_SECOND = 4.0
#: Quantile of the measured groups' ratio of time to cost that is assumed for unmeasured ones, where a budget may leave
#: such.
UNMEASURED_QUANTILE = 0.75
#: Smallest share of a measured time that belongs to the kernel itself.
MIN_KERNEL_SHARE = 0.2


@define
class Pace:
    """Seconds spent on measuring groups, and their number."""

    spent: float = 0.0
    count: int = 0

    @property
    def rate(self) -> float:
        """Groups measured per second."""
        return self.count / self.spent if self.count and self.spent else GROUPS_PER_SECOND

    def size(self, seconds: float) -> int:
        """Return the number of groups to measure in the given seconds."""
        return int(min(MAX_GROUPS_AT_ONCE, max(MIN_GROUPS_AT_ONCE, self.rate * seconds)))

    def note(self, seconds: float, count: int) -> None:
        """Add the time of measuring some groups."""
        self.spent, self.count = self.spent + seconds, self.count + count


@frozen(eq=False)
class KnownCosts:
    """Costs that all compilations of a session share, by normal form.

    These are evaluated groups, their modelled seconds, and measured `times` with the `pace` of measuring.
    """

    times: MeasuredTimes
    groups: dict[Hashable, FusedGroup] = field(factory=dict)
    modelled: dict[Hashable, float] = field(factory=dict)
    pace: Pace = field(factory=Pace)

    @classmethod
    def of(cls, tuner: Tuner, target: Target) -> KnownCosts:
        """Return costs without any results."""
        return cls(MeasuredTimes(True, 1.0, _without_overhead(tuner, target), lambda: tuner.complete))


def _without_overhead(tuner: Tuner, target: Target) -> Callable[[float], float]:
    """Return the conversion of the time of a kernel in isolation to its time among others."""
    return lambda seconds: max(seconds - tuner.overhead(target), MIN_KERNEL_SHARE * seconds)


@define(eq=False)
class GroupCosts:
    """Evaluator of groups for one compilation.

    Groups without a measurement have the time of the `model`, which the database keeps: it takes a while to compute.
    `times` are those known so far.
    """

    target: Target
    tuner: Tuner
    known: KnownCosts
    times: MeasuredTimes
    model: GroupEvaluator | None = None

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group: measured, or the scaled cost model's."""
        key = form_key(group)
        if not group.adds_to_memory:  # a second run would give another result
            self.known.groups.setdefault(key, group)
        return self.times.seconds.get(key, self.times.scale * self.model_seconds(key, group))

    def model_seconds(self, key: Hashable, group: FusedGroup) -> float:
        """Return the cost model's seconds of a group, NaN without an answer."""
        known, database = self.known.modelled, self.tuner.executor.database
        if key not in known:
            name = digest(f"{self.target}\n{form_text(group)}")
            kept = database.predicted_seconds(name)
            assert self.model is not None, "the pipeline asks for the evaluator first"
            found = self.model.cost(group) if kept is None else kept
            if isnan(found):  # not evaluated in time, but may be later
                return found
            known[key] = found
            if kept is None and found < inf:
                database.keep_prediction(name, found)
        return known[key]

    def gain(self, problem: TuningTask) -> float:
        """Return the seconds beyond the roofline of all launches of a kernel.

        Without a measurement it is the whole cost by the model.
        """
        key, least = form_key(problem.form), Roofline(self.target).cost(problem.form)
        if key in self.times.seconds:
            return problem.uses * max(0.0, self.times.seconds[key] - least)
        seconds = self.model_seconds(key, problem.form)
        return problem.uses * (least if isnan(seconds) else seconds)

    def by_gain(self, problems: Sequence[TuningTask]) -> list[TuningTask]:
        """Return tasks, those with the largest possible saving first."""
        return sorted(problems, key=lambda problem: -self.gain(problem))

    def groups_without_times(self) -> dict[Hashable, FusedGroup]:
        """Return evaluated groups of finite cost without a measurement."""
        seconds, modelled = self.times.seconds, self.known.modelled
        return {k: g for k, g in self.known.groups.items() if k not in seconds and modelled.get(k, 0.0) < inf}

    def to_measure(self, questions: Sequence[Sequence[FusedGroup]]) -> dict[Hashable, FusedGroup]:
        """Return the groups to measure now.

        These are the groups of the first question, then of the second, and so on, the slowest by the cost model first;
        without questions the slowest of all; all groups without a time limit.
        """
        asked = self.groups_without_times()
        if not self.tuner.executor.budget.is_limited:
            return asked
        longest = sorted(asked, key=lambda key: -self.known.modelled.get(key, 0.0))
        wanted = [{form_key(form) for form in question} for question in questions]
        first = dict.fromkeys(key for keys in wanted for key in longest if key in keys)
        return {key: asked[key] for key in (first if questions else longest[:MAX_GROUPS_AT_ONCE])}

    def rescale(self) -> None:
        """Scale the cost model to the measured times.

        Where a budget leaves some groups unmeasured, these must be better than most: an optimistic prediction then
        replaces no group that is known to be good.
        """
        modelled, partial = self.known.modelled, self.tuner.executor.budget.is_limited
        measured = self.times.seconds.items()
        ratios = [seconds / modelled[k] for k, seconds in measured if 0.0 < modelled.get(k, 0.0) < inf]
        order = sorted(ratios)
        middle = (order[int(UNMEASURED_QUANTILE * len(order))] if partial else median(order)) if order else 1.0
        self.times.scale = middle
