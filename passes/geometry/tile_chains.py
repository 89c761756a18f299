"""Contractions of elementwise results of other contractions, chained in registers.

    s[i, j] = sum_c q[i, c] * k[j, c];    r[i, j] = sum_f g[i, f] * v[j, f];    x = f(s, r)
      ->   y[i, e] = sum_j x[i, j] * k[j, e]

As warps divide the rows alone, the lanes that hold s and r hold the same elements of x as a first operand of y. A part
of j is computed at a time. A second operand of y that is one of s or r, too, is staged once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from attrs import frozen

from ...ir import (
    BOX_BYTES,
    MAP_UNIT_BYTES,
    DType,
    Expr,
    FusedGroup,
    Index,
    Output,
    Read,
    Reduction,
    Segment,
    Var,
    as_index,
    expr_variables,
    reads,
    streamable_axis,
    substitute_expr,
    variables,
)
from .footprint import Count, ceil_div
from .matrix_instructions import mma_operands

#: Fewest stages with which warpgroups take turns: with fewer, the one whose turn it is waits for copies.
MIN_TURN_STAGES = 3


@frozen
class TileChain:
    """Axes of a chain of two segments in registers.

    `rows` are the positions of the axis `i` in both segments, `column` that of `j` in the first one, `width` that of
    `e` in the last one. `weights` are the tensors that the contractions of the last segment read, in their order;
    `again` has for each of these the contraction of the first one whose factor along `j` is its other factor, too.
    """

    rows: tuple[int, int]
    column: int
    width: int
    weights: tuple[str, ...]
    again: tuple[int | None, ...]

    def sums(self, group: FusedGroup) -> int:
        """Return the sums of a row."""
        return group.segments[1].axes[self.width].extent * len(self.weights)


def takes_turns(warpgroups: Count, stages: Count, produced: Count) -> Count:
    """Return whether warpgroups of a block take turns at tensor cores.

    Their parts have to be `produced`, as warpgroups that copy meet at barriers.
    """
    return np.greater(warpgroups, 1) & np.greater_equal(stages, MIN_TURN_STAGES) & produced


def tile_chain(group: FusedGroup) -> TileChain | None:
    """Return a group of two segments as a chain, or None."""
    axis = streamable_axis(group)
    return None if axis is None else _tile_chain(group.segments, group.shared, axis)


@lru_cache(maxsize=4096)
def _tile_chain(segments: tuple[Segment, ...], shared: tuple[str, ...], column: int) -> TileChain | None:
    first, last = segments
    found = [_tile_reads(r, shared) for r in last.reductions]
    outside = {r.tensor for o in last.outputs for r in reads(o.body)} & {*shared}
    single = all(len(each) == 1 for each in found) and all(len(r.reduce) == 1 for r in last.reductions)
    if outside or last.holds_rows or not single:
        return None
    written = {o.tensor: o for o in first.outputs}
    weights = [each[0] for each in found]
    rows = {_tile_rows(first, last, written[w.tensor], w, column) for w in weights}
    place = rows.pop()
    if rows or place is None:
        return None
    axis = last.axes[place[1]]
    width = next((n for n in reversed(range(len(last.axes))) if last.axes[n] != axis and last.axes[n].extent > 1), None)
    if width is None:
        return None
    pairs = [mma_operands(r, (axis,), (last.axes[width],)) for r in last.reductions]
    sides = [mma_operands(r, (first.axes[place[0]],), (first.axes[column],)) for r in first.reductions]
    if None in sides or any(p is None or p[0] != w for p, w in zip(pairs, weights, strict=True)):
        return None
    again = []
    for pair, weight in zip(pairs, weights, strict=True):
        assert pair is not None, "checked before"
        there = _axes_there(first, written[weight.tensor], weight)
        width_axis = last.axes[width]
        equal = (
            n
            for n, side in enumerate(sides)
            if side is not None and _equal_factor(pair[1], side[1], there, width_axis, first.reductions[n])
        )
        again.append(next(equal, None))
    return TileChain(place, column, width, tuple(w.tensor for w in weights), tuple(again))


def _tile_reads(reduction: Reduction, shared: Sequence[str]) -> list[Read]:
    return [r for r in reads(reduction.body) if r.tensor in shared and not r.guards]


def _tile_rows(first: Segment, last: Segment, output: Output, read: Read, column: int) -> tuple[int, int] | None:
    """Return the positions of the row axis, which a tile has besides the column and axes of the block."""
    place = next((n for n in reversed(range(len(first.axes))) if n != column and first.axes[n].extent > 1), None)
    if place is None or as_index(first.axes[place]) not in output.write:
        return None
    axis = _axis(last, read.indices[output.write.index(as_index(first.axes[place]))])
    return None if axis is None else (place, axis)


def _axis(segment: Segment, index: Index) -> int | None:
    return next((n for n, axis in enumerate(segment.axes) if index == as_index(axis)), None)


def _axes_there(first: Segment, output: Output, read: Read) -> dict[Var, Index]:
    """Return the axes of the first segment as the last one reads them."""
    return {axis: read.indices[output.write.index(as_index(axis))] for axis in first.axes
            if as_index(axis) in output.write}  # fmt: skip


def _equal_factor(own: Expr, other: Expr, there: Mapping[Var, Index], width: Var, reduction: Reduction) -> bool:
    """Return whether a factor of the last segment has the elements of a factor of the first one."""
    if len(reduction.reduce) != 1 or reduction.reduce[0].extent != width.extent:
        return False
    return substitute_expr(other, {**there, reduction.reduce[0]: as_index(width)}) == own


def numbers_of_rows(segment: Segment, chain: TileChain) -> list[Read]:
    """Return the numbers of a row that values of a chain read."""
    row, column = segment.axes[chain.rows[0]], segment.axes[chain.column]
    return [r for r in _numbers_read(segment) if row in expr_variables(r) and column not in expr_variables(r)]


def numbers_of_columns(group: FusedGroup, chain: TileChain) -> list[Read]:
    """Return the numbers of a column that values of a chain read.

    Boxes of a tensor map bring those of a part.
    """
    segment = group.segments[0]
    row, column = segment.axes[chain.rows[0]], segment.axes[chain.column]
    found = []
    for read in _numbers_read(segment):
        own, kind = [variables(i) for i in read.indices], group.tensors[read.tensor]
        alone = bool(own) and read.indices[-1] == as_index(column) and all(column not in v for v in own[:-1])
        if alone and all(row not in v for v in own) and kind.dtype is DType.F32:
            found.append(read)
    return found


def column_pitch(part: Count) -> Count:
    """Return the elements of f32 between the boxes of two parts.

    A box begins at a multiple of bytes, up to some elements before its part.
    """
    unit, before = (n // DType.F32.size for n in (BOX_BYTES, MAP_UNIT_BYTES))
    return ceil_div(part + before, unit) * unit


def _numbers_read(segment: Segment) -> list[Read]:
    own = {r.name for r in segment.reductions}
    every = dict.fromkeys(r for o in segment.outputs for r in reads(o.body))
    return [r for r in every if r.tensor not in own and not r.guards]
