"""Tiles of staged operands, as arrays (`passes.lowering.layout.staging`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod

import numpy as np
from attrs import evolve, frozen

from ...ir import (
    HALF_BYTES,
    MATH_MODES,
    MMA_INSTRUCTIONS,
    SWIZZLE_PERIOD,
    SWIZZLES,
    WIDEST_BYTES,
    Expr,
    FloorDiv,
    FusedGroup,
    Index,
    IndexValue,
    Mod,
    Read,
    Reduction,
    Segment,
    Var,
    dtype_of,
    expr_variables,
    is_affine,
    operands,
    primaries,
    primary_index,
    reads,
    variables,
    walk,
)
from .footprint import Count, ceil_div, product
from .matrix_instructions import reads_shared_matrices
from .schedule_template import SegmentTemplate
from .segment_geometry import REGISTER_STAGED_ORDER, Geometry

#: Bytes of the narrowest swizzle; rows of whole ones have one.
LEAST_SWIZZLE = min(s for s in SWIZZLES if s)


@frozen
class StagedTile:
    """Tile of a staged operand.

    `count` are its elements without padding, `bytes` those of its buffer with all stages. `halo` is true for a box of
    tensor elements, `turned` for transposed tiles, whose coordinates are listed innermost first, `register_staged` for
    register staging; `size` are the bytes of an element, `pad` the elements that rows are longer by. `steps` are the
    strides of the coordinates of a gather tile, `box_steps` those of a box. Registers hold rows that are `held` on
    their way to products of a warpgroup.
    """

    reduction: int
    operand: int
    expr: Expr
    size: int
    shape: TileShape
    halo: Count
    turned: Count
    register_staged: Count
    pad: Count
    steps: tuple[Count, ...]
    box_steps: tuple[Count, ...]
    count: Count
    bytes: Count
    held: bool = False

    @property
    def coordinates(self) -> int:
        """Coordinates of several elements in a single schedule's tile."""
        return sum(int(e) > 1 for e in (self.shape.box if np.any(self.halo) else self.shape.gather))

    @property
    def row_bytes(self) -> int:
        """Bytes along the innermost coordinate of a single schedule's gather tile."""
        wide = [int(e) for e in self.shape.gather if e > 1]
        return wide[0 if self.turned else -1] * self.size

    def steps_along(self, dims: Sequence[Sequence[Var]]) -> list[Count]:
        """Return the tile's strides along tile dims, 0 for unread ones."""
        steps = list(self.steps[len(self.steps) - len(dims) :])
        if self.box_steps:
            for d, dim in enumerate(dims):
                pitches = zip(self.shape.indices, self.box_steps, strict=True)
                inside = sum((abs(i.coefficient(dim[-1])) * p for i, p in pitches), np.int64(0))
                steps[d] = np.where(self.halo, inside, steps[d])
        used = expr_variables(self.expr)
        return [step if used & set(dim) else np.int64(0) for step, dim in zip(steps, dims, strict=True)]


def staged_tiles(group: FusedGroup, segment: Segment, geometry: Geometry) -> list[StagedTile]:
    """Return the tiles of a segment's staged operands."""
    return geometry.once("staged tiles", lambda: [*_staged_tiles(group, segment, geometry)])


def _staged_tiles(group: FusedGroup, segment: Segment, geometry: Geometry) -> Iterator[StagedTile]:
    own = [r.name for r in segment.reductions]
    for position, reduction in enumerate(segment.reductions):
        parts = operands(reduction, own)
        for operand in geometry.structure.staged[position]:
            yield _staged_tile(group, reduction, geometry, position, operand, parts[operand])


def _staged_tile(
    group: FusedGroup, reduction: Reduction, geometry: Geometry, position: int, operand: int, expr: Expr
) -> StagedTile:
    structure, size = geometry.structure, dtype_of(expr, group.tensors).size
    held = is_held(expr, reduction, structure)
    loops = structure.reduces[position]
    dims = (*(structure.loops[k] for k in loops), *structure.dims)
    sizes = (*(geometry.block_k[k] for k in loops), *geometry.block)
    shape = tile_shape(expr, dims, sizes, structure.boxed)
    if reads_shared_matrices(structure.mma):
        shape = evolve(shape, halo=False)
    deep = int(lies_deep(expr, reduction))
    carried, turned = np.where(np.equal(geometry.order, REGISTER_STAGED_ORDER), deep, 0), geometry.order
    if np.any(turned):  # all tiles, or, for order 2, those whose memory runs along a reduced axis
        natural = np.where(np.equal(turned, REGISTER_STAGED_ORDER), 0, turned)
        turned = np.where(np.equal(turned, 2), deep, natural)
    if reads_shared_matrices(structure.mma) and size != HALF_BYTES:
        turned = np.int64(deep or not held)
    if structure.boxed:  # lanes load elements of a box one by one
        turned = np.where(shape.halo, 0, turned)
    pad = _padding(expr, geometry, operand, size, turned)
    steps, elements = _turned_pitches(shape.gather, pad, turned)
    count, halo = product(shape.gather), shape.halo
    box_steps: list[Count] = []
    if halo is not False:
        box_steps, box_elements = _turned_pitches(shape.box, pad, turned)
        count, elements = np.where(halo, product(shape.box), count), np.where(halo, box_elements, elements)
    stages = 1 if is_staged_once(expr, structure) else geometry.loop.stages
    unit: Count = WIDEST_BYTES
    if reads_shared_matrices(structure.mma):
        sides: tuple[Count, Count] = product(shape.gather[: len(loops)]), product(shape.gather[len(loops) :])
        row: Count = np.where(turned, *sides) * size
        unit = np.where(np.equal(row % LEAST_SWIZZLE, 0), SWIZZLE_PERIOD, WIDEST_BYTES)
    nbytes = ceil_div(elements * stages * size, unit) * unit
    nbytes = nbytes * (1 if held else _matrices(reduction, structure.mma))
    return StagedTile(position, operand, expr, size, shape, np.bool_(False) if halo is False else halo, turned, carried,
                      pad, tuple(steps), tuple(box_steps), count, nbytes, held)  # fmt: skip


def is_staged_once(expr: Expr, structure: SegmentTemplate) -> bool:
    """Return whether all parts of a chain read one tile."""
    return structure.holds_results and expr_variables(expr).isdisjoint(structure.dims[structure.columns])


def is_held(expr: Expr, reduction: Reduction, structure: SegmentTemplate) -> bool:
    """Return whether registers hold a staged operand of a warpgroup's products.

    It has words that lie along the rows, where no instruction reads them, or that are divided into several parts.
    """
    return (
        reads_shared_matrices(structure.mma)
        and MMA_INSTRUCTIONS[structure.mma].held.size > HALF_BYTES
        and not expr_variables(expr).isdisjoint(structure.dims[structure.rows])
        and (_matrices(reduction, structure.mma) > 1 or not lies_deep(expr, reduction))
    )


def _matrices(reduction: Reduction, mma: str) -> int:
    """Return the matrices of an operand: one for each part in a math mode where instructions read them in place."""
    return len(MATH_MODES[reduction.math].parts) if reduction.math and reads_shared_matrices(mma) else 1


def lies_deep(expr: Expr, reduction: Reduction) -> bool:
    """Return whether an operand lies along the depth in memory."""
    main = main_read(expr)
    return bool(main.indices) and any(v in reduction.reduce for v in variables(main.indices[-1]))


def _padding(expr: Expr, geometry: Geometry, operand: int, size: int, turned: Count) -> Count:
    """Return the padding of an operand's rows.

    It is the schedule's or, with matrix instructions on numbers of `size` bytes, the least one that keeps rows aligned
    and fragments free of conflicts (see `fragment_loads`).
    """
    structure = geometry.structure
    if not structure.mma:
        return geometry.staging.pad
    if reads_shared_matrices(structure.mma):
        return 0
    if geometry.pads:
        return geometry.pads[operand]
    used = expr_variables(expr)
    side = structure.rows if used.intersection(structure.dims[structure.rows]) else structure.columns
    extent = np.where(turned, geometry.block_k[structure.reduces[0][0]], geometry.block[side])
    distance = np.where(turned, 16, 8 * max(2, size)) // size
    return (distance - extent) % (2 * distance)


@frozen
class TileShape:
    """Extents of a tile as a gather tile, and as a box.

    A gather tile has a coordinate for each dim, a box has tensor elements.

    `halo` tells where it is a box, of the tensor that `indices` read.
    """

    gather: tuple[Count, ...]
    box: tuple[Count, ...]
    halo: Count
    indices: tuple[Index, ...]


def tile_shape(expr: Expr, dims: Sequence[Sequence[Var]], sizes: Sequence[Count], whole: bool = False) -> TileShape:
    """Return the shape of a tile of these sizes.

    `sizes` are the elements of each reduced or tile dim. Dims of several axes may take part in a box as a `whole`.

    Some index mixes several variables of a box (`i*stride + a*dilation`), so that neighbours share its halo.
    """
    moving = {a: m for dim, size in zip(dims, sizes, strict=True) for a, m in _moving(dim, size)}
    used = expr_variables(expr)
    gather: list[Count] = []
    for dim, size in zip(dims, sizes, strict=True):
        varies = [moving[a] for a in dim if a in used]
        gather.append(np.where(np.logical_or.reduce(varies), size, 1) if varies else np.int64(1))
    indices = main_read(expr, frozenset(moving)).indices
    halo, box = _box(indices, dims, sizes, moving, expr, whole)
    return TileShape(tuple(gather), tuple(box), halo, indices)


def tile_pitches(extents: Sequence[Count], pad: Count, order: Sequence[int] = ()) -> tuple[list[Count], Count]:
    """Return the strides of coordinates, and the elements of their tile.

    They lie in the given order, outermost first, row-major without one. The innermost coordinate of several elements is
    longer by `pad`.
    """
    found: list[Count] = [0] * len(extents)
    step: Count = 1
    padded: Count = np.bool_(False)
    for position in reversed(order or range(len(extents))):
        extent, found[position] = extents[position], step
        first = np.logical_and(np.logical_not(padded), np.greater(extent, 1))
        step = step * np.where(first, extent + pad, extent)
        padded = np.logical_or(padded, first)
    return found, step


def _turned_pitches(extents: Sequence[Count], pad: Count, turned: Count) -> tuple[list[Count], Count]:
    """Return the strides and elements of each candidate's layout: as listed, or innermost first where `turned`."""
    natural, size = tile_pitches(extents, pad)
    if not np.any(turned):
        return natural, size
    other, other_size = tile_pitches(extents, pad, range(len(extents))[::-1])
    return [np.where(turned, t, n) for t, n in zip(other, natural, strict=True)], np.where(turned, other_size, size)


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


def _box(
    indices: tuple[Index, ...],
    dims: Sequence[Sequence[Var]],
    sizes: Sequence[Count],
    moving: Mapping[Var, Count],
    expr: Expr,
    whole: bool,
) -> tuple[Count, list[Count]]:
    """Return where the tile is a box of tensor elements, and the box's extents."""
    local = {a: (size, dim) for dim, size in zip(dims, sizes, strict=True) for a in dim}
    mixes: Count = np.bool_(False)
    affine: Count = np.bool_(True)
    extents: list[Count] = []
    plain = frozenset(a for i in indices for a, _ in i.terms if isinstance(a, Var))
    for index in indices:
        primaries = {a: f for a, f in index.terms if isinstance(a, Var) and a in local}
        within = [
            v for a, _ in index.terms if not isinstance(a, Var) for v in variables(Index(0, ((a, 1),))) if v in local
        ]
        if len(mixed := {*primaries, *within}) > 1:
            several = sum((np.asarray(moving[v], dtype=np.int8) for v in mixed), np.int8(0)) > 1
            mixes = np.logical_or(mixes, several)
        for v in within:
            affine = np.logical_and(affine, np.logical_not(moving[v]))
        extent: Count = 1
        for axis, factor in primaries.items():
            size, dim = local[axis]
            if len(dim) > 1:
                alone = axis.extent % size == 0 if axis == dim[-1] else np.bool_(False)
                every = np.greater_equal(size, prod(a.extent for a in dim)) & whole
                affine = np.logical_and(affine, np.logical_or(np.logical_not(moving[axis]), alone | every))
                inner = prod(a.extent for a in dim[dim.index(axis) + 1 :])
                size = np.where(every, ceil_div(size, inner) if axis == dim[0] else axis.extent, size)
            extent = extent + abs(factor) * np.where(moving[axis], size - 1, 0)
        extents.append(extent)
    if not np.any(np.logical_and(mixes, affine)) or not _expressible(indices, expr, plain):
        return False, extents
    return np.logical_and(mixes, affine), extents


@lru_cache(maxsize=4096)
def _expressible(indices: tuple[Index, ...], expr: Expr, plain: frozenset[Var]) -> bool:
    """Return whether the box's coordinates can express all other reads of the operand."""
    solved = {i.terms[0][0] for i in indices if len(i.terms) == 1 and i.terms[0][1] == 1}
    for read in reads(expr):
        for index in read.own_indices:
            known = any((index - whole).is_const for whole in indices)
            if not known and any(v in plain and v not in solved for v in variables(index)):
                return False
    return True


@lru_cache(maxsize=1 << 14)
def main_read(operand: Expr, axes: frozenset[Var] | None = None) -> Read:
    """Return the operand's first read of most axes, of all by default.

    A word with several numbers is read at the place of the number.
    """
    main = max(reads(operand), key=lambda r: len(expr_variables(r) if axes is None else expr_variables(r) & axes))
    last = main.indices[-1] if main.indices else Index()
    words = [primary for primary, factor in last.terms if isinstance(primary, FloorDiv) and factor == 1]
    if len(words) != 1 or not is_affine((word := words[0]).num):
        return main
    picked = (p for n in walk(operand) if isinstance(n, IndexValue) for p in primaries(n.index))
    if Mod(word.num, word.den) not in picked:
        return main
    number = (last - primary_index(word)) * word.den + word.num
    return Read(main.tensor, (*main.indices[:-1], number), main.guards, main.fill)
