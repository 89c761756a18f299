"""Search domain of strategies: the space of a group, or a recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from attrs import define, field, fields

from ...ir import BOUND_PRUNING, Pruning
from ...passes.model import lower_bound
from ...passes.schedule import Batch, Point, Space, candidate_of, columns_of, evaluate, is_pruned, neighbours, score
from ..building import ScoredCandidate
from ..tasks import random_points

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Point without its score: its structure, and the index of each parameter's value.
Place: TypeAlias = tuple[int, tuple[int, ...]]

#: Limit of features that may be infinite, for example where a launch requests no limit.
MAX_FEATURE = 1e18


class SearchDomain(Protocol):
    """Points that a search may propose."""

    @property
    def space(self) -> Space:
        """Schedule space of the points."""
        ...

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """Number of values of each parameter of each structure."""
        ...

    @property
    def discards(self) -> bool:
        """True if points that are proven slower are discarded."""
        ...

    def random(self, count: int, seed: Sequence[int]) -> list[Point]:
        """Return legal points in a random order."""
        ...

    def legal(self, places: Sequence[Place]) -> list[Point]:
        """Return the legal ones of given points with their scores, in order."""
        ...

    def near(self, points: Sequence[Point]) -> set[Point]:
        """Return legal neighbours of the given points."""
        ...

    def candidate_at(self, point: Point) -> ScoredCandidate:
        """Return the candidate of a point."""
        ...

    def values(self, points: Sequence[Point]) -> Array:
        """Return parameter values, a row for each point, without the cost model."""
        ...

    def features(self, points: Sequence[Point]) -> Array:
        """Return the cost model's features, a row for each point."""
        ...

    def bounds(self, points: Sequence[Point]) -> Array:
        """Return the lower bounds of the points' times, in seconds."""
        ...


def place_of(point: Point) -> Place:
    """Return a point without its score."""
    return point.structure, point.places


@define
class FullSpace:
    """Points that a pruning rule keeps, scored by the cost model."""

    space: Space
    pruning: Pruning = BOUND_PRUNING
    _names: list[str] = field(init=False)
    _known_features: dict[Place, tuple[Array, float]] = field(init=False, factory=dict)

    @_names.default
    def _all_names(self) -> list[str]:
        return sorted({name for s in self.space.templates for knob in s.parameters for name in knob.names})

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """Number of values of each parameter of each structure."""
        return [s.shape for s in self.space.templates]

    @property
    def discards(self) -> bool:
        """True if points that are proven slower are discarded."""
        return self.pruning.rule == BOUND_PRUNING.rule

    def random(self, count: int, seed: Sequence[int]) -> list[Point]:
        """Return legal points in a random order, equally many of each structure."""
        number = seed[0] if len(seed) == 1 else int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
        return random_points(self.space, count, self.pruning, number)

    def legal(self, places: Sequence[Place]) -> list[Point]:
        """Return the legal ones of given points with their scores, in order."""
        found: dict[int, Point] = {}
        for position, rows, batch in self._evaluate(places):
            values = np.broadcast_to(score(batch, self.space, self.pruning), (len(rows),))
            kept = np.flatnonzero(np.isfinite(values) & ~is_pruned(values))
            found |= {rows[k]: Point(float(values[k]), position, places[rows[k]][1]) for k in kept}
        return [found[row] for row in sorted(found)]

    def near(self, points: Sequence[Point]) -> set[Point]:
        """Return the points that differ in one parameter."""
        return neighbours(self.space, points, self.pruning)

    def candidate_at(self, point: Point) -> ScoredCandidate:
        """Return the candidate of a point."""
        return ScoredCandidate(point, candidate_of(self.space, point))

    def values(self, points: Sequence[Point]) -> Array:
        """Return logarithms of parameter values, and one-hot structures."""
        table = np.zeros((len(points), len(self._names) + len(self.space.templates)))
        for position, rows, columns in self._columns([place_of(p) for p in points]):
            table[rows, len(self._names) + position] = 1.0
            for name, column in columns.items():
                table[rows, self._names.index(name)] = _log(column)
        return table

    def features(self, points: Sequence[Point]) -> Array:
        """Return the logarithms of the score and of the cost model's features."""
        scores = np.log([max(p.score, 1e-12) for p in points])
        return np.concatenate([scores[:, None], [counted for counted, _ in self._features_and_bounds(points)]], axis=1)

    def bounds(self, points: Sequence[Point]) -> Array:
        """Return the lower bounds of the points' times, in seconds."""
        return np.asarray([least for _, least in self._features_and_bounds(points)])

    def _features_and_bounds(self, points: Sequence[Point]) -> list[tuple[Array, float]]:
        """Return the logarithms of features, and the bounds; new points are evaluated at once, as one takes as long as
        hundreds.
        """
        places = [place_of(p) for p in points]
        new = [place for place in dict.fromkeys(places) if place not in self._known_features]
        for _, rows, batch in self._evaluate(new):
            names = [f.name for f in fields(type(batch.features)) if f.name != "segments"]
            table = np.empty((len(rows), len(names)))
            for column, name in enumerate(names):
                table[:, column] = _log(np.asarray(getattr(batch.features, name), dtype=np.float64))
            least = np.broadcast_to(lower_bound(batch.features, self.space.target).time, (len(rows),)).tolist()
            self._known_features |= {
                new[row]: each for row, each in zip(rows, zip(table, least, strict=True), strict=True)
            }
        return [self._known_features[place] for place in places]

    def _columns(self, places: Sequence[Place]) -> Iterator[tuple[int, list[int], dict[str, Any]]]:
        for position in sorted({s for s, _ in places}):
            rows = [k for k, (s, _) in enumerate(places) if s == position]
            structure = self.space.templates[position]
            table = np.asarray([places[k][1] for k in rows], np.int64).reshape(len(rows), len(structure.shape))
            yield position, rows, columns_of(structure, table)

    def _evaluate(self, places: Sequence[Place]) -> Iterator[tuple[int, list[int], Batch]]:
        for position, rows, columns in self._columns(places):
            yield position, rows, evaluate(self.space, self.space.templates[position], columns, 0)


def _log(values: Array) -> Array:
    return np.log1p(np.minimum(np.abs(values), MAX_FEATURE))
