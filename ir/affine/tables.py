"""Indices with the integers of a table: straight, clamped, mirrored or rolled.

Borders and rolled images are often written by tables of places:

    [2, 4, 6, 8]             2*i + 2
    [0, 0, 0, 1, 2, 2]       clamp(i - 2, 0, 2)              a border that repeats the edge
    [2, 1, 0, 1, 2, 1]       clamp(i - 2 - 2*clamp(i - 2, -2, 0) - 2*clamp(i - 4, 0, 1), 0, 2)      a mirrored border
    [3, 4, 5, 0, 1, 2]       (i + 3) % 6                     rolled
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .index import Index, Var, as_index, clamp
from .traversal import substitute
from .values import Values, index_value

#: Most places where a table bends: more take more instructions than a load.
MAX_BENDS = 2


def straight_index(table: Values, places: Sequence[Index]) -> Index | None:
    """Return the affine index of a table at some places.

    The result is None where its elements do not step evenly.
    """
    axes = _axes(table)
    return _at(table, _straight(table, axes, (0,) * table.ndim), axes, places)


def table_index(table: Values, places: Sequence[Index]) -> Index | None:
    """Return the index with the elements of a table at some places.

    The result is None where no form has them.
    """
    axes = _axes(table)
    found = (_at(table, index, axes, places) for index in _candidates(table, axes))
    return next((index for index in found if index is not None), None)


def _axes(table: Values) -> tuple[Var, ...]:
    return tuple(Var(f"t{dim}", extent) for dim, extent in enumerate(table.shape))


def _candidates(table: Values, axes: Sequence[Var]) -> Iterator[Index]:
    yield _straight(table, axes, (0,) * table.ndim)
    low, high = int(table.min()), int(table.max())
    middle = tuple(max(0, extent // 2 - 1) for extent in table.shape)
    yield clamp(_straight(table, axes, middle), low, high)
    if table.ndim == 1 and table.size > 1:
        yield (as_index(axes[0]) + int(table[0])) % (high + 1)
        steps = np.diff(table)
        bends = np.flatnonzero(np.diff(steps)) + 1
        if 0 < len(bends) <= MAX_BENDS:
            # Bounds of a sum are wider than its values.
            yield clamp(_bent(table, axes[0], bends.tolist()), low, high)


def _straight(table: Values, axes: Sequence[Var], corner: tuple[int, ...]) -> Index:
    """Return the affine index with the steps of a table from one of its elements to the next ones."""
    index = Index(int(table[corner]))
    for dim, axis in enumerate(axes):
        if table.shape[dim] > 1:
            beside = tuple(place + (number == dim) for number, place in enumerate(corner))
            index = index + (as_index(axis) - corner[dim]) * int(table[beside] - table[corner])
    return index


def _bent(table: Values, axis: Var, bends: Sequence[int]) -> Index:
    """Return the index that follows the longest straight part of a table, and bends at its ends."""
    ends = [0, *bends, len(table) - 1]
    longest = max(range(len(ends) - 1), key=lambda n: ends[n + 1] - ends[n])
    steps = np.diff(table)
    start = ends[longest]
    index = _straight(table, (axis,), (start,))
    for n, bend in enumerate(bends):
        change = int(steps[bend] - steps[bend - 1])
        before = n < longest
        limits = (-bend, 0) if before else (0, len(table) - 1 - bend)
        index = index + clamp(as_index(axis) - bend, *limits) * (-change if before else change)
    return index


def _at(table: Values, index: Index, axes: Sequence[Var], places: Sequence[Index]) -> Index | None:
    """Return an index of a table's axes at some places, None where it gives other elements."""
    numbers = dict(zip(axes, np.ogrid[tuple(map(slice, table.shape))], strict=True))
    values = index_value(index, lambda leaf: numbers[leaf])  # type: ignore[index]
    same = np.array_equal(np.broadcast_to(values, table.shape), table)
    return substitute(index, dict(zip(axes, places, strict=True))) if same else None
