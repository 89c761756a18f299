"""Lookup of a schedule's point in the space of its group.

Neighbours of the point can then be visited. Parameters are found one by one: each gets the value that makes the
features most similar to those of the schedule, until none changes. Parameters that features do not determine are tried.
Most schedules of a space are found, and a found point has exactly the schedule.
"""

from __future__ import annotations

from itertools import islice, product

import numpy as np

from ...ir import Schedule
from ...passes.geometry import ScheduleTemplate, geometries, geometry_of, schedule_of
from ...passes.schedule import Space, columns_of
from .schedule_features import Array, ScheduleFeatures, features_of_parts, features_of_schedule

#: Passes over all parameters, and the largest number of points with equal features that are tried.
NUM_PASSES, MAX_TRIED_POINTS = 5, 64
#: Weight of a feature that is a product of others.
PRODUCT_WEIGHT = 0.3


def place_of_schedule(space: Space, schedule: Schedule) -> tuple[int, tuple[int, ...]] | None:
    """Return structure and parameter indices of a legal schedule, if found."""
    wanted, kind = features_of_schedule(space.group, schedule), _kind_of_schedule(space, schedule)
    for position, structure in enumerate(space.templates):
        if _kind(structure) == kind:
            found = _parameter_indices(space, structure, wanted, schedule)
            if found is not None:
                return position, found
    return None


def _kind(structure: ScheduleTemplate) -> object:
    return tuple((s.dims, s.reduces, s.staged, s.mma, s.rows, s.columns) for s in structure.segments)


def _kind_of_schedule(space: Space, schedule: Schedule) -> object:
    parts = (part.structure for part in geometry_of(space.group, schedule))
    return tuple((s.dims, s.reduces, s.staged, s.mma, s.rows, s.columns) for s in parts)


def _parameter_indices(
    space: Space, structure: ScheduleTemplate, wanted: ScheduleFeatures, schedule: Schedule
) -> tuple[int, ...] | None:
    """Return the parameter indices of a schedule within a structure."""
    at = np.zeros(len(structure.shape), np.int64)
    best = [np.zeros(1, np.int64)] * len(at)
    for _ in range(NUM_PASSES):
        before = at.copy()
        for axis, count in enumerate(structure.shape):
            rows = np.repeat(at[None, :], count, axis=0)
            rows[:, axis] = np.arange(count)
            wrong = _differences(space, structure, rows, wanted)
            best[axis] = np.flatnonzero(wrong <= wrong.min() + 1e-9)
            at[axis] = at[axis] if at[axis] in best[axis] else best[axis][0]
        if (at == before).all():
            break
    for places in islice(product(*(each.tolist() for each in best)), MAX_TRIED_POINTS):
        columns = columns_of(structure, np.asarray([places], np.int64)) if places else {}
        values = {name: int(column[0]) for name, column in columns.items()}
        if schedule_of(space.group, structure, values, space.target.warp_size) == schedule:
            return tuple(int(p) for p in places)
    return None


def _differences(space: Space, structure: ScheduleTemplate, rows: Array, wanted: ScheduleFeatures) -> Array:
    """Return the differences of candidates' features from the wanted ones."""
    columns = columns_of(structure, rows)
    parts = geometries(space.group, structure, columns, space.target.warp_size)
    sizes = features_of_parts(parts, columns.get("raster", 1), columns.get("min_blocks", 0))
    found = np.zeros(len(rows))
    for name in sizes.keys() | wanted.keys():
        found += _weight(name) * np.abs(sizes.get(name, 0.0) - wanted.get(name, 0.0))
    return found


def _weight(name: str) -> float:
    """Return the weight of a feature.

    K blocks and blocks are products of other features: those are found first, and the remaining one completes the
    product.
    """
    return PRODUCT_WEIGHT if name.endswith((" chunk", " block")) else 1.0
