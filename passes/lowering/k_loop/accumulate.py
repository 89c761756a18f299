"""Accumulation of a reduction by multiply-adds of numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ....ir import (
    COMBINERS,
    Accumulate,
    Expr,
    Index,
    Literal,
    Op,
    Read,
    Reduction,
    Share,
    SharedBuffer,
    Test,
    Value,
    Var,
    as_index,
    expr_variables,
    factors,
    longest_vector,
    reads,
    stored_factor,
    variables,
)
from ...geometry import (
    holds_rows,
    is_walked_by_rows,
    row_dim,
    writer_of,
)
from ..index_values import value_of
from ..layout import AxisBinding, Tile
from ..segment_state import SegmentState


def accumulate(
    state: SegmentState,
    reduction: Reduction,
    binding: AxisBinding,
    locals_: Sequence[Var],
    staged: Mapping[Expr, Value],
    covered: Mapping[Expr, frozenset[Var]],
) -> Accumulate:
    """Build the accumulation of one K block.

    A reduction along the row accumulates each element by its own index; elements past a ragged end contribute the
    identity.
    """
    dtype = state.group.tensors[reduction.name].dtype
    value = value_of(reduction.body, state.context(binding, staged))
    missing = [v for v in locals_ if v in binding.valid and not _vanishes(state, reduction, v, binding, covered)]
    if missing:
        identity = Literal(COMBINERS[reduction.combine].identity(value.dtype), value.dtype)
        test = Test(tuple(binding.valid[v] for v in missing))
        value = Op("select", (test, value, identity), value.dtype)
    at, over = (*state.frame.tiles, *locals_) if reduction.along else state.frame.tiles, tuple(locals_)
    return Accumulate(
        reduction.name, tuple(map(as_index, at)), reduction.combine, value, () if reduction.along else over, dtype
    )


def _vanishes(
    state: SegmentState,
    reduction: Reduction,
    var: Var,
    binding: AxisBinding,
    covered: Mapping[Expr, frozenset[Var]],
) -> bool:
    """Return whether the body is certainly 0 for missing elements: every factor varies with an axis that `var` takes
    past its end, and reads as 0 there.

    A factor that does not vary with it may be infinite, and 0 times that is NaN. Beyond the end of rows that a
    contraction left, memory is undefined; beyond those of reduction threads are zeros. A box that is larger than its
    tensor holds results for elements that do not exist.
    """
    moved = {a: place for a, place in binding.places.items() if var in binding.dependent_locals(place)}
    axes = {a for a, place in moved.items() if place.bounds()[1] >= a.extent}
    if reduction.combine != "sum":
        return False
    rows = (t for t in state.layout.boxes if holds_rows(state.group, t))
    undefined = {t for t in rows if row_dim(writer_of(state.group, t), t) is None}
    if any(r.tensor in undefined for r in reads(reduction.body)):
        return False
    return all(
        bool(axes & expr_variables(p)) and (var in covered[p] if p in covered else _reads_zeros(state, p, axes))
        for p in (stored_factor(part, reduction.math) for part in factors(reduction.body))
    )


def _reads_zeros(state: SegmentState, factor: Expr, axes: Collection[Var]) -> bool:
    """Return whether a factor is a read that is 0 where axes are past their ends: a read of memory, of rows of an
    earlier segment, or of a box that ends with its tensor.
    """
    if not isinstance(factor, Read) or factor.fill != 0:
        return False
    box = state.layout.boxes.get(factor.tensor)
    if box is None or holds_rows(state.group, factor.tensor):
        return True
    ends = zip(factor.indices, box.base, box.extents, state.group.tensors[factor.tensor].shape, strict=True)
    return all(base == Index() and extent <= size for index, base, extent, size in ends if variables(index) & set(axes))


def reduced_vector(
    state: SegmentState,
    reduction: Reduction,
    tiles: Mapping[Expr, tuple[Tile, SharedBuffer]],
    binding: AxisBinding,
    local: Var,
) -> int:
    """Return how many neighbours along a reduced variable one vector load takes.

    They are neighbours in some staged tile, or in rows of an earlier segment.
    """
    widest = state.target.vector_bytes
    walking = [
        buffer.dtype
        for tile, buffer in tiles.values()
        if any(use == as_index(local) and pitch == 1 for use, pitch in zip(tile.uses, tile.pitch, strict=True))
    ]
    along = {as_index(axis) for axis, place in binding.places.items() if binding.dependent_locals(place) == {local}}
    rows = (r for r in reads(reduction.body) if r.tensor in state.layout.boxes and r.indices and r.indices[-1] in along)
    walking += [state.group.tensors[r.tensor].dtype for r in rows if is_walked_by_rows(state.group, r.tensor)]
    if not walking:
        return 1
    widths = {longest_vector(walking, widest), widest // 4}
    return max((w for w in widths if local.extent % w == 0), default=1)


def vector_share(local: Var, width: int) -> tuple[Share, tuple[Var, ...]]:
    """Divide a reduced variable into vectors of one load each."""
    group, element = Var(f"{local.name}o", local.extent // width), Var(f"{local.name}i", width)
    value = as_index(group) * width + element
    return Share(local, value, value), (group, element)
