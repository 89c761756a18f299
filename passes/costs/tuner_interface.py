"""Tuner interface: the services that the pipeline requests from its caller.

A `Selector`, which can measure, finds the fastest schedule of each distinct kernel and the costs of groups; without
one, a `Planning` evaluates the cost model for many kernels at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from attrs import frozen

from ...ir import FULL_SHARE, Budget, FusedGroup, KernelFunction, Schedule, Storage, Target
from ..decisions import Decisions
from ..fusion import GroupEvaluator
from ..schedule import Candidate
from .async_cost import CostRequest, CostResult
from .candidate_subgraphs import CandidateSubgraph, SubgraphKernels, partition_subgraphs
from .launch_schedules import MemberRow


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
KernelsQuery: TypeAlias = Callable[[], Sequence[FusedGroup]]


class Planning(Protocol):
    """Evaluates the cost model for many kernels at once."""

    def cut(self, fragments: Sequence[CandidateSubgraph]) -> Sequence[SubgraphKernels]:
        """Return the kernels of each candidate subgraph."""
        ...

    def choose(self, forms: Sequence[FusedGroup], target: Target) -> Sequence[Candidate | None]:
        """Return each group's best modelled schedule, None for those left over."""
        ...

    def schedule_bundles(self, rows: Sequence[MemberRow]) -> Sequence[Sequence[Candidate] | None]:
        """Return each row's kernels for a launch, None for those left over."""
        ...


class LocalPlanning:
    """Plans in this process."""

    def cut(self, fragments: Sequence[CandidateSubgraph]) -> Sequence[SubgraphKernels]:
        """Return the kernels of each candidate subgraph, one after the other."""
        return partition_subgraphs(fragments)

    def choose(self, forms: Sequence[FusedGroup], target: Target) -> Sequence[Candidate | None]:
        """Leave all to the caller."""
        return [None] * len(forms)

    def schedule_bundles(self, rows: Sequence[MemberRow]) -> Sequence[Sequence[Candidate] | None]:
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

    def note(self, decisions: Decisions, unfused_seconds: float) -> None:
        """Record the decisions, and the seconds of all units unfused."""
        ...

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return the evaluator of groups: measured times, else the cost model."""
        ...

    def plan(self, fragments: Sequence[CandidateSubgraph]) -> Sequence[SubgraphKernels]:
        """Return the kernels of candidate subgraphs by the cost model."""
        ...

    def plan_ahead(self, fragments: Sequence[CandidateSubgraph]) -> Callable[[], Sequence[SubgraphKernels]]:
        """Start to partition candidate subgraphs; return a function that waits for them."""
        ...

    def build_ahead(self, workloads: Sequence[Workload]) -> None:
        """Build the kernels of a likely plan speculatively."""
        ...

    def search_ahead(self, groups: Sequence[FusedGroup]) -> None:
        """Continue searches for the kernels of a coming plan speculatively."""
        ...

    def overdue(self) -> bool:
        """Return whether the budget is; called often to receive results of workers."""
        ...

    def reserving_budget(self, kernels: int, seconds: float) -> AbstractContextManager[None]:
        """Context manager that reserves budget for a plan of `kernels` kernels.

        Its groups are found in `seconds`.
        """
        ...

    def price(self, requests: Sequence[CostRequest]) -> Callable[[], Sequence[CostResult | None]]:
        """Start to evaluate costs; return a function that waits for them.

        A result is None where time is missing.
        """
        ...

    def learn(self, questions: Questions, share: float, plan: KernelsQuery | None = None) -> bool:
        """Measure queried groups within a `share` of the budget.

        Returns true if costs changed, so that the partition is repeated. Groups that the decisions so far depend on go
        first, those of one question after the other. While the last ones are built, workers may continue with the
        kernels that a `plan` has by the current costs.
        """
        ...

    def note_time(self, group: FusedGroup, seconds: float) -> None:
        """Record the measured time of a group with its chosen schedule."""
        ...

    def is_measured(self, group: FusedGroup) -> bool:
        """Return whether a group was measured."""
        ...

    @property
    def may_share_launches(self) -> bool:
        """True where groups may share a launch."""
        ...

    def schedule_bundles(self, rows: Sequence[MemberRow]) -> Sequence[Sequence[Candidate] | None]:
        """Return each row's kernels for a launch, None for those left over."""
        ...

    def compare_launches(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Return whether each launch is measured faster than one for each group."""
        ...

    def make(
        self, chosen: Mapping[Hashable, Schedule], launches: Mapping[Hashable, Sequence[Member]]
    ) -> tuple[Mapping[Hashable, KernelFunction], Mapping[Hashable, KernelFunction]]:
        """Return the kernels that other processes have built so far.

        They are those of some chosen schedules, and those of launches of several groups.
        """
        ...

    def choose(self, workloads: Mapping[Hashable, Workload], share: float = FULL_SHARE) -> Mapping[Hashable, Candidate]:
        """Return the schedule of each kernel, within a share of the budget."""
        ...
