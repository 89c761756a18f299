"""Scales of blocks: factors of the sums of a K block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from attrs import evolve

from ....ir import (
    Convert,
    DType,
    Expr,
    Index,
    Load,
    Op,
    Reduction,
    RegisterWrite,
    Value,
    Var,
    as_index,
    block_scales,
    clamp,
    post_order,
    substitute_node,
    variables,
)
from ..index_values import value_of
from ..layout import AxisBinding
from ..segment_state import SegmentState


def scale_values(
    state: SegmentState, reduction: Reduction, binding: AxisBinding, staged: Mapping[Expr, Value], depth: Var
) -> tuple[Value, ...]:
    """Return the scales of a K block, as kernels compute with them.

    Missing rows and columns have those of the last one, so that no load depends on a guard.
    """
    axes = (axis for dim in state.frame.schedule.dims for axis in dim.axes)
    ends = {axis: clamp(binding.places[axis], 0, axis.extent - 1) for axis in axes}
    context = state.context(evolve(binding, places={**binding.places, **ends}, valid={}), staged)
    found, _ = block_scales(reduction.body, reduction.reduce)
    values = (substitute_node(value_of(part, context), {depth: Index()}, {}) for part in found)
    return tuple(v if v.dtype is v.dtype.arithmetic else Convert(v, v.dtype.arithmetic) for v in values)


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
