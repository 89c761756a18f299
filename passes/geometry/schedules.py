"""Sizes of one schedule, and the schedule of given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
from attrs import evolve

from ...ir import (
    FusedGroup,
    ReduceDim,
    ReductionSchedule,
    Schedule,
    Segment,
    SegmentSchedule,
    Staging,
    TileDim,
    expr_variables,
    streamable_axis,
)
from .block_sums import part_rows, scatter_tile_dim, summed_dims
from .matrix_instructions import held_swizzle, reads_shared_matrices, side_swizzle, widest_swizzle
from .partial_sums import kept_sum_runs
from .row_sharing import (
    can_stream_rows,
    column_run,
    is_register_chain,
    walked_loop,
    walks_rows,
    whole_loops,
)
from .schedule_template import ScheduleTemplate, SegmentTemplate, with_streamed_input
from .segment_geometry import REGISTER_STAGED_ORDER, Geometry, geometries, numbers_of
from .shared_tensors import whole_dims
from .staged_tiles import StagedTile, staged_tiles

T = TypeVar("T", SegmentSchedule, ReductionSchedule, Staging)


def geometry_of(group: FusedGroup, schedule: Schedule) -> tuple[Geometry, ...]:
    """Return the sizes of a schedule's segments for the models."""
    chained = is_register_chain(schedule.segments)
    found = [
        _geometry(s, group, segment, chained) for s, segment in zip(schedule.segments, group.segments, strict=True)
    ]
    if chained and len(found) > 2:
        rows = found[1].structure
        found[1] = evolve(found[1], structure=evolve(rows, streams=bool(rows.shared)))
    if (axis := streamable_axis(group)) is not None and schedule.segments[0].dims[axis].blocks > 1:
        structure = with_streamed_input(found[-1].structure, group, axis)
        found[-1] = evolve(found[-1], structure=structure, part=found[0].block[axis])
    return tuple(found)


def _geometry(schedule: SegmentSchedule, group: FusedGroup, segment: Segment, chained: bool) -> Geometry:
    loops = list(dict.fromkeys(d for r in schedule.reductions for d in r.dims))
    reduces = tuple(tuple(loops.index(d) for d in r.dims) for r in schedule.reductions)
    structure = SegmentTemplate(
        tuple(d.axes for d in schedule.dims),
        tuple(d.axes for d in loops),
        reduces,
        tuple(tuple(s.operand for s in r.staging) for r in schedule.reductions),
        schedule.atomic is None and (schedule.reduction_threads > 1 or schedule.row_vector > 1),
        tuple(o.tensor for o in segment.outputs if o.tensor in group.shared),
        **_atom_of(schedule),
        caches_rows=schedule.row_cache > 0,
        whole=() if walks_rows(segment, schedule) else whole_loops(segment, reduces),
        walked=walked_loop(segment, [d.axes for d in loops]) if walks_rows(segment, schedule) else -1,
        summed=summed_dims(segment, [d.axes for d in schedule.dims]) if walks_rows(segment, schedule) else (),
        scatter_dim=scatter_tile_dim(segment, group, [d.axes for d in schedule.dims]) if schedule.privatised else -1,
        exchanged=whole_dims(group, segment),
        part_rows=part_rows(segment, group),
        kept=kept_sum_runs(segment, group),
        clusters=schedule.cluster > 1,
        boxed=schedule.atomic is not None and len(group.segments) > 1 and not chained,
        over_columns=column_run(segment, group.shared),
        streams=any(o.extra and o.tensor in group.shared for o in segment.outputs) and can_stream_rows(group),
    )
    staged = [s for r in schedule.reductions for s in r.staging]
    return Geometry(
        structure,
        tuple(np.int64(d.block) for d in schedule.dims),
        tuple(np.int64(d.thread) for d in schedule.dims),
        tuple(np.int64(d.vector) for d in schedule.dims),
        tuple(np.int64(d.threads) for d in schedule.dims),
        tuple(np.int64(d.block_k) for d in loops),
        tuple(np.int64(d.trips) for d in loops),
        SegmentSchedule((), **_greatest(SegmentSchedule, [schedule])),
        ReductionSchedule(
            (), **_greatest(ReductionSchedule, [r for r in schedule.reductions if r.staging or r.mma or r.stages > 1])
        ),
        Staging(-1, **_greatest(Staging, staged)),
        tuple(np.int64(w) for w in schedule.warp),
        np.int64(_order(staged)),
        _pads(schedule),
        np.int64(prod(d.tiles for d in schedule.dims)),
    )


def _greatest(kind: type, parts: Sequence[Any]) -> dict[str, Any]:
    """Return the greatest value of each schedule parameter in some parts of a schedule."""
    return {name: np.int64(max(getattr(p, name) for p in parts)) for name in numbers_of(kind)} if parts else {}


def _pads(schedule: SegmentSchedule) -> tuple[np.int64, ...]:
    """Return the padding of each operand of a matrix instruction, nothing without one."""
    if schedule.atomic is None:
        return ()
    found = {s.operand: s.pad for s in schedule.atomic.staging}
    return tuple(np.int64(found.get(n, 0)) for n in range(max(found, default=-1) + 1))


def _atom_of(schedule: SegmentSchedule) -> dict[str, Any]:
    """Return a schedule's matrix instruction as fields of a template."""
    loop = schedule.atomic
    return {} if loop is None else {"mma": loop.mma, "rows": loop.rows, "columns": loop.columns}


def _order(staged: Sequence[Staging]) -> int:
    """Return the parameter value for the layouts of staged tiles: all natural, all or some transposed, or some staged
    through registers.
    """
    if any(s.register_staged for s in staged):
        return REGISTER_STAGED_ORDER
    turned = [bool(s.order) and s.order[0] == len(s.order) - 1 for s in staged]
    return 0 if not any(turned) else 1 if all(turned) else 2


def schedule_of(group: FusedGroup, structure: ScheduleTemplate, values: Mapping[str, int], warp_size: int) -> Schedule:
    """Return the schedule of a template's parameter values."""
    sizes = geometries(group, structure, values, warp_size)
    parts = [_segment_schedule(group, s, g) for s, g in zip(group.segments, sizes, strict=True)]
    return Schedule(tuple(parts), int(values.get("raster", 1)), int(values.get("min_blocks", 0)))


def _segment_schedule(group: FusedGroup, segment: Segment, geometry: Geometry) -> SegmentSchedule:
    structure = geometry.structure
    sizes = zip(structure.dims, geometry.block, geometry.thread, geometry.vector, strict=True)
    turns = [int(geometry.tiles) if d == structure.tiled_dim else 1 for d in range(len(structure.dims))]
    dims = tuple(TileDim(axes, int(b), int(t), int(v), r) for (axes, b, t, v), r in zip(sizes, turns, strict=True))
    reductions = []
    loop, tiles = _numbers(geometry.loop), staged_tiles(group, segment, geometry)
    for position, (which, staged) in enumerate(zip(structure.reduces, structure.staged, strict=True)):
        loops = tuple(ReduceDim(structure.loops[k], int(geometry.block_k[k])) for k in which)
        staging = tuple(_staging(tile, geometry) for tile in tiles if tile.reduction == position)
        mma: dict[str, Any] = {"mma": structure.mma, "rows": structure.rows, "columns": structure.columns}
        reductions.append(
            evolve(
                loop if staged or structure.mma or structure.part_rows else ReductionSchedule(()),
                dims=loops,
                staging=staging,
                **mma,
            )
        )
    warp = tuple(int(w) for w in geometry.warp) if all(geometry.warp) else ()
    return evolve(
        _numbers(geometry.spread),
        dims=dims,
        reductions=tuple(reductions),
        warp=warp,
        privatised=structure.scatter_dim >= 0,
    )


def _numbers(part: T) -> T:
    """Return a part of a schedule with plain numbers."""
    return evolve(part, **{name: kind(getattr(part, name)) for name, kind in numbers_of(type(part)).items()})


def _staging(tile: StagedTile, geometry: Geometry) -> Staging:
    """Return how an operand is staged."""
    order = tuple(reversed(range(tile.coordinates))) if tile.turned else ()
    carried, pad = bool(tile.register_staged), int(tile.pad)
    structure, swizzle = geometry.structure, 0
    if tile.held and not tile.turned:
        swizzle = held_swizzle(int(geometry.vector[structure.rows]))
    elif reads_shared_matrices(structure.mma) and not tile.turned:
        rows = not expr_variables(tile.expr).isdisjoint(structure.dims[structure.rows])
        side = structure.rows if rows else structure.columns
        swizzle = side_swizzle(structure.dims[side], int(geometry.block[side]), tile.size)
    elif reads_shared_matrices(structure.mma):
        swizzle = widest_swizzle(tile.row_bytes)
    chosen = _numbers(geometry.staging)
    return evolve(chosen, operand=tile.operand, order=order, pad=pad, register_staged=carried, swizzle=swizzle)
