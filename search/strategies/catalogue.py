"""Strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...ir import UsageError
from ...passes.schedule import Space
from ..build import Scored
from ..learned import LearnedOrder
from ..settings import BEGUN
from .bayes import Bayes
from .corrected import CorrectedSpace
from .frugal import Frugal
from .ground import FullSpace, Ground
from .model_guided import Genetic, Random, Rank
from .ppo import Ppo
from .printed_genetic import PrintedGenetic
from .proposer import Strategy
from .thorough import Thorough

#: Constructors of strategies, from a search domain, the cost model's best points, a seed, and whether the cost model is
#: used.
STRATEGIES: Mapping[str, Callable[[Ground, Sequence[Scored], int, bool], Strategy]] = {
    "rank": Rank,
    "random": Random,
    "genetic": Genetic,
    "genetic-printed": PrintedGenetic,
    "ppo": Ppo,
    "bayes": Bayes,
    "frugal": Frugal,
    "thorough": Thorough,
}


def make_strategy(
    name: str,
    space: Space,
    first: Sequence[Scored],
    model: str = "bound",
    seed: int = 0,
    aided: bool = True,
    correction: LearnedOrder | None = None,
    begun: int = BEGUN,
) -> Strategy:
    """Return a strategy over a space by its name.

    `first` are the best points by the cost model, or by a learned `correction`; a Bayesian search begins with `begun`
    of them. Raises `UsageError` where no strategy has that name.
    """
    domain = FullSpace(space, model) if correction is None else CorrectedSpace(space, model, correction=correction)
    strategy = strategy_on(domain, name, first, seed, aided)
    if isinstance(strategy, Bayes) and aided:
        strategy.begun = begun
    return strategy


def strategy_on(ground: Ground, name: str, first: Sequence[Scored], seed: int = 0, aided: bool = True) -> Strategy:
    """Return a strategy over a search domain.

    Raises `UsageError` where no strategy has that name.
    """
    if name not in STRATEGIES:
        raise UsageError(f"unknown search strategy '{name}'", hint=f"strategies are: {', '.join(STRATEGIES)}")
    return STRATEGIES[name](ground, first, seed, aided)
