"""State of one compilation: its request and the results of its stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

from attrs import define, evolve, field, frozen

from ..ir import (
    PRECISIONS,
    Budget,
    CompileOptions,
    FusedGroup,
    Graph,
    HorizontalKernel,
    Kernel,
    KernelFunction,
    Target,
)
from ..ops import Registry
from ..ops.language import Instances
from .async_cost import AsyncCost
from .decisions import Decisions, Replay
from .evaluators import AnalyticCost, BudgetedCost, Roofline
from .fusion import (
    Group,
    GroupBuilder,
    GroupEvaluator,
    Meaning,
    NormalForms,
    Partitioner,
    Programs,
    Views,
)
from .schedule import Candidate
from .split import Splitting
from .tuner_interface import LocalPlanning, Planning, Selector

#: Largest share of a group's time that its halves may take by the cost model alone.
MAX_MODELLED_SHARE = 0.8
#: Prints an extracted kernel in a dialect, with facts for reports.
Emit: TypeAlias = Callable[[Kernel | HorizontalKernel, str, Mapping[str, object]], KernelFunction]
T = TypeVar("T")
#: Share of limited memory that is reserved for data between kernels: partial sums, tables, gaps.
INTERMEDIATE_SHARE = 1 / 16


@frozen
class BaselinePlan:
    """Graph that the cost model has planned.

    It has the algorithm of each node that belongs to one, and of each node that an algorithm has replaced.
    """

    graph: Graph
    algorithms: Mapping[str, str]
    replaced: Mapping[str, str]


@define
class Compilation:
    """State of one compilation: its request and the results of its stages.

    `async_cost` evaluates costs in other processes, ahead of use. `placed` is the graph with its views before groups
    change either. `builder` forms groups, whose normal `forms` all plans of the graph share, as they share the
    `meanings` of nodes; `formed` are the groups of the partition before reductions are split. `unique` has the first
    group of each distinct kernel. `chosen`, `blocks` and `threads` have its schedule, its block-level kernel and its
    thread-level kernel, each by the key of the kernel. Kernels that others have `made`, and those of launches that
    others have `made_together`, are missing in the latter two. `replay` is the part of recorded decisions that can be
    replayed. `planning` makes the decisions of the cost model for many kernels. `considered` is the graph for whose
    nodes algorithms were chosen, `replaced` names the nodes that an algorithm replaces, `baseline` is the best plan
    that the model made ahead where memory is not limited, `rematerialised` are values that are computed again, and
    `on_chip` the tensors between units that must not be stored, as memory is limited. `launches` are the groups in
    order of execution, those of one launch together, `functions` the sources of their kernels, by the keys of all
    members of a launch. `places` has the positions of those groups when they were formed.
    """

    registry: Registry
    target: Target
    options: CompileOptions
    emit: Emit
    graph: Graph
    selector: Selector | None = None
    planning: Planning = field(factory=LocalPlanning)
    budget: Budget = field(init=False)
    instances: Instances = field(init=False)
    modelled: BudgetedCost = field(init=False)
    async_cost: AsyncCost | None = field(init=False)
    evaluator: Splitting = field(init=False)
    algorithms: Mapping[str, str] = field(factory=dict)
    considered: Graph | None = None
    baseline: BaselinePlan | None = None
    replaced: Mapping[str, str] = field(factory=dict)
    rematerialised: Collection[str] = ()
    on_chip: frozenset[str] = frozenset()
    programs: Programs = field(init=False)
    views: Views = field(init=False)
    placed: tuple[Graph, Views] | None = None
    builder: GroupBuilder | None = None
    replay: Replay | None = None
    forms: NormalForms = field(factory=NormalForms, init=False)
    meanings: dict[object, Meaning] = field(factory=dict, init=False)
    formed: Sequence[Group] = ()
    groups: Sequence[Group] = ()
    unique: Mapping[Hashable, Group] = field(factory=dict)
    launches: Sequence[tuple[Group, ...]] = ()
    places: Sequence[tuple[int, ...]] = ()
    chosen: Mapping[Hashable, Candidate] = field(factory=dict)
    made: Mapping[Hashable, KernelFunction] = field(factory=dict)
    made_together: Mapping[Hashable, KernelFunction] = field(factory=dict)
    blocks: Mapping[Hashable, Kernel] = field(factory=dict)
    threads: Mapping[Hashable, Kernel] = field(factory=dict)
    functions: Mapping[tuple[Hashable, ...], KernelFunction] = field(factory=dict)
    _known: dict[tuple[str, int], tuple[Graph, object]] = field(factory=dict, init=False)
    _verified: dict[tuple[int, ...], tuple[object, ...]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.budget = self.options.begin() if self.selector is None else self.selector.budget
        self.instances = self.registry.instances
        self.modelled = BudgetedCost(AnalyticCost(self.target), self.budget)
        self.async_cost = None if self.selector is None else AsyncCost(self.modelled, self.selector.price)
        self.evaluator = self._evaluator(self.async_cost or self.modelled)

    @property
    def recorded(self) -> Decisions | None:
        """Recorded decisions that measurements have shown to be best."""
        return None if self.selector is None else self.selector.decisions

    @property
    def is_replayed(self) -> bool:
        """True where all groups are replayed from the decision record."""
        return self.replay is not None and self.replay.complete

    def is_new(self, *made: object) -> bool:
        """Return whether these objects together are seen for the first time.

        Results of stages are immutable, so a result that is verified once is not verified again. The objects are
        stored, so that no other one gets the identity of a deleted one.
        """
        key = tuple(map(id, made))
        return self._verified.setdefault(key, made) is made

    def stage_result(self, stage: str, make: Callable[[], T]) -> T:
        """Return a stage's result for the current graph; it is computed once."""
        key = stage, id(self.graph)
        if key not in self._known:
            self._known[key] = self.graph, make()
        return cast(T, self._known[key][1])

    @property
    def memory_limit(self) -> float | None:
        """Bytes available for live tensors, where memory is limited."""
        return None if self.options.memory is None else self.options.memory * (1 - INTERMEDIATE_SHARE)

    def partitioner(self, builder: GroupBuilder, evaluator: GroupEvaluator | None = None) -> Partitioner:
        """Return a partitioner that ends when the budget is overdue."""
        looks = self.budget.overdue if self.selector is None else self.selector.overdue
        kept = () if self.replay is None else tuple(self.replay.groups.values())
        costs, ahead = evaluator or self.evaluator, self.async_cost
        over = lambda: looks() and self.modelled.is_late()  # noqa: E731
        made = Partitioner(builder, costs, over=over, least=self.min_seconds, fixed_groups=kept, unwanted=self.on_chip)
        return made if ahead is None else evolve(made, announce=ahead.prefetch, known=ahead.is_measured)

    @property
    def model_costs(self) -> Splitting:
        """Costs of groups by the cost model alone, without measurements."""
        return evolve(self.evaluator, evaluator=self.evaluator.modelled, timed=lambda form: False)

    def times(self, groups: Sequence[Group]) -> tuple[float, bool]:
        """Return the total time of groups, and whether it is measured."""
        kernels = [kernel for group in groups for kernel in self.evaluator.kernels(group.form)]
        known = self.selector is not None and all(map(self.selector.is_measured, kernels))
        return sum(self.evaluator.cost(group.form) for group in groups), known

    def is_faster(self, before: Sequence[Group], after: Sequence[Group]) -> bool:
        """Return whether groups take less than others, all of them measured."""
        (old, known), (new, sure) = self.times(before), self.times(after)
        return known and sure and new < old

    def min_seconds(self, form: FusedGroup) -> float:
        """Return the scaled seconds of a group's memory traffic."""
        return Roofline(self.target).traffic(form) * (1.0 if self.selector is None else min(1.0, self.selector.scale))

    @property
    def math(self) -> str:
        """Math mode of f32 sums of products under the precision policy."""
        return PRECISIONS[self.options.precision].math

    @property
    def complete(self) -> bool:
        """True where neither the budget nor the selector cut the search short."""
        return not self.modelled.expired and (self.selector is None or self.selector.complete)

    def _evaluator(self, modelled: GroupEvaluator) -> Splitting:
        """Return the evaluator of groups: measured times where a selector has them, else the cost model.

        A group is split where that is faster, by measurement or by more than the error of the model.
        """
        parts = {} if self.async_cost is None else self.async_cost.parts
        alone = Splitting(modelled, modelled, self.target, MAX_MODELLED_SHARE, known=parts)
        if self.selector is None:
            return alone
        return evolve(alone, evaluator=self.selector.evaluator(modelled), timed=self.selector.is_measured)
