"""Cost model: times of groups, kernels and launches.

`AnalyticModel` is the one without measurements. A search has one that measures, or replays measured results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol, TypeAlias

from attrs import define, field, frozen

from ...ir import BOUND_PRUNING, FULL_SHARE, FusedGroup, Pruning, Target
from ..fusion import GroupEvaluator, form_key
from ..schedule import Candidate
from .executor import Executor, Member, ScheduleRequest, Workload

#: Groups to measure by question, the most urgent question first.
Questions: TypeAlias = Sequence[Sequence[FusedGroup]]
#: Returns the kernels of a plan by the current costs.
KernelsQuery: TypeAlias = Callable[[], Sequence[FusedGroup]]


@define(eq=False)
class MeasuredTimes:
    """Measured seconds of groups, by normal form.

    `expected` is true where more may be measured, `scale` is the ratio of measured seconds to modelled ones.
    `without_overhead` converts the time of a kernel in isolation to its time among others; `complete` returns whether
    every search ran to its end.
    """

    expected: bool = False
    scale: float = 1.0
    without_overhead: Callable[[float], float] = lambda seconds: seconds
    complete: Callable[[], bool] = lambda: True
    seconds: dict[Hashable, float] = field(factory=dict)

    def has(self, group: FusedGroup) -> bool:
        """Return whether a group was measured."""
        return form_key(group) in self.seconds

    def note(self, group: FusedGroup, seconds: float) -> None:
        """Record the time of a group in isolation."""
        self.seconds[form_key(group)] = self.without_overhead(seconds)


class CostModel(Protocol):
    """Times that decide about a plan: analytic, measured or replayed."""

    @property
    def times(self) -> MeasuredTimes:
        """Measured times so far."""
        ...

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return the evaluator of groups: measured times, else the analytic ones."""
        ...

    def measure(self, questions: Callable[[], Questions], share: float, plan: KernelsQuery | None = None) -> bool:
        """Measure queried groups within a `share` of the budget.

        Returns true if costs changed, so that the partition is repeated. Groups that the decisions so far depend on go
        first, those of one question after the other. While the last ones are built, other processes may continue with
        the kernels that a `plan` has by the current costs.
        """
        ...

    def schedule(self, kernels: Mapping[Hashable, Workload], share: float = FULL_SHARE) -> Mapping[Hashable, Candidate]:
        """Return schedules of kernels, within a share of the budget.

        Those left out are the caller's.
        """
        ...

    def compare_launches(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Return whether each launch is faster than one for each group."""
        ...


@frozen
class AnalyticModel:
    """Cost model without measurements."""

    target: Target
    executor: Executor
    pruning: Pruning = BOUND_PRUNING
    times: MeasuredTimes = field(factory=MeasuredTimes)

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return the analytic evaluator."""
        return modelled

    def measure(self, questions: Callable[[], Questions], share: float, plan: KernelsQuery | None = None) -> bool:
        """Measure nothing."""
        return False

    def schedule(self, kernels: Mapping[Hashable, Workload], share: float = FULL_SHARE) -> Mapping[Hashable, Candidate]:
        """Return the schedules that other processes have found."""
        found = self.executor.submit([ScheduleRequest(k.form, self.target, self.pruning) for k in kernels.values()])()
        return {key: candidate for key, candidate in zip(kernels, found, strict=True) if candidate is not None}

    def compare_launches(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Return true for all: the model proposed them."""
        return [True] * len(launches)
