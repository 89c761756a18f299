"""Strategies: which points of a space to measure next, given what was measured so far. Each is known by a name.

* rank: the best points by the model, then the neighbours of the best measured ones, best by the model first.
* random: legal points drawn at random, for comparison.
* genetic: crossing and mutation of the fastest measured points (the search of Woodpecker-DL, on top of the model's
  first choice).

All of them are deterministic: the same measurements lead to the same proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from attrs import define, field, frozen

from ..ir import UsageError
from ..passes.schedule import Point, Space, candidate_of, columns_of, evaluate, neighbours, score
from .build import Scored
from .sample_points import random_points

#: Measured points whose neighbours are looked at in one round, and population of the genetic strategy.
PARENTS, POPULATION = 3, 12
#: The model is trusted this far: of the neighbours, those that it holds for much slower than a parent are not measured.
SLACK = 1.6
#: Points that the random strategy draws.
DRAWN = 2000


@frozen
class Known:
    """A point that was tried, and its seconds; infinity where it failed."""

    point: Point
    seconds: float


class Strategy(Protocol):
    """Proposes points; what was proposed before is not proposed again."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return at most `count` new points, the most promising first; nothing where there is none left worth
        measuring.
        """
        ...


@define
class _Proposer:
    """What all strategies share: the space, and what was proposed."""

    space: Space
    first: list[Scored]
    model: str = "bound"
    seed: int = 0
    seen: set[tuple[int, tuple[int, ...]]] = field(factory=set)

    def take(self, points: Iterator[Scored] | Sequence[Scored], best: float, count: int) -> list[Scored]:
        """Return the first new points that are not proven slower than the best time."""
        found: list[Scored] = []
        for scored in points:
            assert scored.point is not None, "strategies propose points of the space"
            place = (scored.point.structure, scored.point.places)
            if place in self.seen:
                continue
            self.seen.add(place)
            if scored.candidate.bound <= best:
                found.append(scored)
            if len(found) == count:
                break
        return found

    def scored(self, points: Sequence[Point]) -> Iterator[Scored]:
        """Yield points with their candidates."""
        return (Scored(p, candidate_of(self.space, p)) for p in points)


class Rank(_Proposer):
    """The model's order first, then the neighbours of what was measured to be fast."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the next points by the model, or neighbours of the best."""
        if not known:
            return self.take(self.first, best, count)
        parents = fastest(known, PARENTS)
        if not parents:
            return self.take(self.first, best, count)
        near = neighbours(self.space, [k.point for k in parents], self.model)
        limit = SLACK * max(k.point.score for k in parents)
        order = sorted(p for p in near if p.score <= limit and (p.structure, p.places) not in self.seen)
        return self.take(self.scored(order[: 4 * count]), best, count)


@define
class Random(_Proposer):
    """Legal points in a fixed random order, the same number from each structure."""

    order: list[Point] | None = None

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return the next points of the order."""
        if self.order is None:
            self.order = random_points(self.space, DRAWN, self.model, self.seed)
        return self.take(self.scored(self.order), best, count)


class Genetic(_Proposer):
    """Children of the fastest points: knobs from either parent, now and then one moved."""

    def propose(self, known: Sequence[Known], best: float, count: int) -> list[Scored]:
        """Return children that are legal, best by the model first."""
        parents = fastest(known, POPULATION)
        if len(parents) < 2:
            return self.take(self.first, best, count)
        generator = np.random.default_rng((self.seed, len(known)))
        children = {self._child(parents, generator) for _ in range(16 * count)}
        legal = score_points(self.space, sorted(children), self.model)
        return self.take(self.scored(sorted(legal)), best, count)

    def _child(self, parents: Sequence[Known], generator: np.random.Generator) -> tuple[int, tuple[int, ...]]:
        first = parents[int(generator.integers(len(parents)) * generator.random())].point
        mates = [k.point for k in parents if k.point.structure == first.structure]
        second = mates[int(generator.integers(len(mates)))]
        shape = self.space.structures[first.structure].shape
        places = [a if generator.random() < 0.5 else b for a, b in zip(first.places, second.places, strict=True)]
        for axis, extent in enumerate(shape):
            if generator.random() < 1.0 / max(1, len(shape)):
                places[axis] = int(generator.integers(extent))
        return first.structure, tuple(places)


def fastest(known: Sequence[Known], count: int) -> list[Known]:
    """Return the fastest points that ran, ties by the model's order."""
    ran = [k for k in known if np.isfinite(k.seconds)]
    return sorted(ran, key=lambda k: (k.seconds, k.point))[:count]


def score_points(space: Space, places: Sequence[tuple[int, tuple[int, ...]]], model: str) -> list[Point]:
    """Return those points that are legal, with their scores."""
    found: list[Point] = []
    for position in sorted({s for s, _ in places}):
        rows = [p for s, p in places if s == position]
        structure = space.structures[position]
        batch = evaluate(space, structure, columns_of(structure, np.asarray(rows, np.int64)), 0)
        values = np.broadcast_to(score(batch, space, model), (len(rows),))
        found += [Point(float(v), position, row) for v, row in zip(values, rows, strict=True) if np.isfinite(v)]
    return found


#: Strategies by name.
STRATEGIES: Mapping[str, Callable[[Space, list[Scored], str, int], Strategy]] = {
    "rank": Rank,
    "random": Random,
    "genetic": Genetic,
}


def make_strategy(name: str, space: Space, first: list[Scored], model: str = "bound", seed: int = 0) -> Strategy:
    """Return a strategy by its name; `first` are the best points by the model.

    Raises `UsageError` where no strategy has that name.
    """
    if name not in STRATEGIES:
        raise UsageError(f"unknown search strategy '{name}'", hint=f"strategies are: {', '.join(STRATEGIES)}")
    return STRATEGIES[name](space, first, model, seed)
