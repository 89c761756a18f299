"""Scores of a group's points that earlier searches computed.

The partition searches a group for many points, and the choice of its schedule for the best: most of them are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from attrs import define, field

_Array: TypeAlias = "np.ndarray[Any, Any]"
#: Scores, best first, and numbers of points.
Sample: TypeAlias = tuple[_Array, _Array]


@define
class KnownScores:
    """Scores of the points of one group, each computed once."""

    _samples: Sequence[Sample] = ()
    _count: int = 0
    _known: dict[int, Sample] = field(factory=dict)

    def sample(self, count: int, make: Callable[[int], Sequence[Sample]], least: int) -> list[Sample]:
        """Return the best `count` sampled points of each template.

        `make` finds as many as it is asked for, at `least` so many.
        """
        if count > self._count:
            self._count = max(count, least)
            self._samples = make(self._count)
        return [(scores[:count], numbers[:count]) for scores, numbers in self._samples]

    def of(self, position: int, numbers: _Array, evaluate: Callable[[_Array], _Array]) -> _Array:
        """Return the scores of points of a template, in order of numbers."""
        scores, known = self._known.get(position, (np.zeros(0), numbers[:0]))
        fresh = numbers[~are_among(numbers, known)]
        if len(fresh):
            known, scores = np.concatenate([known, fresh]), np.concatenate([scores, evaluate(fresh)])
            order = np.argsort(known, kind="stable")  # two sorted runs
            scores, known = self._known[position] = scores[order], known[order]
        return np.asarray(scores[np.searchsorted(known, numbers)])


@lru_cache(maxsize=512)
def known_scores(*search: Hashable) -> KnownScores:
    """Return the scores of searches of a group for a target."""
    return KnownScores()


def are_among(numbers: _Array, known: _Array) -> _Array:
    """Return which numbers are among `known` ones, in order."""
    if not len(known):
        return np.zeros(len(numbers), dtype=bool)
    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.asarray(known[place] == numbers)
