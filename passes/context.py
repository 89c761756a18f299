"""Context of a compilation: its request, and its stages' shared caches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar, cast

from attrs import evolve, field, frozen

from ..ir import (
    MAX_ELEMENTS,
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
from .costs import (
    AnalyticCost,
    AnalyticModel,
    AsyncCost,
    BudgetedCost,
    CostModel,
    Executor,
    LocalExecutor,
    Roofline,
    search_ahead,
)
from .decisions import Decisions
from .fusion import Group, GroupBuilder, GroupEvaluator, Meaning, NormalForms, Partitioner, Policy, Views
from .model import least_seconds
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
    """Request of a compilation, its services, and its stages' shared caches.

    `record` are recorded decisions, to be replayed. `modelled` is the analytic cost within the budget, `async_cost`
    finds it in other processes, ahead of use, where groups are measured too; `evaluator` is the cost of groups by the
    cost model, each split where that is faster. All plans of the graph share the normal `forms` of groups and the
    `meanings` of nodes; `results` are those of stages that may run again.
    """

    registry: Registry
    target: Target
    options: CompileOptions
    emit: Emit
    executor: Executor = field(factory=LocalExecutor)
    costs: CostModel = field()
    budget: Budget = field()
    record: Decisions | None = None
    modelled: BudgetedCost = field(init=False)
    async_cost: AsyncCost | None = field(init=False)
    evaluator: Splitting = field(init=False)
    forms: NormalForms = field(factory=NormalForms, init=False)
    meanings: dict[object, Meaning] = field(factory=dict, init=False)
    results: dict[Hashable, object] = field(factory=dict, init=False)

    @costs.default
    def _costs(self) -> CostModel:
        return AnalyticModel(self.target, self.executor, self.options.pruning)

    @budget.default
    def _budget(self) -> Budget:
        return self.options.begin()

    @modelled.default
    def _modelled(self) -> BudgetedCost:
        return BudgetedCost(AnalyticCost(self.target), self.budget)

    @async_cost.default
    def _async_cost(self) -> AsyncCost | None:
        return AsyncCost(self.modelled, self.executor.submit) if self.costs.times.expected else None

    @evaluator.default
    def _evaluator(self) -> Splitting:
        modelled: GroupEvaluator = self.async_cost or self.modelled
        parts = {} if self.async_cost is None else self.async_cost.parts
        evaluator, timed = self.costs.evaluator(modelled), self.costs.times.has
        searched = None if self.costs.times.expected else self.modelled.evaluator.search
        least = partial(least_seconds, target=self.target, launches=2)
        return Splitting(evaluator, modelled, self.target, MAX_MODELLED_SHARE, timed, searched, least, parts)

    @property
    def instances(self) -> Instances:
        """Instances of the vocabulary's operations."""
        return self.registry.instances

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

    def overdue(self) -> bool:
        """Receive results of other processes; return whether optional work must be skipped."""
        self.executor.poll()
        return self.budget.overdue()

    def builder(self, views: Views) -> GroupBuilder:
        """Return a builder of groups with the plans' shared normal forms."""
        return GroupBuilder(views, Policy.of(self.target, self.math), self.forms)

    def partitioner(
        self, layouts: Layouts, fixed: Sequence[Group] = (), evaluator: GroupEvaluator | None = None
    ) -> Partitioner:
        """Return a partitioner that ends when the budget is overdue.

        The `fixed` groups stay as they are.
        """
        costs, ahead = evaluator or self.evaluator, self.async_cost
        over = lambda: self.overdue() and self.modelled.is_late()  # noqa: E731
        types = layouts.statements.programs.types
        unwanted = layouts.statements.on_chip | {t for t, type_ in types.items() if type_.size > MAX_ELEMENTS}
        made = Partitioner(
            layouts.builder, costs, over=over, least=self.min_seconds, fixed_groups=fixed, unwanted=unwanted
        )
        if ahead is not None:
            return evolve(made, announce=ahead.prefetch, known=ahead.is_measured)
        return evolve(made, announce=lambda g: search_ahead(g, self.evaluator, self.modelled, self.executor.submit))

    @property
    def model_costs(self) -> Splitting:
        """Costs of groups by the cost model alone, without measurements."""
        return evolve(self.evaluator, evaluator=self.evaluator.modelled, timed=lambda form: False)

    def times(self, groups: Sequence[Group]) -> tuple[float, bool]:
        """Return the total time of groups, and whether it is measured."""
        kernels = [kernel for group in groups for kernel in self.evaluator.kernels(group.form)]
        known = all(map(self.costs.times.has, kernels))
        return sum(self.evaluator.cost(group.form) for group in groups), known

    def is_faster(self, before: Sequence[Group], after: Sequence[Group]) -> bool:
        """Return whether groups take less than others, all of them measured."""
        (old, known), (new, sure) = self.times(before), self.times(after)
        return known and sure and new < old

    def min_seconds(self, form: FusedGroup) -> float:
        """Return the scaled seconds of a group's memory traffic."""
        return Roofline(self.target).traffic(form) * min(1.0, self.costs.times.scale)

    @property
    def math(self) -> str:
        """Math mode of f32 sums of products under the precision policy."""
        return PRECISIONS[self.options.precision].math
