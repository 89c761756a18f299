"""Column sums become two kernels: sums of consecutive instances, and totals.

A block of the first kernel accumulates the rows of `rows` consecutive instances, one after another, beside the row
outputs; the second kernel adds the partial sums in a fixed order.

    y[i, r] = f(x[i, r], acc0[i]);   w[r] across sum = g(x[i, r], acc0[i])
      ->   y[i, r] = f(x[i, r], acc0[i]);   p[i // rows, r] across sum = g(x[i, r], acc0[i]);    w[r] = sum_k p[k, r]
"""

from __future__ import annotations

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
    walked_row,
)
from ..geometry import next_power, part_place
from .split_reduction import free_name, free_tensor, group_part
from .split_walked_sums import split_walked_sums, walked_candidates

#: Fewest and most partial sums for each SM.
MIN_PARTS_PER_SM, MAX_PARTS_PER_SM = 1.5, 16


def column_candidates(group: FusedGroup, target: Target) -> tuple[int, ...]:
    """Return the numbers of partial sums to compare, least first."""
    if len(group.segments) != 1 or not group.segments[0].column_sums:
        return ()
    if walked_row(group.segments[0]) is not None:
        return walked_candidates(group)
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
    held = {r.name: evolve(kind, shape=kind.shape[1:]) for r, kind in zip(reductions, types.values(), strict=True)}
    before = group_part(group, (evolve(segment, outputs=written),), types, tuple(o.tensor for o in written))
    after = group_part(group, (Segment(axes, tuple(reductions), tuple(totals)),), {**types, **held},
                       tuple(o.tensor for o in totals))  # fmt: skip
    return before, evolve(after, inputs=tuple(types))
