"""What a compilation was asked, and what its stages have made so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

from attrs import define, evolve, field, frozen

from ..ir import (
    PRECISIONS,
    Budget,
    Bundle,
    CompileOptions,
    FusedGroup,
    Graph,
    Kernel,
    KernelFunction,
    Target,
)
from ..ops import Registry
from ..ops.language import Instances
from .decisions import Decisions, Upheld
from .evaluators import Limited, Modelled, Roofline
from .fusion import (
    Forms,
    Group,
    GroupEvaluator,
    Meaning,
    Partitioner,
    Programs,
    Views,
    Workshop,
)
from .pricing import Foreseeing
from .schedule import Candidate
from .split import Splitting
from .workload import Planning, PlanningHere, Selector

#: Part of a group's time that its halves may take by the model's word alone, where nothing is measured.
UNMEASURED = 0.8
#: Prints an extracted kernel in a dialect, with facts for reports.
Emit: TypeAlias = Callable[[Kernel | Bundle, str, Mapping[str, object]], KernelFunction]
T = TypeVar("T")
#: The share of limited memory that is left to what kernels hold between them: partial sums, tables, gaps.
BETWEEN = 1 / 16


@frozen
class FirstPlan:
    """A graph that the model has planned, with the algorithm of each node that belongs to one, and of each node whose
    place one took.
    """

    graph: Graph
    algorithms: Mapping[str, str]
    replaced: Mapping[str, str]


@define
class Compilation:
    """One compilation: what it was asked, and what the stages so far have made.

    `foreseeing` has others find costs ahead. `placed` is the graph with its views before groups change either,
    `workshop` makes groups, whose normal `forms` all plans of the graph share, as they do `meanings` of nodes, and
    `formed` are those of the partition before they were split. `unique` has the first group of each distinct kernel;
    `chosen`, `blocks` and `threads` have its schedule, its block-level kernel and its thread-level kernel, each by the
    key of the kernel; those that others have `made` miss in the latter two,
    as do those of launches that others have `made_together`.
    `kept` is what holds of decisions that were made before.
    `planning` does what the model alone decides for many kernels. `considered` is the graph whose nodes algorithms
    were chosen for, `replaced` those whose place one took, `first` the best that the model planned ahead where memory
    is not limited, `again` the values that are computed once more, late, `passing` what is between units and must not
    be stored, as there is no room.
    `launches` are the groups in order of execution, those that are launched together as one, and `functions` the
    sources of their kernels, by the keys of all that a launch has; `places` says where those groups stood before.
    """

    registry: Registry
    target: Target
    options: CompileOptions
    emit: Emit
    graph: Graph
    selector: Selector | None = None
    planning: Planning = field(factory=PlanningHere)
    budget: Budget = field(init=False)
    instances: Instances = field(init=False)
    modelled: Limited = field(init=False)
    foreseeing: Foreseeing | None = field(init=False)
    evaluator: Splitting = field(init=False)
    algorithms: Mapping[str, str] = field(factory=dict)
    considered: Graph | None = None
    first: FirstPlan | None = None
    replaced: Mapping[str, str] = field(factory=dict)
    again: Collection[str] = ()
    passing: frozenset[str] = frozenset()
    programs: Programs = field(init=False)
    views: Views = field(init=False)
    placed: tuple[Graph, Views] | None = None
    workshop: Workshop | None = None
    kept: Upheld | None = None
    forms: Forms = field(factory=Forms, init=False)
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
        self.modelled = Limited(Modelled(self.target), self.budget)
        self.foreseeing = None if self.selector is None else Foreseeing(self.modelled, self.selector.price)
        self.evaluator = self._evaluator(self.foreseeing or self.modelled)

    @property
    def told(self) -> Decisions | None:
        """What is known to be the best that measuring can decide."""
        return None if self.selector is None else self.selector.decisions

    @property
    def settled(self) -> bool:
        """Whether the groups are those that were known to be best, all of them."""
        return self.kept is not None and self.kept.whole

    def is_new(self, *made: object) -> bool:
        """Whether these objects together are asked about for the first time.

        What a stage made cannot change: where it was verified behind one stage, it need not be behind the next. The
        objects are kept, so that no other one gets the identity of one that is gone.
        """
        key = tuple(map(id, made))
        return self._verified.setdefault(key, made) is made

    def known(self, stage: str, make: Callable[[], T]) -> T:
        """Return what a stage makes of the graph as it is now; it is made once."""
        key = stage, id(self.graph)
        if key not in self._known:
            self._known[key] = self.graph, make()
        return cast(T, self._known[key][1])

    @property
    def room(self) -> float | None:
        """The bytes that tensors of the graph may take at once, where memory is limited."""
        return None if self.options.memory is None else self.options.memory * (1 - BETWEEN)

    def partitioner(self, workshop: Workshop, evaluator: GroupEvaluator | None = None) -> Partitioner:
        """Return a partitioner that ends when the budget is overdue."""
        looks = self.budget.overdue if self.selector is None else self.selector.overdue
        kept = () if self.kept is None else tuple(self.kept.groups.values())
        costs, ahead = evaluator or self.evaluator, self.foreseeing
        over = lambda: looks() and self.modelled.late()  # noqa: E731
        made = Partitioner(workshop, costs, over=over, least=self.least, kept=kept, unwanted=self.passing)
        return made if ahead is None else evolve(made, foresee=ahead.foresee, known=ahead.knows)

    @property
    def unmeasured(self) -> Splitting:
        """What groups cost by the model alone, whatever was measured."""
        return evolve(self.evaluator, evaluator=self.evaluator.modelled, timed=lambda form: False)

    def times(self, groups: Sequence[Group]) -> tuple[float, bool]:
        """Return what groups take together, and whether all of it was measured."""
        kernels = [kernel for group in groups for kernel in self.evaluator.kernels(group.form)]
        known = self.selector is not None and all(map(self.selector.knows, kernels))
        return sum(self.evaluator.cost(group.form) for group in groups), known

    def faster(self, before: Sequence[Group], after: Sequence[Group]) -> bool:
        """Whether groups were measured to take less than others, which were measured too."""
        (old, known), (new, sure) = self.times(before), self.times(after)
        return known and sure and new < old

    def least(self, form: FusedGroup) -> float:
        """Return the seconds that a group's memory traffic takes at least, as costs are scaled."""
        return Roofline(self.target).traffic(form) * (1.0 if self.selector is None else min(1.0, self.selector.scale))

    @property
    def math(self) -> str:
        """The math mode of sums of products of f32, as the precision policy has it."""
        return PRECISIONS[self.options.precision].math

    @property
    def complete(self) -> bool:
        """Whether neither the budget nor the selector cut the search short."""
        return not self.modelled.expired and (self.selector is None or self.selector.complete)

    def _evaluator(self, modelled: GroupEvaluator) -> Splitting:
        """Return what groups cost: by the model, or by measurement where there is a selector, split where that is
        faster: by the clock, or by more than the model may err.
        """
        parts = {} if self.foreseeing is None else self.foreseeing.parts
        alone = Splitting(modelled, modelled, self.target, UNMEASURED, known=parts)
        if self.selector is None:
            return alone
        return evolve(alone, evaluator=self.selector.evaluator(modelled), timed=self.selector.knows)
