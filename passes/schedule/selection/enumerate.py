"""Enumeration of a space as arrays: legality of points, and their schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np
from attrs import frozen

from ....ir import Schedule
from ...geometry import Columns, Count, Geometry, ScheduleTemplate, distinct_values, geometries, schedule_of
from ...model import Features, count_features
from ..rules import FEATURE_RULES, ScheduleSizes, is_broken
from ..schedule_parameters import SIZE_RULES
from ..space import Space

#: Points that are evaluated at once, so that arrays stay in the cache.
BATCH = 1 << 17


@frozen
class SpaceSlice:
    """Consecutive points of a template.

    The leading parameters stand at `fixed` positions, the next one runs from `first` to `last`, the rest is whole.
    `start` is the number of the first point within the template.
    """

    fixed: tuple[int, ...]
    first: int
    last: int
    start: int


@frozen
class Batch:
    """Evaluated points of one structure.

    They are consecutive from number `start` of the space, or, where `points` is
    given, those with these numbers counted from `start`.
    """

    structure: ScheduleTemplate
    start: int
    size: int
    columns: Columns
    features: Features
    illegal: Mapping[str, Count]
    sizes: tuple[Geometry, ...]
    points: np.ndarray[Any, Any] | None = None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the mesh that the columns span."""
        return _common_shape(self.columns)

    def flat(self, value: Count) -> np.ndarray[Any, Any]:
        """Return a feature or score of every point as a flat array."""
        return np.asarray(np.broadcast_to(value, self.shape).reshape(-1))

    @property
    def legal(self) -> np.ndarray[Any, Any]:
        """Legality of each point."""
        bad: Count = np.bool_(False)
        for reason in self.illegal.values():
            bad = np.logical_or(bad, reason)
        return np.asarray(np.logical_not(self.flat(bad)))


def _common_shape(columns: Columns) -> tuple[int, ...]:
    """Return the shape that columns broadcast to."""
    shapes = {np.shape(column) for column in columns.values()}
    return shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)


def mesh(structure: ScheduleTemplate, part: SpaceSlice) -> dict[str, Count]:
    """Return the parameters of a slice as an open mesh.

    It consists of arrays that broadcast to all its points.
    """
    rank = len(structure.parameters)
    columns: dict[str, Count] = {}
    for axis, knob in enumerate(structure.parameters):
        table = knob.table
        if axis < len(part.fixed):
            table = table[:, part.fixed[axis] : part.fixed[axis] + 1]
        elif axis == len(part.fixed):
            table = table[:, part.first : part.last]
        for row, name in zip(table, knob.names, strict=True):
            columns[name] = row.reshape([-1 if k == axis else 1 for k in range(rank)])
    return columns


def slices(structure: ScheduleTemplate) -> Iterator[SpaceSlice]:
    """Yield the points of a template in order, in slices.

    A slice has at most about `BATCH` points.
    """
    shape = structure.shape
    axis = 0
    while axis + 1 < len(shape) and prod(shape[axis + 1 :]) > BATCH:
        axis += 1
    inner = prod(shape[axis + 1 :])
    step = max(1, BATCH // inner)
    start = 0
    for fixed in cartesian(*(range(n) for n in shape[:axis])):
        for first in range(0, shape[axis] if shape else 1, step):
            last = min(first + step, shape[axis]) if shape else 1
            yield SpaceSlice(fixed, first, last, start)
            start += (last - first) * inner


def columns_at(structure: ScheduleTemplate, points: np.ndarray[Any, Any]) -> dict[str, Count]:
    """Return the parameters of the points with the given numbers."""
    return columns_of(structure, places_at(structure, points))


def places_at(structure: ScheduleTemplate, points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the points with the given numbers as rows of positions."""
    if not structure.parameters:
        return np.zeros((len(points), 0), dtype=np.int64)
    return np.stack(np.unravel_index(points, structure.shape), axis=1)


def columns_of(structure: ScheduleTemplate, places: np.ndarray[Any, Any]) -> dict[str, Count]:
    """Return the parameters of points given as rows of positions."""
    columns: dict[str, Count] = {}
    for axis, knob in enumerate(structure.parameters):
        columns.update(zip(knob.names, knob.table[:, places[:, axis]], strict=True))
    return columns


def _impossible_sizes(sizes: ScheduleSizes) -> dict[str, Count]:
    """Return for each rule about sizes alone the points that break it."""
    return {rule.__name__: is_broken(rule(sizes)) for rule in SIZE_RULES}


def evaluate(
    space: Space,
    structure: ScheduleTemplate,
    columns: Columns,
    start: int,
    points: np.ndarray[Any, Any] | None = None,
    impossible: Mapping[str, Count] | None = None,
) -> Batch:
    """Count the features of points and check them.

    `impossible` are known results of the rules about sizes.
    """
    sizes = geometries(space.group, structure, columns, space.target.warp_size)
    launch = (columns.get("raster", 1), columns.get("min_blocks", 0))
    features = count_features(space.group, sizes, space.target, *launch, work=space.work)
    illegal = dict(impossible or _impossible_sizes(ScheduleSizes(space.group, space.target, sizes)))
    illegal |= {rule.__name__: is_broken(rule(features, space.target)) for rule in FEATURE_RULES}
    return Batch(structure, start, prod(_common_shape(columns)), columns, features, illegal, sizes, points)


def batches(space: Space) -> Iterator[Batch]:
    """Yield all points of a space in order, in cache-sized batches."""
    start = 0
    for structure in space.templates:
        for part in slices(structure):
            yield evaluate(space, structure, mesh(structure, part), start + part.start)
        start += structure.size


def sample_batches(space: Space, most: int) -> Iterator[Batch]:
    """Yield a fixed sample of at most `most` points per template.

    Smaller templates contribute all points.
    """
    start = 0
    for structure in space.templates:
        points = _sample(structure, most)
        yield evaluate(space, structure, columns_at(structure, points), start, points)
        start += structure.size


def sample_possible_batches(space: Space, most: int) -> Iterator[Batch]:
    """Yield the sample of `sample_batches` with possible sizes.

    Points whose sizes alone break a rule are left out, except for one where all do.
    """
    start = 0
    for structure in space.templates:
        points = _sample(structure, most)
        columns = columns_at(structure, points)
        sizes = geometries(space.group, structure, columns, space.target.warp_size)
        bad: Count = np.zeros(len(points), dtype=bool)
        for reason in _impossible_sizes(ScheduleSizes(space.group, space.target, sizes)).values():
            bad = np.logical_or(bad, reason)
        none = bad.all()
        bad[0] = bad[0] and not none
        columns = {name: column[~bad] for name, column in columns.items()}
        yield evaluate(space, structure, columns, start, points[~bad], {"sizes": none})
        start += structure.size


def _sample(structure: ScheduleTemplate, most: int) -> np.ndarray[Any, Any]:
    """Return the numbers of all points of a template, or of a fixed sample."""
    if structure.size <= most:
        return np.arange(structure.size)
    return distinct_values((scatter(most) % np.uint64(structure.size)).astype(np.int64))


def scatter(count: int) -> np.ndarray[Any, Any]:
    """Return `count` well-mixed 64-bit numbers, always the same.

    They are those of the finaliser of SplitMix64.
    """
    value = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def illegal_histogram(space: Space) -> dict[str, int]:
    """Return how many points break each rule, and the legal ones.

    A point may break several rules.
    """
    counts: dict[str, int] = {"legal": 0}
    for batch in batches(space):
        counts["legal"] += int(batch.legal.sum())
        for name, reason in batch.illegal.items():
            counts[name] = counts.get(name, 0) + int(batch.flat(reason).sum())
    return counts


def to_schedule(space: Space, point: int) -> Schedule:
    """Return the schedule of a point of the space."""
    rest = point
    for structure in space.templates:
        if rest < structure.size:
            values = {n: int(v[0]) for n, v in columns_at(structure, np.asarray([rest])).items()}
            return schedule_of(space.group, structure, values, space.target.warp_size)
        rest -= structure.size
    raise IndexError(f"point {point} of a space of {space.size}")
