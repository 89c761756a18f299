"""Split-K: a reduction with few results becomes two kernels.

Its parts fill the machine.

The first sums parts of the reduced axis, a part being one more parallel axis, into a workspace; the second adds the
parts up in a fixed order and applies the epilogue. Results are the same from run to run, unlike with atomic additions.
Both are ordinary groups for later passes. Independent sums over one space are divided together, each with a workspace
of its own.

    acc[m, n] = sum_k a[m, k] * b[k, n];  y = relu(acc)
      ->   w[p, m, n] = sum_j a[m, J*p + j] * b[J*p + j, n];     acc[m, n] = sum_p w[p, m, n];  y = relu(acc)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attrs import evolve

from ...ir import (
    COMBINERS,
    Expr,
    FusedGroup,
    Guard,
    Index,
    Output,
    Read,
    Reduction,
    Segment,
    TensorType,
    Var,
    as_index,
    expr_variables,
    is_tiled,
    reads,
    substitute_expr,
)
from ..fusion import FusionError, apply_guards

#: Of parts of two axes, one in so many elements of the inner one may be missing from its last part.
MIN_ELEMENTS_PER_MISSING = 6


def split_reduction(group: FusedGroup, parts: int) -> tuple[FusedGroup, FusedGroup] | None:
    """Return two groups that together compute a group.

    The outputs of the first are the workspaces between them, which are the first inputs of the second.

    None where the group is not independent reductions over one space, where its reduced axes have too few elements, or
    no guard keeps it from elements past the end of the last part. Nor where lanes that share the reduction write a row:
    as many as there are parts would write all of it.
    """
    if not may_be_divided(group):
        return None
    (segment,) = group.segments
    cuts = cuts_of(segment.reductions[0], parts)
    if not cuts:
        return None
    inside: dict[Var, Var] = {}
    made: list[Var] = []
    bodies = [reduction.body for reduction in segment.reductions]
    for axis, count in cuts:
        part = Var(free_name("part", segment, made), count)
        inside[axis] = Var(axis.name, -(-axis.extent // count))
        index = as_index(part) * inside[axis].extent + inside[axis]
        try:
            bodies = [
                part_of(evolve(r, body=body), axis, index, group)
                for r, body in zip(segment.reductions, bodies, strict=True)
            ]
        except FusionError:
            return None
        made.append(part)
    rest = tuple(inside.get(v, v) for v in segment.reductions[0].reduce)
    reduce = tuple(v for v in rest if v.extent > 1) or rest[:1]
    axes = (*made, *segment.axes)
    inner = tuple(as_index(a) for a in axes)
    sums: list[Reduction] = []
    outputs: list[Output] = []
    totals: list[Reduction] = []
    types: dict[str, TensorType] = {}
    for reduction, body in zip(segment.reductions, bodies, strict=True):
        name, kind = free_tensor("parts", group, types), group.tensors[reduction.name]
        types[name] = TensorType(kind.dtype, (*(part.extent for part in made), *kind.shape))
        sums.append(Reduction(reduction.name, reduce, reduction.combine, body, reduction.math))
        outputs.append(Output(name, inner, Read(reduction.name, inner)))
        totals.append(Reduction(reduction.name, tuple(made), reduction.combine, Read(name, inner)))
    held = {r.name: types[o.tensor] for r, o in zip(sums, outputs, strict=True)}
    before = group_part(group, (Segment(axes, tuple(sums), tuple(outputs)),), {**types, **held}, tuple(types))
    after = group_part(group, (evolve(segment, reductions=tuple(totals)),), types, group.outputs)
    return before, evolve(after, inputs=(*types, *(t for t in after.inputs if t not in types)))


def may_be_divided(group: FusedGroup) -> bool:
    """Return whether the reduction of a group may be divided.

    It consists of independent reductions over one space, one alone if it is a contraction, and neither they nor the
    writes need whole rows.
    """
    if len(group.segments) != 1:
        return False
    (segment,) = group.segments
    names = {r.name for r in segment.reductions}
    if len({r.reduce for r in segment.reductions}) != 1 or segment.holds_rows or any(o.extra for o in segment.outputs):
        return False
    if len(segment.reductions) == 1:
        return True
    alone = not any(r.tensor in names for reduction in segment.reductions for r in reads(reduction.body))
    return alone and not any(is_tiled(r, segment.axes, names) for r in segment.reductions)


def cuts_of(reduction: Reduction, parts: int) -> tuple[tuple[Var, int], ...]:
    """Return the reduced axes to split, with about `parts` parts.

    Preferred is an axis that divides evenly, else the outermost one into its elements and the next one besides, where
    little is missing from its last part, else an axis whose last part may be shorter. No part is empty.
    """
    axis, (first, *others) = split_axis(reduction, parts), reduction.reduce
    if axis is not None and axis.extent % parts == 0:
        return ((axis, parts),)
    each = parts // first.extent
    if others and 1 < each <= others[0].extent:
        count, length = _even_parts(others[0].extent, each)
        if (count * length - others[0].extent) * MIN_ELEMENTS_PER_MISSING <= others[0].extent:
            return (first, first.extent), (others[0], count)
    return ((axis, _even_parts(axis.extent, parts)[0]),) if axis is not None else ()


def _even_parts(extent: int, parts: int) -> tuple[int, int]:
    """Return how many parts an axis has where all but the last are as long as the longest of so many, and how long."""
    length = -(-extent // parts)
    return -(-extent // length), length


def split_axis(reduction: Reduction, parts: int) -> Var | None:
    """Return the reduced axis to split, preferably one that divides evenly.

    Of several, it is the outermost.
    """
    possible = [v for v in reduction.reduce if v.extent >= parts]
    even = [v for v in possible if v.extent % parts == 0]
    return next(iter((*even, *possible)), None)


def part_of(reduction: Reduction, axis: Var, index: Index, group: FusedGroup) -> Expr:
    """Return the body at an element of a part.

    Elements past the end of the axis contribute nothing.
    """
    body = substitute_expr(reduction.body, {axis: index})
    guard = Guard(index, 0, axis.extent)
    identity = COMBINERS[reduction.combine].identity(group.tensors[reduction.name].dtype)
    return body if guard.always else apply_guards(body, (guard,), identity, group.tensors, frozenset())


def free_tensor(name: str, group: FusedGroup, made: Collection[str] = ()) -> str:
    """Return a tensor name with this prefix, new to the group."""
    taken = {*group.tensors, *made}
    return next(n for n in (f"{name}{k}" for k in range(len(taken) + 1)) if n not in taken)


def free_name(name: str, segment: Segment, made: Sequence[Var] = ()) -> str:
    """Return an axis name with this prefix, new to the segment."""
    taken = {v.name for body in segment.expressions for v in expr_variables(body)}
    taken |= {v.name for v in (*segment.axes, *made)}
    return next(n for n in (name, *(f"{name}{k}" for k in range(len(taken)))) if n not in taken)


def group_part(
    group: FusedGroup,
    segments: tuple[Segment, ...],
    types: Mapping[str, TensorType],
    outputs: tuple[str, ...],
    shared: tuple[str, ...] = (),
) -> FusedGroup:
    """Return the group of replacing segments, with new tensors, `shared` ones included."""
    read = tuple(dict.fromkeys(t for segment in segments for t in segment.tensors_read if t not in shared))
    tables = {t: v for t, v in group.constants.items() if t in read}
    inputs = tuple(t for t in (*group.inputs, *types) if t in read and t not in tables)
    own = (r.name for segment in segments for r in segment.reductions)
    names = dict.fromkeys((*inputs, *tables, *shared, *outputs, *own))
    kept = {n: types.get(n) or group.tensors[n] for n in names}
    fixed = tuple(t for t in group.fixed if t in inputs)
    return FusedGroup(segments, kept, inputs, outputs, shared, tables, fixed)
