"""Strategies that need nothing but the space: the model's order with its neighbours, chance, and ours of crossings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..build import Scored
from .ground import Place, place_of
from .proposer import Known, Proposer, fastest

#: Measured points whose neighbours are looked at in one round, and population of the genetic strategy.
PARENTS, POPULATION = 3, 12
#: The model is trusted this far: of the neighbours, those that it holds for much slower than a parent are not measured.
SLACK = 1.6


class Rank(Proposer):
    """The model's order first, then the neighbours of what was measured to be fast."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the next points by the model, or neighbours of the best."""
        parents = fastest(known, PARENTS)
        if not parents:
            return self.begin(best, count)
        near = self.ground.near([k.point for k in parents])
        limit = SLACK * max(k.point.score for k in parents) if self.aided else np.inf
        order = self.ordered((p for p in near if p.score <= limit and place_of(p) not in self.seen), len(known))
        return self.take(self.scored(order[: 4 * count]), best, count)


class Random(Proposer):
    """Legal points in a fixed random order, the same number from each structure."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the next points of the order."""
        return self.take(self.scored(self.drawn()), best, count)


class Genetic(Proposer):
    """Children of the fastest points: knobs from either parent, now and then one moved."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return children that are legal, best by the model first."""
        parents = fastest(known, POPULATION)
        if len(parents) < 2:
            return self.begin(best, count)
        generator = np.random.default_rng((self.seed, len(known)))
        children = {self._child(parents, generator) for _ in range(16 * count)}
        return self.take(self.scored(self.ordered(self.ground.legal(sorted(children)), len(known))), best, count)

    def _child(self, parents: Sequence[Known], generator: np.random.Generator) -> Place:
        first = parents[int(generator.integers(len(parents)) * generator.random())].point
        mates = [k.point for k in parents if k.point.structure == first.structure]
        second = mates[int(generator.integers(len(mates)))]
        return first.structure, crossed(first.places, second.places, self.ground.shapes[first.structure], generator)


def crossed(
    first: Sequence[int], second: Sequence[int], shape: Sequence[int], generator: np.random.Generator
) -> tuple[int, ...]:
    """Return knobs from either parent, one in all of them moved anywhere."""
    places = [a if generator.random() < 0.5 else b for a, b in zip(first, second, strict=True)]
    for axis, extent in enumerate(shape):
        if generator.random() < 1.0 / max(1, len(shape)):
            places[axis] = int(generator.integers(extent))
    return tuple(places)
