"""What groups cost by the model, found ahead of being asked for: many at once, where need be in other processes.

Groups that compute over one iteration space are judged by the points that were best for the first of them
(`evaluators.Modelled`), so they are priced together and in order; those of different spaces have nothing to do with
each other. So costs do not depend on who finds them, nor on how many do.
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

#: Groups of fewer iteration spaces are not worth handing out.
FEW = 2


@frozen
class Pricing:
    """Groups over one iteration space, in the order in which they are priced, each with the parts that it may be split
    into; `leaders` are what is known of their iteration spaces.
    """

    groups: tuple[FusedGroup, ...]
    target: Target
    leaders: Mapping[tuple[Any, ...], tuple[Leader, ...]]


@frozen
class Prices:
    """The seconds of groups, in the order in which they were asked for, into how many parts it is best to split those
    that somebody wanted priced, and what was learnt of iteration spaces.
    """

    found: tuple[tuple[FusedGroup, float], ...]
    parts: tuple[int, ...]
    leaders: Mapping[tuple[Any, ...], tuple[Leader, ...]]


#: Has groups priced by others, and returns what waits for the answers: none where there was no time for one.
Pricer: TypeAlias = Callable[[Sequence[Pricing]], Callable[[], Sequence[Prices | None]]]


def price(pricing: Pricing) -> Prices:
    """Return what some groups cost, and what the parts cost that they may be split into."""
    modelled = Modelled(pricing.target, leaders=dict(pricing.leaders))
    noted = _Noted(modelled)
    splitting = Splitting(noted, noted, pricing.target)
    for group in pricing.groups:
        splitting.best(group)
    fresh = {key: found for key, found in modelled.leaders.items() if key not in pricing.leaders}
    return Prices(tuple(noted.found.values()), tuple(map(splitting.most_useful, pricing.groups)), fresh)


@frozen
class _Noted:
    """An evaluator that is asked once about equal groups, and notes which."""

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
    """An evaluator that may be told of groups whose costs are asked for soon; `pricer` finds them meanwhile, and into
    how many `parts` it is best to split them.
    """

    limited: Limited
    pricer: Pricer
    parts: dict[Hashable, int] = field(factory=dict)
    _asked: Sequence[Pricing] = ()
    _waiting: Callable[[], Sequence[Prices | None]] | None = None

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group."""
        if self._waiting is not None and not self.limited.knows(group):
            self._take_in()
        return self.limited.cost(group)

    def knows(self, group: FusedGroup) -> bool:
        """Whether the cost of a group was found; what was foreseen is waited for."""
        if self._waiting is not None and not self.limited.knows(group):
            self._take_in()
        return self.limited.knows(group)

    def foresee(self, groups: Sequence[FusedGroup]) -> None:
        """Have groups priced that were not, in this order where they have an iteration space in common."""
        self._take_in()
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

    def _take_in(self) -> None:
        """Wait for what was asked for, and remember it."""
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
    """Return the axes of the last segment of groups over iteration spaces: of the parts that a group may be split into
    they are its own, with further ones in front.
    """
    axes: tuple[int, ...] = spaces[-1][0]
    return axes


def _loops(group: FusedGroup) -> Hashable:
    """Return what an iteration space is but for outputs: groups that differ in it have none in common, nor have their
    parts.
    """
    return tuple((axes, loops) for axes, loops, _ in iteration_spaces(group))
