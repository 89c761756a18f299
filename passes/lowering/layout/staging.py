"""Shared-memory tiles of a reduction's operands, and the indices of their elements.

Two modes, derived from the accesses. *Box*: some tensor index mixes two or more local variables (`i*stride +
a*dilation`: a halo is shared by neighbouring outputs), so the tile is the box of tensor elements that the block reads
(DeepCuts' input tile, with the corrected halo `(H_block - 1) * S_H + (F_H - 1) * D_H + 1`). *Gather*: the tile is
indexed by the tile dims and reduce dims the operand depends on (implicit GEMM, weights, matrices), one element per
combination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import evolve, field, frozen

from ....ir import (
    Expr,
    Guard,
    Index,
    IndexLike,
    Read,
    ReduceDim,
    ReductionSchedule,
    SegmentSchedule,
    Staging,
    TileDim,
    Var,
    as_index,
    delinearise,
    expr_variables,
    map_indices,
    rebuild,
    substitute,
    substitute_expr,
    variables,
)
from ...geometry import MatrixTile, main_read, tile_pitches, tile_shape


@frozen
class AxisBinding:
    """Axes of a segment in terms of block-level variables, for one reduction.

    `places` maps every axis to its index; `dims` are the tile dims, then the reduce dims, `locals` their block-local
    variables; `valid` holds the guard that a local variable's element exists, for ragged dims only.
    """

    places: Mapping[Var, Index]
    dims: tuple[TileDim | ReduceDim, ...]
    locals: tuple[Var, ...]
    valid: Mapping[Var, Guard] = field(factory=dict)

    def varying_locals(self, used: frozenset[Var]) -> frozenset[Var]:
        """Return the locals that the places of some axes depend on.

        They count even where a division makes them vanish from the read.
        """
        places = [self.dependent_locals(self.places[a]) for a in used if a in self.places]
        return frozenset().union(*places)

    def dependent_locals(self, index: Index | Expr) -> frozenset[Var]:
        """Return the locals that an index or expression depends on."""
        used = variables(index) if isinstance(index, Index) else expr_variables(index)
        return frozenset(v for v in self.locals if v in used)


@frozen
class Tile:
    """Shared-memory tile of a staged operand.

    `value` is an element's expression, over the coordinate variables and the block's; `valid` are the guards that an
    element exists (others hold 0). Reads of a box are guarded, for it may extend beyond the tensor: those elements are
    padding, or unused. `uses` gives each coordinate in block-local variables, for the loads of compute phases. `pitch`
    is each coordinate's step in elements, `size` the elements of one stage, padding included. `covered` are the ragged
    locals whose missing elements are 0, `staging` the schedule of the operand. `base` elements of other tiles lie
    before it in its buffer. A `matrix` that instructions read in place has a layout of its own instead of pitches.
    """

    coordinates: tuple[Var, ...]
    uses: tuple[Index, ...]
    value: Expr
    valid: tuple[Guard, ...]
    pitch: tuple[int, ...]
    size: int
    halo: bool
    covered: frozenset[Var]
    staging: Staging
    base: int = 0
    matrix: MatrixTile | None = None

    @property
    def count(self) -> int:
        """Elements that a fetch phase moves, without padding."""
        return prod(c.extent for c in self.coordinates)

    def address(self, places: Sequence[IndexLike]) -> Index:
        """Return an element's offset in the first stage of the buffer.

        It counts elements, not bytes.
        """
        if self.matrix is not None:
            deep, along = (p for p, c in zip(places, self.coordinates, strict=True) if c.extent > 1)
            return self.matrix.address(along, deep)
        total = Index(self.base)
        for place, pitch in zip(places, self.pitch, strict=True):
            total = total + as_index(place) * pitch
        return total


def bind_dims(
    dims: Sequence[TileDim | ReduceDim], locals_: Sequence[Var], starts: Sequence[Index]
) -> tuple[dict[Var, Index], dict[Var, Guard]]:
    """Return each axis' index and each ragged dim's guard.

    The dims begin at `starts` and run over `locals_`.
    """
    places: dict[Var, Index] = {}
    valid: dict[Var, Guard] = {}
    for dim, local, start in zip(dims, locals_, starts, strict=True):
        flat = start + local
        guard = Guard(flat, 0, dim.extent)
        if not guard.always:
            valid[local] = guard
        places.update(zip(dim.axes, delinearise(flat, [a.extent for a in dim.axes]), strict=True))
    return places, valid


def local_vars(
    schedule: SegmentSchedule, reduction: ReductionSchedule | None, prefix: str
) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    """Return the block-local variables of tile dims and reduced dims."""
    tiles = tuple(Var(f"{prefix}u{d}", dim.block) for d, dim in enumerate(schedule.dims))
    reduces = tuple(Var(f"{prefix}k{d}", dim.block_k) for d, dim in enumerate(reduction.dims)) if reduction else ()
    return tiles, reduces


def stage(
    operand: Expr,
    shapes: Mapping[str, tuple[int, ...]],
    binding: AxisBinding,
    choice: Staging,
    prefix: str,
    matrix: MatrixTile | None = None,
    whole: bool = False,
) -> Tile:
    """Return the tile of an operand under a binding of the axes.

    `prefix` begins the names of its coordinate variables. A `matrix` has the elements of a gather tile. Reduced dims of
    several axes may take part in a box as a `whole`.
    """
    if matrix is not None:
        gathered = _gather(operand, binding, choice, prefix)
        return evolve(gathered, matrix=matrix, size=matrix.layout.elements)
    shape = tile_shape(operand, [d.axes for d in binding.dims], [v.extent for v in binding.locals], whole)
    tile = _box(operand, shapes, binding, choice, prefix) if shape.halo else None
    return tile or _gather(operand, binding, choice, prefix)


def _layout(extents: Sequence[int], choice: Staging) -> tuple[tuple[int, ...], int]:
    pitch, size = tile_pitches(extents, choice.pad, choice.order if len(choice.order) == len(extents) else ())
    return tuple(map(int, pitch)), int(size)


def _gather(operand: Expr, binding: AxisBinding, choice: Staging, prefix: str) -> Tile:
    bound = substitute_expr(operand, binding.places)
    used = binding.varying_locals(expr_variables(operand))
    reduce_first = sorted(range(len(binding.dims)), key=lambda d: isinstance(binding.dims[d], TileDim))
    kept = [binding.locals[d] for d in reduce_first if binding.locals[d] in used]
    coordinates = tuple(Var(f"{prefix}{k}", v.extent) for k, v in enumerate(kept))
    rename: dict[Var, IndexLike] = dict(zip(kept, coordinates, strict=True))
    pitch, size = _layout([v.extent for v in coordinates], choice)
    ragged = [v for v in kept if v in binding.valid]
    valid = tuple(Guard(substitute(g.index, rename), g.low, g.high) for g in (binding.valid[v] for v in ragged))
    uses = tuple(as_index(v) for v in kept)
    value, covered = substitute_expr(bound, rename), frozenset(ragged)
    return Tile(coordinates, uses, value, valid, pitch, size, False, covered, choice)


def _box(
    operand: Expr, shapes: Mapping[str, tuple[int, ...]], binding: AxisBinding, choice: Staging, prefix: str
) -> Tile | None:
    """Return the box of an operand, None where its coordinates do not express all other reads."""
    local = frozenset(binding.locals)
    indices = [substitute(i, binding.places) for i in main_read(operand, frozenset(binding.places)).indices]
    coordinates: list[Var] = []
    uses: list[Index] = []
    solved: dict[Var, IndexLike] = {}
    whole: list[tuple[Index, Index]] = []
    for index in indices:
        moving = Index(0, tuple((a, f) for a, f in index.terms if variables(Index(0, ((a, 1),))) <= local))
        if not moving.terms:
            continue
        low, high = moving.bounds()
        var = Var(f"{prefix}{len(coordinates)}", high - low + 1)
        place = index - moving + low + var
        coordinates.append(var)
        uses.append(moving - low)
        whole.append((index, place))
        primary, factor = moving.terms[0]
        if len(moving.terms) == 1 and factor == 1 and isinstance(primary, Var):
            solved[primary] = as_index(var)
    value = _guard_reads(
        _rewrite(substitute_expr(operand, binding.places), whole, solved), frozenset(coordinates), shapes
    )
    if expr_variables(value) & local:
        return None
    covered = [v for v in binding.valid if v in solved]
    valid = tuple(Guard(substitute(g.index, solved), g.low, g.high) for g in (binding.valid[v] for v in covered))
    pitch, size = _layout([c.extent for c in coordinates], choice)
    return Tile(tuple(coordinates), tuple(uses), value, valid, pitch, size, True, frozenset(covered), choice)


def _guard_reads(value: Expr, coordinates: frozenset[Var], shapes: Mapping[str, tuple[int, ...]]) -> Expr:
    """Guard every read of a box's element by the bounds of its tensor, in the dims that depend on the box's
    coordinates.
    """

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Read):
            return node
        own = (
            Guard(i, 0, n) for i, n in zip(node.indices, shapes[node.tensor], strict=True) if variables(i) & coordinates
        )
        return Read(
            node.tensor,
            node.indices,
            tuple(dict.fromkeys((*node.guards, *(g for g in own if not g.always)))),
            node.fill,
        )

    return rebuild(value, leaf)


def _rewrite(expr: Expr, whole: Sequence[tuple[Index, Index]], solved: Mapping[Var, IndexLike]) -> Expr:
    """Express an operand over the box's coordinates: whole indices first, then variables that equal a coordinate."""

    def move(index: Index) -> Index:
        for old, new in whole:
            difference = index - old
            if difference.is_const:
                return new + difference
        return substitute(index, solved)

    return map_indices(expr, move)


@frozen
class Box:
    """Box of a shared tensor that a block needs.

    `base` is its begin in block coordinates, `extents` its size, per tensor dim.
    """

    base: tuple[Index, ...]
    extents: tuple[int, ...]


def needed_box(reads_: Sequence[Read], places: Mapping[Var, Index], local: frozenset[Var]) -> Box | str:
    """Return the box that covers a block's reads of a tensor.

    `places` gives tile axes in block coordinates and locals; reduced axes stand for themselves and count as local.
    Returns the reason as text where there is no such box.
    """
    base: list[Index] = []
    extents: list[int] = []
    for position in range(len(reads_[0].indices)):
        fixed: Index | None = None
        low = high = 0
        for read in reads_:
            index = substitute(read.indices[position], places)
            moving = Index(0, tuple((a, f) for a, f in index.terms if variables(Index(0, ((a, 1),))) & local))
            if any(not isinstance(a, Var) for a, _ in moving.terms):
                return f"dim {position} of the shared tensor is not read by an affine index ({index.text})"
            first, last = moving.bounds()
            rest = index - moving
            if fixed is None:
                fixed, low, high = rest, first, last
            elif not (rest - fixed).is_const:
                return f"two reads of the shared tensor differ by more than a constant in dim {position}"
            else:
                shift = (rest - fixed).const
                low, high = min(low, first + shift), max(high, last + shift)
        assert fixed is not None
        base.append(fixed + low)
        extents.append(high - low + 1)
    return Box(tuple(base), tuple(extents))
