"""Simple strategies: the cost model's order, random points, genetic search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..building import ScoredCandidate
from .proposer import Observation, Proposer, fastest
from .search_domain import Place, place_of

#: Number of measured points whose neighbours are examined in one round, and population of the genetic strategy.
NUM_PARENTS, POPULATION = 3, 12
#: Neighbours whose score exceeds a parent's by more than this factor are not measured.
MAX_SCORE_RATIO = 1.6


class Rank(Proposer):
    """Propose points in the cost model's order, then neighbours of the fastest."""

    def propose(self, known: Sequence[Observation], best: float, count: int) -> list[ScoredCandidate]:
        """Return the next points by the cost model, or neighbours."""
        parents = fastest(known, NUM_PARENTS)
        if not parents:
            return self.begin(best, count)
        near = self.domain.near([k.point for k in parents])
        limit = MAX_SCORE_RATIO * max(k.point.score for k in parents) if self.aided else np.inf
        order = self.order((p for p in near if p.score <= limit and place_of(p) not in self.seen), len(known))
        return self.take(self.new_candidates(order[: 4 * count]), best, count)


class Random(Proposer):
    """Propose legal points in random order, equally many of each structure."""

    def propose(self, known: Sequence[Observation], best: float, count: int) -> list[ScoredCandidate]:
        """Return the next points of the order."""
        return self.take(self.new_candidates(self.random_order()), best, count)


class Genetic(Proposer):
    """Propose children of the fastest points by crossover and mutation."""

    def propose(self, known: Sequence[Observation], best: float, count: int) -> list[ScoredCandidate]:
        """Return legal children, best by the cost model first."""
        parents = fastest(known, POPULATION)
        if len(parents) < 2:
            return self.begin(best, count)
        generator = np.random.default_rng((self.seed, len(known)))
        children = {self._child(parents, generator) for _ in range(16 * count)}
        return self.take(self.new_candidates(self.order(self.domain.legal(sorted(children)), len(known))), best, count)

    def _child(self, parents: Sequence[Observation], generator: np.random.Generator) -> Place:
        first = parents[int(generator.integers(len(parents)) * generator.random())].point
        mates = [k.point for k in parents if k.point.structure == first.structure]
        second = mates[int(generator.integers(len(mates)))]
        return first.structure, crossover(first.places, second.places, self.domain.shapes[first.structure], generator)


def crossover(
    first: Sequence[int], second: Sequence[int], shape: Sequence[int], generator: np.random.Generator
) -> tuple[int, ...]:
    """Return parameters of either parent, with one of them mutated on average."""
    places = [a if generator.random() < 0.5 else b for a, b in zip(first, second, strict=True)]
    for axis, extent in enumerate(shape):
        if generator.random() < 1.0 / max(1, len(shape)):
            places[axis] = int(generator.integers(extent))
    return tuple(places)
