"""Pruning of schedule spaces: the rule, and the kept share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import field, frozen

from ..errors import UsageError

PruningRule: TypeAlias = Literal["bound", "pul", "pul-printed", "none"]
#: Rules, and the points that each discards.
PRUNING_RULES: Mapping[PruningRule, str] = {
    "bound": "points whose lower bound is above the best measured time",
    "pul": "all but the top points by performance upper limit (DeepCuts, section 4.3), with corrections",
    "pul-printed": "all but the top points by performance upper limit as printed",
    "none": "no point",
}


@frozen
class Pruning:
    """Rule that discards points of a schedule space.

    The cost model orders the others. `top` is the share of legal points, in percent, that rules of the performance
    upper limit keep; the paper takes 1.

    Raises `UsageError` for an unknown rule, or a share that is not above 0 and at most 100.
    """

    rule: PruningRule = "bound"
    top: float = field(default=1.0, converter=float)

    def __attrs_post_init__(self) -> None:
        if self.rule not in PRUNING_RULES:
            raise UsageError(f"unknown pruning '{self.rule}'", hint=f"rules are: {', '.join(PRUNING_RULES)}")
        if not 0.0 < self.top <= 100.0:
            raise UsageError(f"pruning: expected a top share above 0 and at most 100 %, found {self.top:g} %")

    @property
    def ranks(self) -> bool:
        """Return whether the rule keeps the top share by PUL."""
        return self.rule.startswith("pul")


#: Usual rule: only a proof discards a point.
BOUND_PRUNING = Pruning()
