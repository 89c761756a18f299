"""Points that the model does not tell apart, far from one another.

What a kernel that only moves data takes is by the model the same in hundreds of ways, and by the clock it is not: of
1,588 points of a `relu` of 64x512, 159 took 3 to 5 % less than the best of forty that lay side by side (the audit in
docs/performance.md). Where scores say nothing, a search learns most of points that have little in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .enumerate import columns_of
from .space import Space

if TYPE_CHECKING:
    from .climb import Point

_Array: TypeAlias = "np.ndarray[Any, Any]"


def spread(space: Space, points: Sequence[Point], count: int) -> tuple[Point, ...]:
    """Return some points of a space: the first, and each time the one that lies farthest from all before it, the
    earlier of equals. So the first few of many are far apart, too.
    """
    values = _values(space, points)
    chosen, away = [0], _distances(values, 0)
    while len(chosen) < min(count, len(points)):
        chosen.append(int(np.argmax(away)))
        away = np.minimum(away, _distances(values, chosen[-1]))
        away[chosen] = -1.0
    return tuple(points[k] for k in chosen)


def _distances(values: _Array, place: int) -> _Array:
    found: _Array = np.abs(values - values[place]).sum(axis=1)
    return found


def _values(space: Space, points: Sequence[Point]) -> _Array:
    """Return the knobs' values as logarithms to base 2, a row for each point, and of which structure it is."""
    names = sorted({name for structure in space.structures for knob in structure.knobs for name in knob.names})
    column = {name: number for number, name in enumerate(names)}
    table = np.zeros((len(points), len(names) + len(space.structures)))
    for position in sorted({point.structure for point in points}):
        rows = [row for row, point in enumerate(points) if point.structure == position]
        table[rows, len(names) + position] = 1.0
        places = np.array([points[row].places for row in rows], dtype=np.int64)
        for name, values in columns_of(space.structures[position], places).items():
            table[rows, column[name]] = np.log2(1.0 + np.abs(np.asarray(values, dtype=np.float64)))
    return table
