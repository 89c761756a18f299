"""Column sums become two kernels: sums of consecutive instances, and totals.

A block of the first kernel accumulates the rows of `rows` consecutive instances, one after another, beside the row
outputs; the second kernel adds the partial sums in a fixed order.

    y[i, r] = f(x[i, r], acc0[i]);   w[r] across sum = g(x[i, r], acc0[i])
      ->   y[i, r] = f(x[i, r], acc0[i]);   p[i // rows, r] across sum = g(x[i, r], acc0[i]);    w[r] = sum_k p[k, r]

Sums that keep an axis of the row have a part for each instance, or several where neighbours in memory are kept, so that
the blocks of a cluster have parts of their own:

    w[c] across sum = g(x[i, p, c])   ->   q[i, p // n, c] across sum = g(x[i, p, c]);   w[c] = sum_(i, k) q[i, k, c]
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from attrs import evolve

from ...ir import (
    Cast,
    Expr,
    FusedGroup,
    Output,
    Read,
    Reduction,
    Segment,
    Target,
    TensorType,
    Var,
    as_index,
    substitute,
    variables,
    walked_row,
)
from ..geometry import kept_runs, next_power, part_place
from .split_reduction import free_name, free_tensor, group_part
from .split_walked_sums import split_walked_sums, walked_candidates

#: Fewest and most partial sums for each SM.
MIN_PARTS_PER_SM, MAX_PARTS_PER_SM = 1.5, 16
#: Parts of a row whose kept elements are neighbours in memory: those of a cluster's blocks.
PIECES = (2, 4, 8, 16)


def column_candidates(group: FusedGroup, target: Target) -> tuple[int, ...]:
    """Return the numbers of partial sums to compare, least first."""
    if len(group.segments) != 1 or not group.segments[0].column_sums:
        return ()
    if walked_row(group.segments[0]) is not None:
        return walked_candidates(group)
    if _keeps_axes(group.segments[0]):
        over, kept = _kept_axes(group.segments[0])
        row = prod(v.extent for v in group.segments[0].column_sums[0].extra)
        pieces = (1, *PIECES) if kept and kept[-1] == _last(group.segments[0].column_sums[0].extra) else (1,)
        return tuple(n * prod(axis.extent for axis in over) for n in pieces if row % n == 0)
    instances = prod(axis.extent for axis in group.segments[0].axes)
    counts = {-(-instances // rows) for rows in (1 << k for k in range(1, instances.bit_length()))}
    least, most = MIN_PARTS_PER_SM * target.NUM_SM, MAX_PARTS_PER_SM * target.NUM_SM
    found = [count for count in sorted(counts) if least <= count <= most]
    return tuple(found or sorted(counts)[-1:])


def split_columns(group: FusedGroup, parts: int) -> tuple[FusedGroup, ...] | None:
    """Return the groups of partial sums and of totals, or None."""
    if len(group.segments) != 1 or not group.segments[0].column_sums:
        return None
    if walked_row(group.segments[0]) is not None:
        return split_walked_sums(group, parts)
    (segment,) = group.segments
    if _keeps_axes(segment):
        return _split_kept_sums(group, parts)
    row = segment.column_sums[0].extra
    instances = prod(axis.extent for axis in segment.axes)
    rows = next_power(-(-instances // parts))
    part = Var(free_name("part", segment), -(-instances // rows))
    axes = tuple(Var(f"c{n}", axis.extent) for n, axis in enumerate(row))
    at, columns = tuple(map(as_index, axes)), dict(zip(row, map(as_index, axes), strict=True))
    types: dict[str, TensorType] = {}
    sums: dict[str, Output] = {}
    reductions, totals = list[Reduction](), list[Output]()
    for output in segment.column_sums:
        kind = group.tensors[output.tensor].dtype
        name, total = free_tensor("parts", group, types), free_tensor("total", group, [r.name for r in reductions])
        types[name] = TensorType(kind.accumulator, (part.extent, *(axis.extent for axis in row)))
        place = (part_place(segment.axes, rows), *map(as_index, row))
        sums[output.tensor] = evolve(output, tensor=name, write=place)
        reductions.append(Reduction(total, (part,), str(output.across), Read(name, (as_index(part), *at))))
        body: Expr = Read(total, at)
        body = body if kind.accumulator is kind else Cast(kind, body)
        totals.append(Output(output.tensor, tuple(substitute(w, columns) for w in output.write), body))
    written = tuple(sums.get(o.tensor, o) for o in segment.outputs)
    return _kernels(group, written, types, Segment(axes, tuple(reductions), tuple(totals)))


def _kernels(
    group: FusedGroup, written: tuple[Output, ...], types: Mapping[str, TensorType], totals: Segment
) -> tuple[FusedGroup, ...]:
    """Return the groups of partial sums and of totals."""
    shape = tuple(axis.extent for axis in totals.axes)
    held = {r.name: TensorType(kind.dtype, shape) for r, kind in zip(totals.reductions, types.values(), strict=True)}
    segment = evolve(group.segments[0], outputs=written)
    before = group_part(group, (segment,), types, tuple(o.tensor for o in written))
    after = group_part(group, (totals,), {**types, **held}, tuple(o.tensor for o in totals.outputs))
    return before, evolve(after, inputs=tuple(types))


# ---- sums that keep axes of rows


def _keeps_axes(segment: Segment) -> bool:
    """Return whether the sums of a segment keep axes of rows."""
    return any(not {*o.extra} <= _write_variables(o) for o in segment.column_sums)


def _write_variables(output: Output) -> frozenset[Var]:
    return frozenset[Var]().union(*map(variables, output.write))


def _last(row: tuple[Var, ...]) -> Var:
    return [v for v in row if v.extent > 1][-1]


def _kept_axes(segment: Segment) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    """Return the axes of instances that sums add up, and those of the row that they keep."""
    first = segment.column_sums[0]
    written = _write_variables(first)
    return tuple(a for a in segment.axes if a not in written), tuple(v for v in first.extra if v in written)


def _split_kept_sums(group: FusedGroup, parts: int) -> tuple[FusedGroup, ...] | None:
    """Return the groups of sums of each instance and of totals, or None."""
    (segment,) = group.segments
    if len({(o.extra, _write_variables(o)) for o in segment.column_sums}) > 1:
        return None
    over, kept = _kept_axes(segment)
    row = segment.column_sums[0].extra
    pieces, length = parts // prod(a.extent for a in over), prod(v.extent for v in row)
    piece = tuple(Var(free_name("piece", segment), pieces) for _ in range(pieces > 1))
    place = (*map(as_index, segment.axes), *(part_place(row, length // pieces) for _ in piece), *map(as_index, kept))
    types, sums = dict[str, TensorType](), dict[str, Output]()
    reductions, totals = list[Reduction](), list[Output]()
    renamed = {v: Var(f"c{n}", v.extent) for n, v in enumerate((*segment.axes, *kept))}
    moved = {v: as_index(new) for v, new in renamed.items()}
    axes = tuple(new for v, new in renamed.items() if v not in over)
    for output in segment.column_sums:
        kind = group.tensors[output.tensor].dtype
        name, total = free_tensor("parts", group, types), free_tensor("total", group, [r.name for r in reductions])
        every = (*segment.axes, *piece, *kept)
        types[name] = TensorType(kind.accumulator, tuple(v.extent for v in every))
        sums[output.tensor] = evolve(output, tensor=name, write=place)
        term = Read(name, tuple(moved.get(v, as_index(v)) for v in every))
        reductions.append(Reduction(total, (*(renamed[a] for a in over), *piece), str(output.across), term))
        body: Expr = Read(total, tuple(map(as_index, axes)))
        body = body if kind.accumulator is kind else Cast(kind, body)
        totals.append(Output(output.tensor, tuple(substitute(w, moved) for w in output.write), body))
    if not all(kept_runs(o, types[o.tensor].shape)[0] for o in sums.values()):
        return None
    written = tuple(sums.get(o.tensor, o) for o in segment.outputs)
    return _kernels(group, written, types, Segment(axes, tuple(reductions), tuple(totals)))
