"""Sums over instances of walked rows become two kernels: partial sums, totals.

Axes that are summed are divided so that a block has all instances along the inner part of each:

    w[r, n] across sum = h[d, n, r] * g[r, d]
      ->   p[e, r, n] across sum = h[64 * e + f, n, r] * g[r, 64 * e + f];    w[r, n] = sum_e p[e, r, n]

Sums along the row as well keep all axes in the first kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    TensorType,
    Var,
    as_index,
    rebuild,
    substitute,
    substitute_expr,
    substitute_guards,
)
from ..geometry import summed_axes, sums_row
from .split_reduction import free_name, free_tensor, group_part

#: Instances that a block sums, and the most that it always sums whole.
SUMMED_INSTANCES, WHOLE_INSTANCES = (32, 128, 512, 1024, 2048), 64
#: Most of them along an axis.
MAX_SUMMED_AXIS = 128


def walked_candidates(group: FusedGroup) -> tuple[int, ...]:
    """Return the numbers of partial sums to compare, least first."""
    (segment,) = group.segments
    inner, every = (_extent(segment, along) for along in (False, True))
    if every == inner and inner <= WHOLE_INSTANCES:
        return ()
    return tuple(sorted({every // min(size, inner) for size in SUMMED_INSTANCES}))


def split_walked_sums(group: FusedGroup, parts: int) -> tuple[FusedGroup, ...] | None:
    """Return the group of partial sums and those of totals, or None."""
    (segment,) = group.segments
    pieces, inner = _divide_axes(segment, _extent(segment, True) // parts)
    axes = tuple(piece for axis in segment.axes for piece in pieces[axis])
    types = {r.name: _with_axes(group.tensors[r.name], axes, segment) for r in segment.reductions}
    outputs, totals = list[Output](), dict[tuple[tuple[int, ...], ...], list[tuple[Output, str]]]()
    for output in segment.outputs:
        over = tuple(p for axis in summed_axes(segment, output) for p in pieces[axis])
        over = tuple(p for p in over if p not in inner or sums_row(output))
        if not over:
            outputs.append(output)
            continue
        kind, name = group.tensors[output.tensor], free_tensor("parts", group, types)
        types[name] = TensorType(kind.dtype.accumulator, (*(p.extent for p in over), *kind.shape))
        outputs.append(evolve(output, tensor=name, write=(*map(as_index, over), *output.write)))
        totals.setdefault((tuple(p.extent for p in over), kind.shape), []).append((output, name))
    if not totals:
        return None
    divided = Segment(axes, segment.reductions, tuple(outputs))
    first = group_part(group, (_substitute(divided, pieces, segment),), types, tuple(o.tensor for o in outputs))
    return first, *(_total(group, own, types) for own in totals.values())


def _total(group: FusedGroup, sums: Sequence[tuple[Output, str]], types: Mapping[str, TensorType]) -> FusedGroup:
    """Return the group that adds up parts of sums of one shape."""
    shape = group.tensors[sums[0][0].tensor].shape
    axes = tuple(Var(f"c{n}", extent) for n, extent in enumerate(shape))
    over = tuple(Var(f"part{n}", extent) for n, extent in enumerate(types[sums[0][1]].shape[: -len(shape) or None]))
    at, reductions, outputs = tuple(map(as_index, axes)), list[Reduction](), list[Output]()
    held: dict[str, TensorType] = {}
    for output, name in sums:
        total, kind = free_tensor("total", group, held), group.tensors[output.tensor].dtype
        held[total] = TensorType(types[name].dtype, shape)
        reductions.append(Reduction(total, over, str(output.across), Read(name, (*map(as_index, over), *at))))
        body: Expr = Read(total, at)
        outputs.append(Output(output.tensor, at, body if held[total].dtype is kind else Cast(kind, body)))
    segment = Segment(axes, tuple(reductions), tuple(outputs))
    own = {name: types[name] for _, name in sums}
    return group_part(group, (segment,), {**own, **held}, tuple(o.tensor for o in outputs))


def _divide_axes(segment: Segment, size: int) -> tuple[dict[Var, tuple[Var, ...]], set[Var]]:
    """Return the parts of each axis, and those that a block with `size` instances of a sum has whole."""
    summed = {a for o in segment.column_sums if not sums_row(o) for a in summed_axes(segment, o)}
    pieces, inner = dict[Var, tuple[Var, ...]](), set[Var]()
    for axis in reversed(segment.axes):
        pieces[axis] = (axis,)
        if axis not in summed:
            continue
        most = min(size, MAX_SUMMED_AXIS)
        whole = axis.extent if axis.extent <= most else max(1 << k for k in range(32) if _fits(1 << k, axis, most))
        size //= whole
        if whole < axis.extent:
            outer = Var(free_name(f"{axis.name}o", segment), axis.extent // whole)
            pieces[axis] = (outer, Var(free_name(f"{axis.name}i", segment), whole)) if whole > 1 else (axis,)
        inner |= {*pieces[axis][-1:]} if whole > 1 else set()
    return pieces, inner


def _fits(part: int, axis: Var, size: int) -> bool:
    return axis.extent % part == 0 and part <= max(1, size)


def _substitute(divided: Segment, pieces: Mapping[Var, tuple[Var, ...]], segment: Segment) -> Segment:
    """Return a segment over the parts of axes instead of these."""
    moved = {a: as_index(p[0]) * p[1].extent + p[1] for a, p in pieces.items() if len(p) > 1}
    own = {r.name: tuple(map(as_index, (*divided.axes, *(r.reduce if r.along else ())))) for r in segment.reductions}

    def leaf(node: Expr) -> Expr:
        return evolve(node, indices=own[node.tensor]) if isinstance(node, Read) and node.tensor in own else node

    def body(expr: Expr) -> Expr:
        return rebuild(substitute_expr(expr, moved), leaf)

    reductions = tuple(evolve(r, body=body(r.body)) for r in divided.reductions)
    outputs = (
        evolve(o, body=body(o.body), write=tuple(substitute(w, moved) for w in o.write),
               guards=substitute_guards(o.guards, moved))
        for o in divided.outputs
    )  # fmt: skip
    return evolve(divided, reductions=reductions, outputs=tuple(outputs))


def _with_axes(kind: TensorType, axes: Sequence[Var], segment: Segment) -> TensorType:
    return evolve(kind, shape=(*(a.extent for a in axes), *kind.shape[len(segment.axes) :]))


def _extent(segment: Segment, along: bool) -> int:
    """Return the instances of sums, with those of sums along the row if wanted."""
    sums = (o for o in segment.column_sums if along or not sums_row(o))
    return prod(a.extent for a in {a for o in sums for a in summed_axes(segment, o)})
