"""Strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...ir import BOUND_PRUNING, Pruning, UsageError
from ...passes.schedule import Space
from ..building import ScoredCandidate
from ..learned import LearnedOrder
from ..settings import FIRST_CANDIDATES
from .bayes import Bayes
from .bayes_early_stop import EarlyStoppingBayes
from .corrected_space import CorrectedSpace
from .exhaustive_bayes import ExhaustiveBayes
from .model_guided import Genetic, Random, Rank
from .ppo import Ppo
from .printed_genetic import PrintedGenetic
from .printed_ppo import PrintedPpo, StepwisePpo
from .proposer import Strategy
from .search_domain import FullSpace, SearchDomain

#: Constructors of strategies, from a search domain, the cost model's best points, a seed, and whether the cost model is
#: used.
STRATEGIES: Mapping[str, Callable[[SearchDomain, Sequence[ScoredCandidate], int, bool], Strategy]] = {
    "rank": Rank,
    "random": Random,
    "genetic": Genetic,
    "genetic-printed": PrintedGenetic,
    "ppo": Ppo,
    "ppo-printed": PrintedPpo,
    "ppo-stepwise": StepwisePpo,
    "bayes": Bayes,
    "frugal": EarlyStoppingBayes,
    "thorough": ExhaustiveBayes,
}


def make_strategy(
    name: str,
    space: Space,
    first: Sequence[ScoredCandidate],
    pruning: Pruning = BOUND_PRUNING,
    seed: int = 0,
    aided: bool = True,
    correction: LearnedOrder | None = None,
    initial_points: int = FIRST_CANDIDATES,
) -> Strategy:
    """Return a strategy over a space by its name.

    `first` are the best points by the cost model, or by a learned `correction`; a Bayesian search begins with
    `initial_points`
    of them. Raises `UsageError` where no strategy has that name.
    """
    domain = FullSpace(space, pruning) if correction is None else CorrectedSpace(space, pruning, correction=correction)
    strategy = strategy_on(domain, name, first, seed, aided)
    if isinstance(strategy, Bayes) and aided:
        strategy.initial_points = initial_points
    return strategy


def strategy_on(
    domain: SearchDomain, name: str, first: Sequence[ScoredCandidate], seed: int = 0, aided: bool = True
) -> Strategy:
    """Return a strategy over a search domain.

    Raises `UsageError` where no strategy has that name.
    """
    if name not in STRATEGIES:
        raise UsageError(f"unknown search strategy '{name}'", hint=f"strategies are: {', '.join(STRATEGIES)}")
    return STRATEGIES[name](domain, first, seed, aided)
