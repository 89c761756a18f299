"""Replays search strategies on recorded spaces with equal budgets and starts.

A strategy proposes points as in a live search; each proposal becomes the nearest untried recorded point, with its
recorded time. `python -m cuts.bench paper woodpecker` has the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from cuts.bench.tools.recorded_domain import RecordedDomain
from cuts.passes.schedule import best_points
from cuts.search.building.factory import ScoredCandidate
from cuts.search.processes.threads import one_thread
from cuts.search.settings import Settings
from cuts.search.strategies import Observation, place_of, strategy_on

#: Points that are proposed at first, at most, and in each further batch, as `cuts tune` does.
FIRST_POINTS, BATCH = Settings().first, Settings().batch
#: Proposals that may fail to bring a new point before a search is over.
VAIN = 3


def first_of(ground: RecordedDomain) -> list[ScoredCandidate]:
    """Return a live search's first points, each as its nearest recorded one.

    They are the model's varied choice.
    """
    chosen = best_points(ground.space.group, ground.space.target, ground.pruning, FIRST_POINTS)
    near = {place_of(p): p for p in (ground.nearest(point) for point in chosen)}
    return [ground.candidate_at(p) for p in near.values()]


def replay_search(
    ground: RecordedDomain, first: Sequence[ScoredCandidate], name: str, seed: int, aided: bool, most: int
) -> list[float]:
    """Return the times of a search's points, `aided` by the cost model."""
    strategy = strategy_on(ground, name, first, seed, aided)
    known: list[Observation] = []
    vain = 0
    while len(known) < most and vain < VAIN:
        best = min((k.seconds for k in known), default=inf)
        count = min(BATCH if known else FIRST_POINTS, most - len(known))
        with one_thread():  # as live
            proposed = [s.point for s in strategy.propose(known, best, count) if s.point is not None]
        known += [Observation(p, ground.seconds[place_of(p)]) for p in proposed]
        vain = 0 if proposed else vain + 1
    return [k.seconds for k in known]


def regrets(times: Sequence[float], best: float, after: Sequence[int]) -> list[float]:
    """Return the regret after each number of kernels.

    An ended search keeps its best; without a run the regret is ten times.
    """
    found = np.minimum.accumulate([min(t, 10 * best) for t in times] or [10 * best])
    return [float(found[min(n, len(found)) - 1] / best - 1.0) for n in after]
