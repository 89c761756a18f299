"""Tiles of staged operands, as arrays (`passes.lowering.staging`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve, frozen

from ...ir import (
    Expr,
    FusedGroup,
    Index,
    Read,
    Reduction,
    Segment,
    Var,
    dtype_of,
    expr_variables,
    operands,
    reads,
    variables,
)
from .footprint import Count, ceil_div, product
from .segment_geometry import REGISTER_STAGED_ORDER, Geometry


@frozen
class StagedTile:
    """Staged operand, as arrays.

    `count` are a tile's elements without padding, `bytes` those of its buffer with all stages. `halo` is true for a box
    of tensor elements, `turned` for transposed tiles, whose coordinates are listed innermost first,
    `carried` for register staging; `size` are the bytes of an element.
    """

    reduction: int
    operand: int
    expr: Expr
    count: Count
    bytes: Count
    halo: Count
    turned: Count = 0
    size: int = 4
    carried: Count = 0


def staged_tiles(group: FusedGroup, segment: Segment, geometry: Geometry) -> list[StagedTile]:
    """Return the staged operands of a segment (`staging.stage` in arrays)."""
    found = []
    own = [r.name for r in segment.reductions]
    for position, reduction in enumerate(segment.reductions):
        parts = operands(reduction, own)
        for operand in geometry.structure.staged[position]:
            expr = parts[operand]
            size = dtype_of(expr, group.tensors).size
            count, padded, halo = tile_size(expr, segment, reduction, geometry, position, size)
            turned = own_order(expr, reduction, geometry)
            nbytes = ceil_div(padded * geometry.loop.stages * size, 16) * 16
            carried = is_register_staged(expr, reduction, geometry)
            found.append(StagedTile(position, operand, expr, count, nbytes, halo, turned, size, carried))
    return found


@frozen
class _Shape:
    """Coordinates of an operand's tile: extents as a gather tile (a loop or tile dim each), and as a box."""

    dims: tuple[tuple[Var, ...], ...]
    gather: tuple[Count, ...]
    box: tuple[Count, ...]
    halo: Count


def _shape(expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int) -> _Shape:
    return geometry.once(("tile", expr, position), lambda: _shape_of(expr, segment, reduction, geometry, position))


def _shape_of(expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int) -> _Shape:
    loops = geometry.structure.reduces[position]
    dims = (*(geometry.structure.loops[k] for k in loops), *geometry.structure.dims)
    sizes: list[Count] = [*(geometry.chunk[k] for k in loops), *geometry.block]
    moving = {a: m for dim, size in zip(dims, sizes, strict=True) for a, m in _moving(dim, size)}
    used = expr_variables(expr)
    gather: list[Count] = []
    for dim, size in zip(dims, sizes, strict=True):
        varies = [moving[a] for a in dim if a in used]
        gather.append(np.where(np.logical_or.reduce(varies), size, 1) if varies else np.int64(1))
    main = main_read(expr, frozenset(segment.axes + reduction.reduce))
    halo, box = _box(main.indices, dims, sizes, moving, expr)
    return _Shape(dims, tuple(gather), tuple(box), halo)


def own_order(expr: Expr, reduction: Reduction, geometry: Geometry) -> Count:
    """Return where an operand's tile is transposed.

    All tiles are, or, for order 2, those whose memory runs along a reduced axis.
    """
    if not np.any(geometry.order):
        return geometry.order
    natural = np.where(np.equal(geometry.order, REGISTER_STAGED_ORDER), 0, geometry.order)
    return np.where(np.equal(geometry.order, 2), int(_lies_deep(expr, reduction)), natural)


def is_register_staged(expr: Expr, reduction: Reduction, geometry: Geometry) -> Count:
    """Return where an operand is staged through registers.

    The schedule asks for it, and memory runs along a reduced axis.
    """
    return np.where(np.equal(geometry.order, REGISTER_STAGED_ORDER), int(_lies_deep(expr, reduction)), 0)


def _lies_deep(expr: Expr, reduction: Reduction) -> bool:
    main = max(reads(expr), key=lambda r: len(expr_variables(r)))
    return bool(main.indices) and any(v in reduction.reduce for v in variables(main.indices[-1]))


def own_pad(expr: Expr, reduction: Reduction, geometry: Geometry, size: int) -> Count:
    """Return the padding of an operand's rows.

    It is the schedule's or, with matrix instructions on numbers of `size` bytes, the least one that keeps rows aligned
    and fragments free of conflicts (see `fragment_loads`).
    """
    structure = geometry.structure
    if not structure.atom:
        return geometry.staging.pad
    if geometry.pads:
        return geometry.pads[operands(reduction, [reduction.name]).index(expr)]
    turned = own_order(expr, reduction, geometry)
    used = expr_variables(expr)
    side = structure.rows if used.intersection(structure.dims[structure.rows]) else structure.columns
    extent = np.where(turned, geometry.chunk[structure.reduces[0][0]], geometry.block[side])
    distance = np.where(turned, 16, 8 * max(2, size)) // size
    return (distance - extent) % (2 * distance)


def _laid_out(expr: Expr, reduction: Reduction, geometry: Geometry, size: int) -> Geometry:
    """Return the sizes with the layout and the padding of one operand's tile."""
    order, pad = own_order(expr, reduction, geometry), own_pad(expr, reduction, geometry, size)
    return evolve(geometry, order=order, staging=evolve(geometry.staging, pad=pad))


def tile_size(
    expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int, size: int
) -> tuple[Count, Count, Count]:
    """Return the elements of an operand's tile, and the box condition.

    Elements are counted without and with the padding of the innermost coordinate; they have `size` bytes.
    """
    shape = _shape(expr, segment, reduction, geometry, position)
    geometry = _laid_out(expr, reduction, geometry, size)
    count, padded = _tile_elements(shape.gather, geometry)
    if shape.halo is False:
        return count, padded, np.bool_(False)
    box_count, box_padded = _tile_elements(shape.box, geometry)
    return np.where(shape.halo, box_count, count), np.where(shape.halo, box_padded, padded), shape.halo


def coordinate_count(expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int) -> int:
    """Return the coordinates of a single schedule's tile.

    Those of extent 1 do not count.
    """
    shape = _shape(expr, segment, reduction, geometry, position)
    extents = shape.box if np.any(shape.halo) else shape.gather
    return sum(int(e) > 1 for e in extents)


def operand_steps(
    expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int, size: int
) -> list[Count]:
    """Return the staged tile's stride along each tile dim.

    It is in elements of `size` bytes, 0 where the dim is not read.
    """
    shape = _shape(expr, segment, reduction, geometry, position)
    tiles = geometry.structure.dims
    geometry = _laid_out(expr, reduction, geometry, size)
    steps = _steps(shape.gather, geometry)[len(shape.dims) - len(tiles) :]
    if shape.halo is not False:
        indices = main_read(expr, frozenset(segment.axes + reduction.reduce)).indices
        pitches = _steps(shape.box, geometry)
        for d, dim in enumerate(tiles):
            inside = sum((abs(i.coefficient(dim[-1])) * p for i, p in zip(indices, pitches, strict=True)), np.int64(0))
            steps[d] = np.where(shape.halo, inside, steps[d])
    used = expr_variables(expr)
    return [step if used & set(dim) else np.int64(0) for step, dim in zip(steps, tiles, strict=True)]


def walked_box(expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int) -> list[Count]:
    """Return the extents of a staged operand's box.

    The smallest stride in memory comes first.
    """
    return list(reversed(_shape(expr, segment, reduction, geometry, position).box))


def depth_step(
    expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int, size: int
) -> Count:
    """Return the stride along the first reduced dim of a tile.

    The tile is no box; the stride is in elements of `size` bytes.
    """
    shape = _shape(expr, segment, reduction, geometry, position)
    return _steps(shape.gather, _laid_out(expr, reduction, geometry, size))[0]


def _steps(extents: Sequence[Count], geometry: Geometry) -> list[Count]:
    """Return the strides of coordinates in the layout of each candidate: as listed, or innermost first."""
    natural = _pitches(extents, geometry.staging.pad)
    if not np.any(geometry.order):
        return natural
    turned = _pitches(extents[::-1], geometry.staging.pad)[::-1]
    return [np.where(geometry.order, t, n) for t, n in zip(turned, natural, strict=True)]


def _pitches(extents: Sequence[Count], pad: Count) -> list[Count]:
    """Return the strides of coordinates laid out row-major, the innermost one above 1 longer by `pad`."""
    found: list[Count] = []
    step: Count = np.int64(1)
    padded: Count = np.bool_(False)
    for extent in reversed(extents):
        found.insert(0, step)
        first = np.logical_and(np.logical_not(padded), np.greater(extent, 1))
        step = step * np.where(first, extent + pad, extent)
        padded = np.logical_or(padded, first)
    return found


def _moving(dim: Sequence[Var], size: Count) -> list[tuple[Var, Count]]:
    """Return for each axis of a dim whether it varies within a tile: outer axes are constant where tiles divide the
    inner ones.
    """
    found = []
    inner = 1
    still: Count = np.equal(size, 1)
    for axis in reversed(dim):
        found.append((axis, np.logical_not(still) if axis.extent > 1 else np.bool_(False)))
        inner *= axis.extent
        still = np.logical_or(still, inner % size == 0)
    return found


def _tile_elements(extents: Sequence[Count], geometry: Geometry) -> tuple[Count, Count]:
    """Return the product of extents, without and with padding of the innermost one above 1."""
    total = product(extents)
    innermost = _last_wide(extents)
    if np.any(geometry.order):
        innermost = np.where(geometry.order, _last_wide(extents[::-1]), innermost)
    return total, np.where(np.greater(innermost, 1), total // innermost * (innermost + geometry.staging.pad), total)


def _last_wide(extents: Sequence[Count]) -> Count:
    found: Count = 1
    for extent in extents:
        found = np.where(np.greater(extent, 1), extent, found)
    return found


def _box(
    indices: Sequence[Index],
    dims: Sequence[tuple[Var, ...]],
    sizes: Sequence[Count],
    moving: Mapping[Var, Count],
    expr: Expr,
) -> tuple[Count, list[Count]]:
    """Return where the tile is a box of tensor elements, and the box's extents."""
    local = {a: (size, dim) for dim, size in zip(dims, sizes, strict=True) for a in dim}
    mixes: Count = np.bool_(False)
    affine: Count = np.bool_(True)
    extents: list[Count] = []
    plain = {a for i in indices for a, _ in i.terms if isinstance(a, Var)}
    for index in indices:
        primaries = {a: f for a, f in index.terms if isinstance(a, Var) and a in local}
        inner = [
            v for a, _ in index.terms if not isinstance(a, Var) for v in variables(Index(0, ((a, 1),))) if v in local
        ]
        mixes = np.logical_or(
            mixes, sum((np.asarray(moving[v], dtype=np.int8) for v in {*primaries, *inner}), np.int8(0)) > 1
        )
        for v in inner:
            affine = np.logical_and(affine, np.logical_not(moving[v]))
        extent: Count = 1
        for axis, factor in primaries.items():
            size, dim = local[axis]
            if len(dim) > 1:
                alone = axis.extent % size == 0 if axis == dim[-1] else np.bool_(False)
                affine = np.logical_and(affine, np.logical_or(np.logical_not(moving[axis]), alone))
            extent = extent + abs(factor) * np.where(moving[axis], size - 1, 0)
        extents.append(extent)
    if not np.any(np.logical_and(mixes, affine)) or not _expressible(indices, expr, plain):
        return False, extents
    return np.logical_and(mixes, affine), extents


def _expressible(indices: Sequence[Index], expr: Expr, plain: set[Var]) -> bool:
    """Return whether the box's coordinates can express all other reads of the operand."""
    solved = {i.terms[0][0] for i in indices if len(i.terms) == 1 and i.terms[0][1] == 1}
    for read in reads(expr):
        for index in read.own_indices:
            known = any((index - whole).is_const for whole in indices)
            if not known and any(v in plain and v not in solved for v in variables(index)):
                return False
    return True


def main_read(operand: Expr, axes: frozenset[Var]) -> Read:
    """Return the first read of an operand that depends on most axes."""
    return max(reads(operand), key=lambda r: len(expr_variables(r) & axes))
