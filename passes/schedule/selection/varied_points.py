"""Choice of varied points: the best ones, few of them similar."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from ...geometry import ScheduleTemplate

#: Most points of one tile among the results, where there are others.
MAX_PER_TILE = 3
#: Greatest ratio to the best score of a point that adds variety.
MAX_VARIETY_RATIO = 1.5
#: Points whose keys are found at once.
COMPARED_POINTS = 256

_Array: TypeAlias = "np.ndarray[Any, Any]"
#: Keys that a point shares with similar points, in the order of the limits; None where it shares none.
_Keys: TypeAlias = tuple[Hashable, ...]


def varied_points(
    templates: Sequence[ScheduleTemplate],
    scores: _Array,
    structures: _Array,
    places: Callable[[int, _Array], _Array],
    count: int,
) -> list[int]:
    """Return the first of ordered points under limits of variety, then others.

    The limits hold per tile, per tile and loop, per template, per thread tile, per block of matrix instructions, whose
    warps may lie in many ways, and per number of split-K warps. `places` returns the places of some points of a
    template.
    """
    limits = (MAX_PER_TILE, 1, max(1, 3 * count // 4), max(2, count // 3), max(2, count // 5), max(1, 3 * count // 4))
    seen: tuple[dict[Hashable, int], ...] = tuple({} for _ in limits)
    common: dict[int, _CommonKeys] = {}
    chosen: list[int] = []
    rest: list[int] = []
    far = inf
    for start in range(0, len(scores), COMPARED_POINTS):
        here = structures[start : start + COMPARED_POINTS]
        found = dict[int, _Keys]()
        for position in sorted(set(here.tolist())):
            if position not in common:
                common[position] = _CommonKeys.of(position, templates[position])
            own = np.flatnonzero(here == position) + start
            found.update(zip(own.tolist(), common[position].of_points(places(position, own)), strict=True))
        if not start and common[int(here[0])].depth is not None:
            far = MAX_VARIETY_RATIO * float(scores[0])  # similar points add less variety, but are better
        for point, value in enumerate(scores[start : start + COMPARED_POINTS].tolist(), start):
            if len(chosen) + len(rest) >= count and value > far:
                return chosen + rest[: count - len(chosen)]
            keys = found[point]
            for counts, key, limit in zip(seen, keys, limits, strict=True):
                if key is not None and counts.get(key, 0) >= limit:
                    rest.append(point)
                    break
            else:
                chosen.append(point)
                for counts, key in zip(seen, keys, strict=True):
                    counts[key] = counts.get(key, 0) + 1
                if len(chosen) == count:
                    return chosen
    return chosen + rest[: count - len(chosen)]


@frozen(eq=False)
class _CommonKeys:
    """Parameters of a template that make points similar.

    They are the joint parameters, those of loops, those of tile dims, and the warps of a warp split-K, where there may
    be several. A joint parameter has for each value the first one with the same tile.
    """

    position: int
    structure: ScheduleTemplate
    joint: tuple[tuple[int, _Array], ...]
    loops: tuple[int, ...]
    tiles: tuple[int, ...]
    depth: int | None
    mma: bool

    @staticmethod
    def of(position: int, structure: ScheduleTemplate) -> _CommonKeys:
        """Return the parameters of a template."""
        names = list(enumerate(p.names for p in structure.parameters))
        values = [p.values for p in structure.parameters]
        return _CommonKeys(
            position,
            structure,
            tuple((n, _first_equal([value[:2] for value in values[n]])) for n, each in names if len(each) > 1),
            tuple(n for n, each in names if each[0].partition(".")[2][:1] in ("c", "l", "s")),
            tuple(n for n, each in names if len(each) == 3),
            depth_parameter(structure),
            any(segment.mma for segment in structure.segments),
        )

    def of_points(self, places: _Array) -> list[_Keys]:
        """Return the keys of points, given as rows of places."""
        parameters = self.structure.parameters
        tables = [(parameters[n].table, places[:, n]) for n in self.tiles]
        thread = _rows([table[1][column] for table, column in tables], len(places))
        nothing: list[Hashable] = [None] * len(places)
        block = _rows([table[0][c] * table[1][c] for table, c in tables], len(places)) if self.mma else nothing
        tile, looped, warps = nothing, nothing, nothing
        if self.depth is not None:
            warps = [parameters[self.depth].values[place] for place in places[:, self.depth].tolist()]
            joint = _rows([same[places[:, n]] for n, same in self.joint], len(places))
            tile = [(self.position, *each) for each in zip(warps, joint, strict=True)]
            loops = _rows([places[:, n] for n in self.loops], len(places))
            looped = list(zip(tile, loops, strict=True))
        template = [self.position] * len(places)
        return list(zip(tile, looped, template, thread, block, warps, strict=True))


def _first_equal(values: Sequence[Hashable]) -> _Array:
    """Return the first position of an equal value for each value."""
    first: dict[Hashable, int] = {}
    return np.asarray([first.setdefault(value, n) for n, value in enumerate(values)])


def _rows(columns: Sequence[_Array], count: int) -> list[Hashable]:
    """Return the rows of some columns as tuples."""
    return [*map(tuple, np.stack(columns, axis=1).tolist())] if columns else [()] * count


def depth_parameter(structure: ScheduleTemplate) -> int | None:
    """Return the parameter of the warps of a warp split-K, if any."""
    if not any(segment.mma for segment in structure.segments):
        return None
    found = (
        n for n, k in enumerate(structure.parameters) if k.names[0].endswith(".reduction_threads") and len(k.values) > 1
    )
    return next(found, None)
