"""Sliced-K: threads of a block share a reduction through shared memory.

A block then has more threads than its results would occupy, and no second kernel adds the slices up, unlike split-K
(`split_reduction.py`). The order of all additions is fixed, so results are the same from run to run.

    acc[m, n] = sum_k a[m, k] * b[k, n];  y = relu(acc)
      ->   w[s, m, n] = sum_j a[m, S*j + s] * b[S*j + s, n];     acc[m, n] = sum_s w[s, m, n];  y = relu(acc)

The two are segments of one group with `w` between them in shared memory; later passes treat it as any group. Elements
of slices alternate: the elements of a K block that all of them need are one run of neighbours, as without slices.
"""

from __future__ import annotations

from math import prod

from attrs import evolve

from ...ir import FusedGroup, Output, Read, Reduction, Segment, Target, TensorType, Var, as_index, is_contraction
from ..fusion import FusionError
from .split_reduction import MIN_TERMS, candidates, free_name, free_tensor, may_be_divided, part_of, split_axis

#: Numbers of slices to compare: of 2 to 16, 8 is the fastest where slices help on an H200.
SLICE_COUNTS = (8,)


def slice_reduction(group: FusedGroup, slices: int) -> FusedGroup | None:
    """Return a group of two segments, the first one sliced.

    None where the group is not one reduction, none of its reduced axes has that many elements, or no guard keeps it
    from elements past the end of the last slice.
    """
    if not may_be_divided(group) or len(group.segments[0].reductions) != 1:
        return None
    (segment,) = group.segments
    (reduction,) = segment.reductions
    axis = split_axis(reduction, slices)
    if axis is None:
        return None
    own, rest = Var(free_name("own", segment), slices), Var(axis.name, -(-axis.extent // slices))
    try:
        body = part_of(reduction, axis, as_index(rest) * slices + own, group)
    except FusionError:
        return None
    reduce = tuple(v for v in (rest if v == axis else v for v in reduction.reduce) if v.extent > 1) or (rest,)
    kind = group.tensors[reduction.name]
    workspace = TensorType(kind.dtype, (slices, *kind.shape))
    name, sums = free_tensor("slices", group), free_tensor("slice_sums", group)
    inner = (as_index(own), *map(as_index, segment.axes))
    first = Segment(
        (own, *segment.axes),
        (Reduction(sums, reduce, reduction.combine, body, reduction.math),),
        (Output(name, inner, Read(sums, inner)),),
    )
    second = evolve(segment, reductions=(Reduction(reduction.name, (own,), reduction.combine, Read(name, inner)),))
    types = {**group.tensors, name: workspace, sums: workspace}
    return evolve(group, segments=(first, second), tensors=types, shared=(name,))


def slice_candidates(group: FusedGroup, target: Target) -> dict[int, FusedGroup]:
    """Return the sliced groups that may replace a group, by slices.

    Only contractions that may be split are sliced, with enough terms for each slice.
    """
    if not candidates(group, target) or len(group.segments[0].reductions) != 1:
        return {}
    (reduction,) = group.segments[0].reductions
    terms = prod(axis.extent for axis in reduction.reduce)
    if not is_contraction(reduction):
        return {}
    found = {n: slice_reduction(group, n) for n in SLICE_COUNTS if terms >= n * MIN_TERMS}
    return {n: form for n, form in found.items() if form is not None}
