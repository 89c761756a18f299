"""Asynchronous cost evaluation: the cost model of many groups, ahead of use.

Groups over one iteration space are evaluated with the best candidates of the first of them (`AnalyticCost`), so they
are evaluated together and in order; those of different spaces are independent. So costs do not depend on the process
that evaluates them, nor on the number of processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import define, field, frozen

from ...ir import FusedGroup, Target
from ..fusion import form_key
from ..schedule import Point
from ..split import Splitting
from .analytic_cost import AnalyticCost, iteration_spaces
from .evaluators import BudgetedCost
from .executor import ModelQuery
from .sampled_cost import Leader

#: Fewest iteration spaces whose groups are evaluated in other processes.
MIN_ITERATION_SPACES = 2


@frozen
class CostResult:
    """Costs of groups in the order of evaluation.

    `parts` is the best split-K of each requested group, `leaders` the best candidates of new iteration spaces.
    """

    costs: tuple[tuple[FusedGroup, float], ...]
    parts: tuple[int, ...]
    leaders: Mapping[tuple[Any, ...], tuple[Leader, ...]]


@frozen
class CostRequest(ModelQuery[CostResult]):
    """Groups over one iteration space whose costs are evaluated in order.

    Each is evaluated with the parts of its split-K; `leaders` are the best candidates of known iteration spaces.
    """

    groups: tuple[FusedGroup, ...]
    target: Target
    leaders: Mapping[tuple[Any, ...], tuple[Leader, ...]]


@frozen
class PointsRequest(ModelQuery[tuple[Point, ...]]):
    """Question for the best points of a group that leads others."""

    form: FusedGroup
    target: Target


#: Searches groups elsewhere, and returns a function that waits for the results.
SearchService: TypeAlias = Callable[[Sequence[PointsRequest]], Callable[[], Sequence[tuple[Point, ...] | None]]]
#: Starts to evaluate costs elsewhere, and returns a function that waits for the results: None where time is missing.
CostService: TypeAlias = Callable[[Sequence[CostRequest]], Callable[[], Sequence[CostResult | None]]]


def evaluate_costs(request: CostRequest) -> CostResult:
    """Return the costs of some groups, and of their split-K parts."""
    modelled = AnalyticCost(request.target, leaders=dict(request.leaders))
    noted = _RecordingCost(modelled)
    splitting = Splitting(noted, noted, request.target)
    for group in request.groups:
        splitting.best(group)
    fresh = {key: found for key, found in modelled.leaders.items() if key not in request.leaders}
    return CostResult(tuple(noted.found.values()), tuple(map(splitting.best_part_count, request.groups)), fresh)


def search_ahead(groups: Sequence[FusedGroup], splitting: Splitting, limited: BudgetedCost, run: SearchService) -> None:
    """Search groups and their split-K parts in several processes.

    The partition asks for their costs next. These stay as they are: a search depends on its group only.
    """
    points, distinct = limited.evaluator.points, {form_key(group): group for group in groups}
    _search_points([*distinct.values()], limited, run)
    scores = {key: points[key][0].score for key in distinct if key in points}
    divided = [distinct[key] for key, seconds in scores.items() if splitting.may_pay(distinct[key], seconds)]
    _search_points([form for group in divided for form in splitting.possible_parts(group)], limited, run)


def _search_points(groups: Sequence[FusedGroup], limited: BudgetedCost, run: SearchService) -> None:
    """Search one group of each iteration space that is not known."""
    modelled, wanted = limited.evaluator, dict[Hashable, FusedGroup]()
    for form in groups:
        if not limited.is_measured(form) and (key := modelled.search_key(form)) is not None:
            wanted.setdefault(key, form)
    found = run([PointsRequest(form, modelled.target) for form in wanted.values()])()
    modelled.points.update({form_key(f): p for f, p in zip(wanted.values(), found, strict=True) if p is not None})


@frozen
class _RecordingCost:
    """Evaluator that is queried once for equal groups, and records them."""

    evaluator: AnalyticCost
    found: dict[Hashable, tuple[FusedGroup, float]] = field(factory=dict)

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group."""
        key = form_key(group)
        if key not in self.found:
            self.found[key] = group, self.evaluator.cost(group)
        return self.found[key][1]


@define
class AsyncCost:
    """Evaluator that computes requested costs asynchronously, ahead of use.

    `service` finds the costs of groups and their best split-K, `parts`, meanwhile.
    """

    limited: BudgetedCost
    service: CostService
    parts: dict[Hashable, int] = field(factory=dict)
    _asked: Sequence[CostRequest] = ()
    _waiting: Callable[[], Sequence[CostResult | None]] | None = None

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group."""
        if self._waiting is not None and not self.limited.is_measured(group):
            self._receive()
        return self.limited.cost(group)

    def is_measured(self, group: FusedGroup) -> bool:
        """Return whether a group's cost is known; pending requests are waited for."""
        if self._waiting is not None and not self.limited.is_measured(group):
            self._receive()
        return self.limited.is_measured(group)

    def prefetch(self, groups: Sequence[FusedGroup]) -> None:
        """Request unknown costs of groups, in order within an iteration space."""
        self._receive()
        together: defaultdict[Hashable, list[FusedGroup]] = defaultdict(list)
        for group in {form_key(g): g for g in groups}.values():
            if not self.limited.is_measured(group):
                together[_loops(group)].append(group)
        if len(together) >= MIN_ITERATION_SPACES:
            self._asked = [self._pricing(tuple(each)) for each in together.values()]
            self._waiting = self.service(self._asked)

    def _pricing(self, groups: tuple[FusedGroup, ...]) -> CostRequest:
        modelled = self.limited.evaluator
        axes, leaders = _last_axes(iteration_spaces(groups[0])), modelled.leaders
        near = [key for key in leaders if (own := _last_axes(key))[len(own) - len(axes) :] == axes]
        return CostRequest(groups, modelled.target, {key: leaders[key] for key in near})

    def _receive(self) -> None:
        """Wait for pending results, and store them."""
        waiting, self._waiting = self._waiting, None
        for pricing, prices in zip(self._asked, waiting() if waiting is not None else (), strict=False):
            if prices is None:
                continue
            self.parts.update(zip(map(form_key, pricing.groups), prices.parts, strict=True))
            for space, leaders in prices.leaders.items():
                self.limited.evaluator.leaders.setdefault(space, leaders)
            for group, seconds in prices.costs:
                self.limited.costs.setdefault(form_key(group), seconds)


def _last_axes(spaces: Sequence[Any]) -> tuple[int, ...]:
    """Return the axes of the last segment of iteration spaces; a split-K part has further axes before them."""
    axes: tuple[int, ...] = spaces[-1][0]
    return axes


def _loops(group: FusedGroup) -> Hashable:
    """Return the iteration space without outputs: groups that differ in it share no space, nor do their parts."""
    return tuple((axes, loops) for axes, loops, _ in iteration_spaces(group))
