"""Schedule features: tiles, threads, loops and structure as numbers by name.

Names are those of the group's axes, so that candidates of different structures share their common features. Points of a
space and schedules stored as text have equal features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir import FusedGroup, Schedule, Var
from ...passes.geometry import REGISTER_STAGED_ORDER, Geometry, geometry_of, numbers_of
from ...passes.schedule import Batch

Array = np.ndarray[Any, Any]
#: Logarithms by name; of one point, or arrays of several.
ScheduleFeatures = Mapping[str, Any]
#: Numbers of a schedule that follow from its structure, and need no feature.
DERIVED_PARAMETERS = frozenset({"rows", "columns", "pad", "register_staged", "swizzle", "privatised"})


def features_of_batch(batch: Batch) -> ScheduleFeatures:
    """Return the features of points of one structure, broadcast to the batch."""
    launch = batch.columns.get("raster", 1), batch.columns.get("min_blocks", 0)
    return features_of_parts(batch.sizes, *launch)


def features_of_schedule(group: FusedGroup, schedule: Schedule) -> ScheduleFeatures:
    """Return the features of a legal schedule."""
    return features_of_parts(geometry_of(group, schedule), schedule.raster, schedule.min_blocks)


def feature_table(each: Sequence[ScheduleFeatures], names: Sequence[str]) -> Array:
    """Return a row for each mapping of features; missing ones are zero."""
    return np.asarray([[float(np.max(sizes.get(name, 0.0))) for name in names] for sizes in each]).reshape(
        len(each), -1
    )


def features_of_parts(parts: Sequence[Geometry], raster: Any, blocks: Any) -> ScheduleFeatures:
    """Return the features of points whose segments have these geometries."""
    found = {"raster": raster, "min blocks": blocks}
    for number, part in enumerate(parts):
        found |= {f"{number} {name}": value for name, value in _segment(part)}
    return {name: np.log2(1.0 + np.abs(np.asarray(value, np.float64))) for name, value in found.items()}


def _segment(part: Geometry) -> Iterator[tuple[str, Any]]:
    structure = part.structure
    mapped = np.logical_and.reduce([np.greater(w, 0) for w in part.warp]) if part.warp else False
    for d, dim in enumerate(structure.dims):
        name = _axes(dim)
        yield name, 1
        yield f"{name} block", part.block[d]
        yield f"{name} thread", part.thread[d]
        yield f"{name} vector", part.vector[d]
        yield f"{name} warp", np.where(mapped, part.warp[d], 0) if part.warp else 0
    for loop, chunk in zip(structure.loops, part.block_k, strict=True):
        yield f"{_axes(loop)} chunk", chunk
    for parameters in (part.spread, part.loop, part.staging):
        yield from ((n, getattr(parameters, n)) for n in numbers_of(type(parameters)) if n not in DERIVED_PARAMETERS)
    yield "tiles", part.tiles
    yield "part", part.part
    yield f"atom {structure.mma} {structure.rows} {structure.columns}", 1
    yield f"staged {structure.staged}", 1
    yield f"meets {structure.scatter_dim}", 1
    yield "register_staged", np.equal(part.order, REGISTER_STAGED_ORDER)
    if not structure.mma:  # a matrix instruction determines the padding of its tiles
        yield "pad", part.staging.pad


def _axes(axes: Sequence[Var]) -> str:
    return "*".join(axis.name for axis in axes)
