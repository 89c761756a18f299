"""Asynchronous cost evaluation: the cost model of many groups, ahead of use.

Groups over one iteration space are evaluated with the best candidates of the first of them (`evaluators.Modelled`), so
they are evaluated together and in order; those of different spaces are independent. So costs do not depend on the
process that evaluates them, nor on the number of processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import define, field, frozen

from ..ir import FusedGroup, Target
from .evaluators import Leader, Limited, Modelled, iteration_spaces
from .fusion import form_key
from .split import Splitting

#: Fewest iteration spaces whose groups are evaluated in other processes.
FEW = 2


@frozen
class Pricing:
    """Groups over one iteration space whose costs are evaluated in order.

    Each is evaluated with the parts of its split-K; `leaders` are the best candidates of known iteration spaces.
    """

    groups: tuple[FusedGroup, ...]
    target: Target
    leaders: Mapping[tuple[Any, ...], tuple[Leader, ...]]


@frozen
class Prices:
    """Costs of groups in the order of evaluation.

    `parts` is the best split-K of each requested group, `leaders` the best candidates of new iteration spaces.
    """

    found: tuple[tuple[FusedGroup, float], ...]
    parts: tuple[int, ...]
    leaders: Mapping[tuple[Any, ...], tuple[Leader, ...]]


#: Starts to evaluate costs elsewhere, and returns a function that waits for the results: None where time is missing.
Pricer: TypeAlias = Callable[[Sequence[Pricing]], Callable[[], Sequence[Prices | None]]]


def price(pricing: Pricing) -> Prices:
    """Return the costs of some groups, and of their split-K parts."""
    modelled = Modelled(pricing.target, leaders=dict(pricing.leaders))
    noted = _RecordingCost(modelled)
    splitting = Splitting(noted, noted, pricing.target)
    for group in pricing.groups:
        splitting.best(group)
    fresh = {key: found for key, found in modelled.leaders.items() if key not in pricing.leaders}
    return Prices(tuple(noted.found.values()), tuple(map(splitting.most_useful, pricing.groups)), fresh)


@frozen
class _RecordingCost:
    """Evaluator that is queried once for equal groups, and records them."""

    evaluator: Modelled
    found: dict[Hashable, tuple[FusedGroup, float]] = field(factory=dict)

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group."""
        key = form_key(group)
        if key not in self.found:
            self.found[key] = group, self.evaluator.cost(group)
        return self.found[key][1]


@define
class Foreseeing:
    """Evaluator that computes requested costs asynchronously, ahead of use.

    `service` finds the costs of groups and their best split-K, `parts`, meanwhile.
    """

    limited: Limited
    pricer: Pricer
    parts: dict[Hashable, int] = field(factory=dict)
    _asked: Sequence[Pricing] = ()
    _waiting: Callable[[], Sequence[Prices | None]] | None = None

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group."""
        if self._waiting is not None and not self.limited.knows(group):
            self._receive()
        return self.limited.cost(group)

    def knows(self, group: FusedGroup) -> bool:
        """Return whether a group's cost is known; pending requests are waited for."""
        if self._waiting is not None and not self.limited.knows(group):
            self._receive()
        return self.limited.knows(group)

    def foresee(self, groups: Sequence[FusedGroup]) -> None:
        """Request unknown costs of groups, in order within an iteration space."""
        self._receive()
        together: defaultdict[Hashable, list[FusedGroup]] = defaultdict(list)
        for group in {form_key(g): g for g in groups}.values():
            if not self.limited.knows(group):
                together[_loops(group)].append(group)
        if len(together) >= FEW:
            self._asked = [self._pricing(tuple(each)) for each in together.values()]
            self._waiting = self.pricer(self._asked)

    def _pricing(self, groups: tuple[FusedGroup, ...]) -> Pricing:
        modelled = self.limited.evaluator
        axes, leaders = _last_axes(iteration_spaces(groups[0])), modelled.leaders
        near = [key for key in leaders if (own := _last_axes(key))[len(own) - len(axes) :] == axes]
        return Pricing(groups, modelled.target, {key: leaders[key] for key in near})

    def _receive(self) -> None:
        """Wait for pending results, and store them."""
        waiting, self._waiting = self._waiting, None
        for pricing, prices in zip(self._asked, waiting() if waiting is not None else (), strict=False):
            if prices is None:
                continue
            self.parts.update(zip(map(form_key, pricing.groups), prices.parts, strict=True))
            for space, leaders in prices.leaders.items():
                self.limited.evaluator.leaders.setdefault(space, leaders)
            for group, seconds in prices.found:
                self.limited.costs.setdefault(form_key(group), seconds)


def _last_axes(spaces: Sequence[Any]) -> tuple[int, ...]:
    """Return the axes of the last segment of iteration spaces; a split-K part has further axes before them."""
    axes: tuple[int, ...] = spaces[-1][0]
    return axes


def _loops(group: FusedGroup) -> Hashable:
    """Return the iteration space without outputs: groups that differ in it share no space, nor do their parts."""
    return tuple((axes, loops) for axes, loops, _ in iteration_spaces(group))
