"""Context of a compilation: its request, and its stages' shared caches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

from attrs import evolve, field, frozen

from ..ir import (
    PRECISIONS,
    Budget,
    CompileOptions,
    FusedGroup,
    HorizontalKernel,
    Kernel,
    KernelFunction,
    Target,
)
from ..ops import Registry
from ..ops.language import Instances
from .costs import AnalyticCost, AsyncCost, BudgetedCost, LocalPlanning, Planning, Roofline, Selector
from .decisions import Decisions
from .fusion import Group, GroupBuilder, GroupEvaluator, Meaning, NormalForms, Partitioner, Policy, Views
from .results import Layouts
from .split import Splitting

#: Largest share of a group's time that its halves may take by the cost model alone.
MAX_MODELLED_SHARE = 0.8
#: Prints an extracted kernel in a dialect, with facts for reports.
Emit: TypeAlias = Callable[[Kernel | HorizontalKernel, str, Mapping[str, object]], KernelFunction]
T = TypeVar("T")
#: Share of limited memory that is reserved for data between kernels: partial sums, tables, gaps.
INTERMEDIATE_SHARE = 1 / 16


@frozen(eq=False)
class CompileContext:
    """Request of a compilation, and the caches that its stages share.

    `async_cost` evaluates costs in other processes, ahead of use. All plans of the graph share the normal `forms` of
    groups and the `meanings` of nodes; `results` are those of stages that may run again. `planning` makes the decisions
    of the cost model for many kernels.
    """

    registry: Registry
    target: Target
    options: CompileOptions
    emit: Emit
    selector: Selector | None = None
    planning: Planning = field(factory=LocalPlanning)
    budget: Budget = field(init=False)
    modelled: BudgetedCost = field(init=False)
    async_cost: AsyncCost | None = field(init=False)
    evaluator: Splitting = field(init=False)
    forms: NormalForms = field(factory=NormalForms, init=False)
    meanings: dict[object, Meaning] = field(factory=dict, init=False)
    results: dict[Hashable, object] = field(factory=dict, init=False)

    @budget.default
    def _budget(self) -> Budget:
        return self.options.begin() if self.selector is None else self.selector.budget

    @modelled.default
    def _modelled(self) -> BudgetedCost:
        return BudgetedCost(AnalyticCost(self.target), self.budget)

    @async_cost.default
    def _async_cost(self) -> AsyncCost | None:
        return None if self.selector is None else AsyncCost(self.modelled, self.selector.price)

    @evaluator.default
    def _evaluator(self) -> Splitting:
        """Return the evaluator of groups: measured times where a selector has them, else the cost model.

        A group is split where that is faster, by measurement or by more than the error of the model.
        """
        modelled: GroupEvaluator = self.async_cost or self.modelled
        parts = {} if self.async_cost is None else self.async_cost.parts
        alone = Splitting(modelled, modelled, self.target, MAX_MODELLED_SHARE, known=parts)
        if self.selector is None:
            return alone
        return evolve(alone, evaluator=self.selector.evaluator(modelled), timed=self.selector.is_measured)

    @property
    def instances(self) -> Instances:
        """Instances of the vocabulary's operations."""
        return self.registry.instances

    @property
    def recorded(self) -> Decisions | None:
        """Recorded decisions that measurements have shown to be best."""
        return None if self.selector is None else self.selector.decisions

    def once(self, name: str, previous: object, make: Callable[[], T]) -> T:
        """Return a stage's result for a previous one; it is computed once."""
        key = name, previous
        if key not in self.results:
            self.results[key] = make()
        return cast(T, self.results[key])

    @property
    def memory_limit(self) -> float | None:
        """Bytes available for live tensors, where memory is limited."""
        return None if self.options.memory is None else self.options.memory * (1 - INTERMEDIATE_SHARE)

    def builder(self, views: Views) -> GroupBuilder:
        """Return a builder of groups with the plans' shared normal forms."""
        target = self.target
        policy = Policy(shared_bytes=target.MAX_shared, math=self.math, chains=target.lockstep)
        return GroupBuilder(views, policy, self.forms)

    def partitioner(
        self, layouts: Layouts, fixed: Sequence[Group] = (), evaluator: GroupEvaluator | None = None
    ) -> Partitioner:
        """Return a partitioner that ends when the budget is overdue.

        The `fixed` groups stay as they are.
        """
        looks = self.budget.overdue if self.selector is None else self.selector.overdue
        costs, ahead = evaluator or self.evaluator, self.async_cost
        over = lambda: looks() and self.modelled.is_late()  # noqa: E731
        unwanted = layouts.statements.on_chip
        made = Partitioner(
            layouts.builder, costs, over=over, least=self.min_seconds, fixed_groups=fixed, unwanted=unwanted
        )
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
