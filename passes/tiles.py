"""Tiles of staged operands in arrays: `passes.staging` for all points of a structure at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import frozen

from ..ir.expr import Expr, dtype_of, expr_variables, reads
from ..ir.index import Index, Var, variables
from ..ir.segment import FusedGroup, Reduction, Segment, operands
from .footprint import Count, ceil_div, product
from .geometry import Geometry
from .staging import main_read


@frozen
class StagedTile:
    """A staged operand in arrays: elements of a tile (padding apart), bytes of its buffer, all stages included.

    `halo` says where it is a box of tensor elements.
    """

    reduction: int
    operand: int
    expr: Expr
    count: Count
    bytes: Count
    halo: Count


def staged_tiles(group: FusedGroup, segment: Segment, geometry: Geometry) -> list[StagedTile]:
    """Return the staged operands of a segment with their sizes (`staging.stage` in arrays)."""
    found = []
    own = [r.name for r in segment.reductions]
    for position, reduction in enumerate(segment.reductions):
        parts = operands(reduction, own)
        for operand in geometry.structure.staged[position]:
            expr = parts[operand]
            count, padded, halo = tile_size(expr, segment, reduction, geometry, position)
            size = dtype_of(expr, group.tensors).size
            found.append(StagedTile(position, operand, expr, count, ceil_div(padded * geometry.stages * size, 16) * 16, halo))
    return found


def tile_size(expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int) -> tuple[Count, Count, Count]:
    """Return the elements of an operand's tile, without and with the padding of its innermost coordinate, and where it is a box."""
    loops = [geometry.structure.loops[k] for k in geometry.structure.reduces[position]]
    chunks = [geometry.chunk[k] for k in geometry.structure.reduces[position]]
    dims = [*loops, *geometry.structure.dims]
    sizes: list[Count] = [*chunks, *geometry.block]
    moving = {a: m for dim, size in zip(dims, sizes, strict=True) for a, m in _moving(dim, size)}
    used = expr_variables(expr)
    gather = [np.where(np.logical_or.reduce([moving[a] for a in dim if a in used]), size, 1) if used & set(dim) else 1
              for dim, size in zip(dims, sizes, strict=True)]  # fmt: skip
    count, padded = _padded(gather, geometry.pad)
    main = main_read(expr, frozenset(segment.axes + reduction.reduce))
    box, extents = _box(main.indices, dims, sizes, moving, expr)
    if box is False:
        return count, padded, np.bool_(False)
    box_count, box_padded = _padded(extents, geometry.pad)
    return np.where(box, box_count, count), np.where(box, box_padded, padded), box


def operand_steps(expr: Expr, segment: Segment, reduction: Reduction, geometry: Geometry, position: int) -> list[Count]:
    """Return for each tile dim how far apart in the staged tile its neighbouring elements lie, in elements; 0 where it is not read."""
    structure = geometry.structure
    loops = [structure.loops[k] for k in structure.reduces[position]]
    dims = [*loops, *structure.dims]
    sizes: list[Count] = [*(geometry.chunk[k] for k in structure.reduces[position]), *geometry.block]
    moving = {a: m for dim, size in zip(dims, sizes, strict=True) for a, m in _moving(dim, size)}
    used = expr_variables(expr)
    gather = [size if used & set(dim) else 1 for dim, size in zip(dims, sizes, strict=True)]
    steps: list[Count] = _pitches(gather, geometry.pad)[len(loops) :]
    indices = main_read(expr, frozenset(segment.axes + reduction.reduce)).indices
    box, extents = _box(indices, dims, sizes, moving, expr)
    if box is not False:
        pitches = _pitches(extents, geometry.pad)
        for d, dim in enumerate(structure.dims):
            inside = sum((abs(i.coefficient(dim[-1])) * p for i, p in zip(indices, pitches, strict=True)), np.int64(0))
            steps[d] = np.where(box, inside, steps[d])
    return [step if used & set(dim) else np.int64(0) for step, dim in zip(steps, structure.dims, strict=True)]


def _pitches(extents: Sequence[Count], pad: Count) -> list[Count]:
    """Return the steps of coordinates laid out row-major, the innermost one above 1 longer by `pad`."""
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
    """Return for each axis of a dim whether it varies within a tile: outer axes stand still where tiles divide the inner ones."""
    found = []
    inner = 1
    still: Count = np.equal(size, 1)
    for axis in reversed(dim):
        found.append((axis, np.logical_not(still) if axis.extent > 1 else np.bool_(False)))
        inner *= axis.extent
        still = np.logical_or(still, inner % size == 0)
    return found


def _padded(extents: Sequence[Count], pad: Count) -> tuple[Count, Count]:
    """Return the product of extents, and the product where the last one above 1 is longer by `pad`."""
    total = product(extents)
    innermost: Count = 1
    for extent in extents:
        innermost = np.where(np.greater(extent, 1), extent, innermost)
    return total, np.where(np.greater(innermost, 1), total // innermost * (innermost + pad), total)


def _box(
    indices: Sequence[Index], dims: Sequence[tuple[Var, ...]], sizes: Sequence[Count], moving: Mapping[Var, Count], expr: Expr
) -> tuple[Count, list[Count]]:
    """Return where the tile is a box of tensor elements, and the box's extents."""
    local = {a: (size, dim) for dim, size in zip(dims, sizes, strict=True) for a in dim}
    mixes: Count = np.bool_(False)
    affine: Count = np.bool_(True)
    extents: list[Count] = []
    plain = {a for i in indices for a, _ in i.terms if isinstance(a, Var)}
    for index in indices:
        atoms = {a: f for a, f in index.terms if isinstance(a, Var) and a in local}
        inner = [v for a, _ in index.terms if not isinstance(a, Var) for v in variables(Index(0, ((a, 1),))) if v in local]
        mixes = np.logical_or(mixes, sum((np.asarray(moving[v], dtype=np.int8) for v in {*atoms, *inner}), np.int8(0)) > 1)
        for v in inner:
            affine = np.logical_and(affine, np.logical_not(moving[v]))
        extent: Count = 1
        for axis, factor in atoms.items():
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
    """Whether everything else the operand reads can be named by the box's coordinates."""
    solved = {i.terms[0][0] for i in indices if len(i.terms) == 1 and i.terms[0][1] == 1}
    for read in reads(expr):
        for index in (*read.indices, *(g.index for g in read.guards)):
            known = any((index - whole).is_const for whole in indices)
            if not known and any(v in plain and v not in solved for v in variables(index)):
                return False
    return True
