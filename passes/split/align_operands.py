"""Aligned copies of the factors of a contraction.

Asynchronous copies move 16 bytes at once where the innermost elements of a factor are neighbours along a reduced axis,
and its rows begin at multiples of 16 bytes. Other factors of a large contraction are first copied to such an order,
with zeros at the end of each row:

    acc[m, n] = sum_{k < 511} a[m, k] * b[k, n]
      ->   u[m, k] = a[m, k] if k < 511 else 0;   v[n, k] = b[k, n] if k < 511 else 0
           acc[m, n] = sum_{k < 512} u[m, k] * v[n, k]
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from attrs import evolve

from ...ir import (
    MMA_INSTRUCTIONS,
    WIDEST_BYTES,
    FusedGroup,
    Guard,
    Output,
    Read,
    Reduction,
    Segment,
    Target,
    TensorType,
    Var,
    as_index,
    call,
    factors,
    is_contraction,
    substitute_expr,
    variables,
)
from .split_reduction import free_tensor, group_part, may_be_divided

#: Fewest multiply-adds of a contraction, and elements of its reduced axis, that copies may pay for.
MIN_PRODUCTS, MIN_DEPTH = 1 << 26, 32


def may_be_aligned(group: FusedGroup, target: Target) -> bool:
    """Return whether warpgroups multiply the type of a group's inputs."""
    held = {MMA_INSTRUCTIONS[name].held for name, _ in target.atoms if MMA_INSTRUCTIONS[name].reads_shared}
    return bool(held) and any(group.tensors[t].dtype in held for t in group.inputs)


def align_operands(group: FusedGroup) -> tuple[FusedGroup, ...]:
    """Return copies of a contraction's unaligned factors, and the contraction of them.

    Nothing where all factors are aligned, or are no reads with a reduced axis of their own in common.
    """
    if not may_be_divided(group):
        return ()
    (segment,) = group.segments
    (reduction, *others) = segment.reductions
    found = [f for f in factors(reduction.body) if isinstance(f, Read) and f.tensor in group.inputs]
    large = prod(v.extent for v in (*segment.axes, *reduction.reduce)) >= MIN_PRODUCTS
    if others or not large or not is_contraction(reduction) or len(found) != 2 or len(factors(reduction.body)) != 2:
        return ()
    common = [v for v in reduction.reduce if all(_position(factor, v) is not None for factor in found)]
    axis = max(common, key=lambda v: v.extent, default=None)
    if axis is None or axis.extent < MIN_DEPTH or reduction.math:
        return ()
    unit = max(WIDEST_BYTES // group.tensors[f.tensor].dtype.size for f in found)
    ragged = axis.extent % unit != 0
    copied = [ragged or not _is_aligned(factor, unit, group) for factor in found]
    return _copies(group, segment, reduction, found, copied, axis, unit) if any(copied) else ()


def _copies(
    group: FusedGroup,
    segment: Segment,
    reduction: Reduction,
    found: Iterable[Read],
    copied: Iterable[bool],
    axis: Var,
    unit: int,
) -> tuple[FusedGroup, ...]:
    """Return the copies of some factors with `axis` innermost, and the contraction of all."""
    longer = Var(axis.name, -(-axis.extent // unit) * unit)
    types: dict[str, TensorType] = {}
    copies, parts = [], []
    for factor, is_copied in zip(found, copied, strict=True):
        if not is_copied:
            parts.append(substitute_expr(factor, {axis: as_index(longer)}))
            continue
        name, place = free_tensor("aligned", group, types), _position(factor, axis)
        assert place is not None
        kind = group.tensors[factor.tensor]
        dims = [Var(f"d{n}", extent) for n, extent in enumerate(kind.shape)]
        dims[place] = Var(f"d{place}", longer.extent)
        order = [d for n, d in enumerate(dims) if n != place] + [dims[place]]
        types[name] = TensorType(kind.dtype, tuple(d.extent for d in order))
        guard = Guard(as_index(dims[place]), 0, axis.extent)
        read = Read(factor.tensor, tuple(map(as_index, dims)), () if guard.always else (guard,))
        copy = Segment(tuple(order), (), (Output(name, tuple(map(as_index, order)), read),))
        copies.append(group_part(group, (copy,), types, (name,)))
        rest = tuple(index for n, index in enumerate(factor.indices) if n != place)
        parts.append(Read(name, (*rest, as_index(longer)), factor.guards, factor.fill))
    reduce = (*(v for v in reduction.reduce if v != axis), longer)
    product = evolve(segment, reductions=(evolve(reduction, reduce=reduce, body=call("mul", *parts)),))
    return (*copies, group_part(group, (product,), types, group.outputs))


def _position(factor: Read, axis: Var) -> int | None:
    """Return the dim that an axis runs along on its own, None where it occurs elsewhere too."""
    places = [n for n, index in enumerate(factor.indices) if axis in variables(index)]
    guarded = any(axis in variables(guard.index) for guard in factor.guards)
    alone = len(places) == 1 and factor.indices[places[0]] == as_index(axis)
    return places[0] if alone and not guarded and factor.fill == 0 else None


def _is_aligned(factor: Read, unit: int, group: FusedGroup) -> bool:
    """Return whether the rows of a factor are whole units along one axis."""
    last, length = factor.indices[-1], group.tensors[factor.tensor].shape[-1]
    return any(last == as_index(v) for v in variables(last)) and length % unit == 0
