"""Tuner interface: the services that the pipeline requests from its caller.

A `Selector`, which can measure, finds the fastest schedule of each distinct kernel and the costs of groups; without
one, a `Planning` evaluates the cost model for many kernels at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from attrs import frozen

from ..ir import WHOLE, Budget, FusedGroup, KernelFunction, Schedule, Storage, Target
from .decisions import Decisions
from .fragments import Fragment, Priced, cut_fragments
from .fusion import GroupEvaluator
from .launch_schedules import Alike
from .pricing import Prices, Pricing
from .schedule import Candidate


@frozen(eq=False)
class Workload:
    """Distinct kernel to be tuned.

    It has a normal form, the storage of its tensors, the nodes of one of its groups, and its launches.
    """

    form: FusedGroup
    storages: Mapping[str, Storage]
    nodes: tuple[str, ...]
    uses: int = 1


#: Member of a shared launch: its normal form, the storage of its tensors, and its schedule.
Member: TypeAlias = tuple[FusedGroup, Mapping[str, Storage], Candidate]
#: Groups to measure by question, the most urgent question first.
Questions: TypeAlias = Sequence[Sequence[FusedGroup]]
#: Returns the kernels of a plan by the current costs.
Kernels: TypeAlias = Callable[[], Sequence[FusedGroup]]


class Planning(Protocol):
    """Evaluates the cost model for many kernels at once."""

    def cut(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of each candidate subgraph."""
        ...

    def choose(self, forms: Sequence[FusedGroup], target: Target) -> Sequence[Candidate | None]:
        """Return each group's best modelled schedule, None for those left over."""
        ...

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Return each row's kernels for a launch, None for those left over."""
        ...


class PlanningHere:
    """Plans in this process."""

    def cut(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of each candidate subgraph, one after the other."""
        return cut_fragments(fragments)

    def choose(self, forms: Sequence[FusedGroup], target: Target) -> Sequence[Candidate | None]:
        """Leave all to the caller."""
        return [None] * len(forms)

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Leave all to the caller."""
        return [None] * len(rows)


class Selector(Protocol):
    """Chooses by measurement; a search that owns a device implements it."""

    @property
    def budget(self) -> Budget:
        """Time budget of the compilation."""
        ...

    @property
    def complete(self) -> bool:
        """True where no time budget and no interrupt cut the search short."""
        ...

    @property
    def scale(self) -> float:
        """Ratio of measured seconds to modelled ones."""
        ...

    @property
    def decisions(self) -> Decisions | None:
        """Recorded decisions about the graph, to be replayed."""
        ...

    def note(self, decisions: Decisions, apart: float) -> None:
        """Record the decisions, and the seconds of all units unfused."""
        ...

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return the evaluator of groups: measured times, else the cost model."""
        ...

    def plan(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of candidate subgraphs by the cost model."""
        ...

    def plan_ahead(self, fragments: Sequence[Fragment]) -> Callable[[], Sequence[Priced]]:
        """Start to partition candidate subgraphs; return a function that waits for them."""
        ...

    def ahead(self, workloads: Sequence[Workload]) -> None:
        """Build the kernels of a likely plan speculatively."""
        ...

    def go_on(self, groups: Sequence[FusedGroup]) -> None:
        """Continue searches for the kernels of a coming plan speculatively."""
        ...

    def overdue(self) -> bool:
        """Return whether the budget is; called often to receive results of workers."""
        ...

    def foreseen(self, kernels: int, seconds: float) -> AbstractContextManager[None]:
        """Context manager that reserves budget for a plan of `kernels` kernels.

        Its groups are found in `seconds`.
        """
        ...

    def price(self, pricings: Sequence[Pricing]) -> Callable[[], Sequence[Prices | None]]:
        """Start to evaluate costs; return a function that waits for them.

        A result is None where time is missing.
        """
        ...

    def learn(self, questions: Questions, share: float, plan: Kernels | None = None) -> bool:
        """Measure queried groups within a `share` of the budget.

        Returns true if costs changed, so that the partition is repeated. Groups that the decisions so far depend on go
        first, those of one question after the other. While the last ones are built, workers may continue with the
        kernels that a `plan` has by the current costs.
        """
        ...

    def tell(self, group: FusedGroup, seconds: float) -> None:
        """Record the measured time of a group with its chosen schedule."""
        ...

    def knows(self, group: FusedGroup) -> bool:
        """Return whether a group was measured."""
        ...

    @property
    def together(self) -> bool:
        """True where groups may share a launch."""
        ...

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Return each row's kernels for a launch, None for those left over."""
        ...

    def faster_together(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Return whether each launch is measured faster than one for each group."""
        ...

    def make(
        self, chosen: Mapping[Hashable, Schedule], launches: Mapping[Hashable, Sequence[Member]]
    ) -> tuple[Mapping[Hashable, KernelFunction], Mapping[Hashable, KernelFunction]]:
        """Return the kernels that other processes have built so far.

        They are those of some chosen schedules, and those of launches of several groups.
        """
        ...

    def choose(self, workloads: Mapping[Hashable, Workload], share: float = WHOLE) -> Mapping[Hashable, Candidate]:
        """Return the schedule of each kernel, within a share of the budget."""
        ...
