"""Distinct elements of a box of iterations, for numbers or arrays.

All functions take extents as integers or as NumPy arrays that broadcast against each other, so that one text serves a
single schedule and a million candidates. Counts are exact for sums of two variables, one with a coefficient of one
(strides, halos, dilations), and an estimate from above otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias, TypeVar

import numpy as np
from attrs import field, frozen

from ...ir import Clamp, FloorDiv, Index, Indirect, Mod, Read, Var, linearise, row_major, variables

T = TypeVar("T")
#: Most elements between those of one run: those of a sector of memory.
MAX_GAP = 31
#: A number, or an array with one entry per candidate schedule.
Count: TypeAlias = Any


def ceil_div(value: Count, step: Count) -> Count:
    """Return `ceil(value / step)` of integers."""
    return -(-value // step)


def product(values: Iterable[Count]) -> Count:
    """Return the product, 1 for none."""
    each = iter(values)
    total: Count = next(each, 1)
    for value in each:
        total = total * value
    return total


def least(a: Count, b: Count) -> Count:
    """Return the elementwise minimum."""
    if type(a) is int and type(b) is int:
        return min(a, b)
    return np.minimum(a, b)


def distinct_values(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the different values of an integer array, in order."""
    ordered = np.sort(values)
    fresh = np.ones(len(ordered), dtype=bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[fresh])


@frozen
class Cover:
    """Part of an iteration space that a block or thread covers.

    `sizes` counts elements of each dim (a dim is a tuple of axes flattened row-major); `extents` of each axis. Both are
    clipped to the space, since nothing outside is read. `known` memoises counts: most tensors of a kernel are read at
    the same places.
    """

    dims: tuple[tuple[Var, ...], ...]
    sizes: tuple[Count, ...]
    extents: Mapping[Var, Count]
    known: dict[Hashable, Any] = field(factory=dict, init=False, eq=False, repr=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the memoised value of a key; callers do not change it."""
        if key not in self.known:
            self.known[key] = make()
        found: T = self.known[key]
        return found

    def dependent(self, used: frozenset[Var]) -> Count:
        """Return the iterations that differ in the used variables.

        It is the product over the dims that hold one.
        """
        return self.once(used, lambda: self._dependent(used))

    def _dependent(self, used: frozenset[Var]) -> Count:
        return product(size for dim, size in zip(self.dims, self.sizes, strict=True) if not used.isdisjoint(dim))

    @staticmethod
    def of(dims: Sequence[tuple[Var, ...]], sizes: Sequence[Count]) -> Cover:
        """Build the cover of given sizes.

        A run along a flattened dim counts as beginning at a row's start.
        """
        extents: dict[Var, Count] = {}
        clipped: list[Count] = []
        for axes, size in zip(dims, sizes, strict=True):
            total = product(a.extent for a in axes)
            size = least(size, total)
            clipped.append(size)
            if len(axes) == 1:
                extents[axes[0]] = size
                continue
            inner = 1
            for axis in reversed(axes):
                rows = np.maximum(1, size // inner) if inner > 1 else size
                extents[axis] = least(rows, axis.extent)
                inner *= axis.extent
        return Cover(tuple(dims), tuple(clipped), extents)

    def join(self, other: Cover) -> Cover:
        """Return the product of two covers over different dims."""
        return Cover(self.dims + other.dims, self.sizes + other.sizes, {**self.extents, **other.extents})


def span(index: Index, extents: Mapping[Var, Count]) -> Count:
    """Return an index's maximum minus its minimum over a cover.

    Integers of a tensor count as neighbours; added to others, each pair is another value.
    """
    paired = len(index.terms) > 1 and any(isinstance(primary, Indirect) for primary, _ in index.terms)
    total: Count = 0
    for primary, factor in index.terms:
        if isinstance(primary, Var):
            width: Count = extents.get(primary, 1) - 1
        elif isinstance(primary, FloorDiv):
            width = span(primary.num, extents) // primary.den
        elif isinstance(primary, Mod):
            width = least(span(primary.num, extents), primary.den - 1)
        elif isinstance(primary, Clamp):
            width = least(span(primary.arg, extents), primary.high - primary.low)
        else:
            width = least(_combinations(primary, extents), primary.extent) - 1
        total = (total + 1) * (width + 1) - 1 if paired else total + abs(factor) * width
    return total


def _combinations(primary: Indirect, extents: Mapping[Var, Count]) -> Count:
    """Return the elements of a tensor of integers that an index reads over a cover: 8 of t[i // 16] for 128 of i."""
    used = frozenset[Var]().union(*(variables(i) for i in primary.indices))
    found = product(span(i, extents) + 1 for i in primary.indices)
    return least(found, product(extents.get(v, 1) for v in used))


def distinct(index: Index, extents: Mapping[Var, Count], limit: int) -> Count:
    """Return the number of an index's values over a cover.

    It is at most `limit`.
    """
    used = variables(index)
    if not used:
        return 1
    if len(index.terms) == 1 and isinstance(alone := index.terms[0][0], Var):
        return least(extents.get(alone, 1), limit)
    step = gcd(*(abs(f) for _, f in index.terms))
    combinations = product(extents.get(v, 1) for v in used)
    return least(least(span(index, extents) // step + 1, combinations), limit)


def elements(read: Read, shape: Sequence[int], cover: Cover) -> Count:
    """Return the distinct elements that a read touches over a cover."""
    return cover.once(("elements", read.indices, tuple(shape)), lambda: _elements(read.indices, shape, cover))


def _elements(indices: tuple[Index, ...], shape: Sequence[int], cover: Cover) -> Count:
    box = product(distinct(i, cover.extents, e) for i, e in zip(indices, shape, strict=True))
    return least(box, cover.dependent(places_of(indices)))


@lru_cache(maxsize=1 << 14)
def address_of(indices: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """Return an element's address in a row-major tensor, in elements."""
    return linearise(indices, row_major(shape))


@lru_cache(maxsize=1 << 14)
def places_of(indices: tuple[Index, ...]) -> frozenset[Var]:
    """Return the variables that determine an element's place."""
    return frozenset[Var]().union(*map(variables, indices))


def segments_of(read: Read, shape: Sequence[int], cover: Cover, unit: int) -> Count:
    """Return the aligned groups of elements that a read touches.

    Groups have `unit` elements of a row-major tensor. Neighbouring rows count as one run where whole rows are read.
    Every run counts as beginning at a group's start.
    """
    rows, run = cover.once(("runs", read.indices, tuple(shape)), lambda: _runs_of(read.indices, shape, cover))
    return least(rows * ceil_div(run, unit), elements(read, shape, cover))


def _runs_of(indices: tuple[Index, ...], shape: Sequence[int], cover: Cover) -> tuple[Count, Count]:
    """Return the number and the length of a read's contiguous runs."""
    rows: Count = 1
    run: Count = 1
    whole: Count = True
    last = len(shape) - 1
    for position in range(last, -1, -1):
        count = distinct(indices[position], cover.extents, shape[position])
        if position == last:
            rows, run = _innermost_runs(indices[position], cover.extents, shape[position], count)
        elif whole is True:
            run = run * count
        else:
            run = run * np.where(whole, count, 1)
            rows = rows * np.where(whole, 1, count)
        if shape[position] > 1:  # dims of one element are read whole
            whole = np.logical_and(whole, count >= shape[position])
    if sum(isinstance(primary, Indirect) for index in indices for primary, _ in index.terms) < 2:
        return rows, run
    # Several lookups by the same axes find at most as many elements as these axes have values.
    points = cover.dependent(places_of(indices))
    rows = least(rows, points)
    return rows, least(run, ceil_div(points, rows))


def random_groups(read: Read, shape: Sequence[int], cover: Cover, unit: int) -> Count:
    """Return the expected groups of elements of a data-dependent read.

    Groups have `unit` elements of a row-major tensor; the count is that of distinct ones among random draws, 0 for
    other reads.
    """
    if not is_scattered(read):
        return 0.0
    *outer, _ = (distinct(i, cover.extents, extent) for i, extent in zip(read.indices, shape, strict=True))
    looked_up = {primary: f for primary, f in read.indices[-1].terms if isinstance(primary, Indirect)}
    even = Index(0, tuple(term for term in read.indices[-1].terms if term[0] not in looked_up))
    reach = span(even, cover.extents) + 1 + sum(abs(f) * (primary.extent - 1) for primary, f in looked_up.items())
    groups = product(outer) * ceil_div(least(shape[-1], reach), unit) * 1.0
    points = cover.dependent(places_of(read.indices))
    return groups * -np.expm1(-points / groups)


def is_scattered(read: Read) -> bool:
    """Return whether an element's place in its row is data-dependent."""
    terms = read.indices[-1].terms if read.indices else ()
    return any(isinstance(primary, Indirect) and any(map(variables, primary.indices)) for primary, _ in terms)


def _innermost_runs(index: Index, extents: Mapping[Var, Count], limit: int, count: Count) -> tuple[Count, Count]:
    """Return the runs of `count` values of an innermost index, with gaps within a sector, and the length of one."""
    steps = sorted(((abs(f), axis) for axis, f in index.terms if isinstance(axis, Var)), key=lambda term: term[0])
    if len(steps) < 2 or len(steps) < len(index.terms):
        return 1, count * min((abs(f) for _, f in index.terms), default=1)
    rows: Count = 1
    run: Count = 1
    for step, axis in steps:
        joined = np.less_equal(step, run + MAX_GAP)
        rows = rows * np.where(joined, 1, extents.get(axis, 1))
        run = np.where(joined, step * (extents.get(axis, 1) - 1) + run, run)
    return least(rows, count), least(run, limit)
