"""Scales of blocks: factors of sums of K blocks or of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from attrs import evolve

from ....ir import (
    Accumulate,
    Convert,
    DType,
    Expr,
    Index,
    Load,
    Op,
    Reduction,
    RegisterRead,
    RegisterWrite,
    Root,
    Value,
    Var,
    as_index,
    block_scales,
    call,
    clamp,
    factors,
    post_order,
    substitute,
    substitute_node,
    variables,
)
from ..index_values import value_of
from ..layout import AxisBinding
from ..segment_state import SegmentState, row_share
from .accumulate import accumulate


def scale_values(
    state: SegmentState,
    reduction: Reduction,
    binding: AxisBinding,
    staged: Mapping[Expr, Value],
    depth: Var,
    place: Index | None = None,
) -> tuple[Value, ...]:
    """Return the scales of a K block, or at a place.

    They have the type that kernels compute in.

    Missing rows, columns and elements have those of the last one, so that no load depends on a guard.
    """
    axes = [axis for dim in state.frame.schedule.dims for axis in dim.axes]
    axes += reduction.reduce if place is not None else ()
    ends = {axis: clamp(binding.places[axis], 0, axis.extent - 1) for axis in axes}
    context = state.context(evolve(binding, places={**binding.places, **ends}, valid={}), staged)
    found, _ = block_scales(reduction.body, reduction.reduce)
    values = (substitute_node(value_of(part, context), {depth: place or Index()}, {}) for part in found)
    return tuple(v if v.dtype is v.dtype.arithmetic else Convert(v, v.dtype.arithmetic) for v in values)


def scaled_sums(
    state: SegmentState,
    reduction: Reduction,
    binding: AxisBinding,
    locals_: Sequence[Var],
    staged: Mapping[Expr, Value],
    covered: Mapping[Expr, frozenset[Var]],
) -> tuple[tuple[Root, ...], Accumulate]:
    """Return the roots before a K block's accumulation, and itself.

    Scales multiply sums of a thread's vectors:

    s += x[u] * q[u] * p[u // 128] over v, u < 16   ->   t[v] += x[u] * q[u] over u;   s += t[v] * p over v
    """
    scales, block = block_scales(reduction.body, reduction.reduce)
    width = state.frame.schedule.row_vector
    if not block or width == 1 or block % width or reduction.combine != "sum":
        return (), accumulate(state, reduction, binding, locals_, staged, covered)
    share, (vector, element) = row_share(state.frame, locals_[0])
    rest = (part for part in factors(reduction.body) if part not in scales)
    plain = evolve(reduction, body=reduce(lambda a, b: call("mul", a, b), rest))
    added = accumulate(state, plain, binding, locals_, staged, covered)
    over = tuple(v for v in (vector,) if v.extent > 1)
    name, at = f"{reduction.name}.vector", (*added.at, *map(as_index, over))
    begin = state.initialise(reduction)
    place = substitute(share.value, {element: 0} if over else {element: 0, vector: 0})
    values = scale_values(state, reduction, binding, staged, locals_[0], place)
    scaled = multiply_scales((RegisterRead(name, at, added.dtype), *values), added.dtype)
    begin = evolve(begin, name=name, shape=(*begin.shape, *(v.extent for v in over)))
    total = Accumulate(added.name, added.at, "sum", scaled, over, added.dtype)
    return (begin, evolve(added, name=name, at=at, over=(element,))), total


def held_scales(state: SegmentState, reduction: Reduction, scales: Sequence[Value]) -> tuple[RegisterWrite, ...]:
    """Return the register writes of a K block's scales."""
    tiles = dict(zip(state.frame.tiles, state.frame.schedule.dims, strict=True))
    found = list[RegisterWrite]()
    for number, scale in enumerate(scales):
        used = {v for node in post_order([scale]) if isinstance(node, Load) for v in variables(node.address)}
        along = [tile for tile in tiles if tile in used]
        at, shape = tuple(map(as_index, along)) or (Index(),), tuple(tiles[t].thread for t in along) or (1,)
        found.append(RegisterWrite(f"{reduction.name}.scale{number}", at, shape, scale, scale.dtype))
    return tuple(found)


def multiply_scales(scales: Sequence[Value], dtype: DType) -> Value:
    """Return the product of scales, which neighbours share."""
    return reduce(lambda a, b: Op("mul", (a, b), dtype), scales)
