"""Where a schedule that was kept as text lies in the space of its group, so that its neighbours can be looked at.

Knobs are found one by one, each as the value that makes the sizes most like those of the schedule, until none changes;
what sizes do not tell is tried. Most schedules of a space are found, and what is found is the schedule itself.
"""

from __future__ import annotations

from itertools import islice, product

import numpy as np

from ...ir import Schedule
from ...passes.model import Structure, geometries
from ...passes.schedule import Space, columns_of, geometry_of, schedule_of
from .sizes import Array, Sizes, sizes_of_parts, sizes_of_schedule

#: Times that all knobs are looked at, and points of equal sizes that are tried.
SWEEPS, TRIED = 5, 64
#: What it counts that a product of sizes is another.
PRODUCT = 0.3


def place_of_schedule(space: Space, schedule: Schedule) -> tuple[int, tuple[int, ...]] | None:
    """Return the structure and the places of a legal schedule in its group's space, nothing where it is not found."""
    wanted, kind = sizes_of_schedule(space.group, schedule), _kind_of_schedule(space, schedule)
    for position, structure in enumerate(space.structures):
        if _kind(structure) == kind:
            found = _places(space, structure, wanted, schedule)
            if found is not None:
                return position, found
    return None


def _kind(structure: Structure) -> object:
    return structure.index, tuple((s.dims, s.reduces, s.staged, s.atom, s.rows, s.columns) for s in structure.segments)


def _kind_of_schedule(space: Space, schedule: Schedule) -> object:
    parts = (part.structure for part in geometry_of(space.group, schedule))
    return schedule.index, tuple((s.dims, s.reduces, s.staged, s.atom, s.rows, s.columns) for s in parts)


def _places(space: Space, structure: Structure, wanted: Sizes, schedule: Schedule) -> tuple[int, ...] | None:
    """Return the places of a schedule within a structure."""
    at = np.zeros(len(structure.shape), np.int64)
    best = [np.zeros(1, np.int64)] * len(at)
    for _ in range(SWEEPS):
        before = at.copy()
        for axis, count in enumerate(structure.shape):
            rows = np.repeat(at[None, :], count, axis=0)
            rows[:, axis] = np.arange(count)
            wrong = _differences(space, structure, rows, wanted)
            best[axis] = np.flatnonzero(wrong <= wrong.min() + 1e-9)
            at[axis] = at[axis] if at[axis] in best[axis] else best[axis][0]
        if (at == before).all():
            break
    for places in islice(product(*(each.tolist() for each in best)), TRIED):
        columns = columns_of(structure, np.asarray([places], np.int64)) if places else {}
        values = {name: int(column[0]) for name, column in columns.items()}
        if schedule_of(space.group, structure, values, space.target.warp_size) == schedule:
            return tuple(int(p) for p in places)
    return None


def _differences(space: Space, structure: Structure, rows: Array, wanted: Sizes) -> Array:
    """Return by how much the sizes of points differ from those that are wanted."""
    columns = columns_of(structure, rows)
    parts = geometries(space.group, structure, columns, space.target.warp_size)
    sizes = sizes_of_parts(parts, structure.index, columns.get("raster", 1), columns.get("min_blocks", 0))
    found = np.zeros(len(rows))
    for name in sizes.keys() | wanted.keys():
        found += _weight(name) * np.abs(sizes.get(name, 0.0) - wanted.get(name, 0.0))
    return found


def _weight(name: str) -> float:
    """Chunks and blocks are products of other sizes: those are found first, and one that is left makes the product
    right.
    """
    return PRODUCT if name.endswith((" chunk", " block")) else 1.0
