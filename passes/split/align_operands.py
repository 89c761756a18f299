"""Aligned copies of the factors of a contraction.

Bulk copies need rows that begin at multiples of 16 bytes, and take three times as long where these are no multiples of
a sector of memory. Other factors of a large contraction may be copied first, with zeros at the end of each row:

    acc[m, n] = sum_{k < 511} a[m, k] * b[k, n]    with 1,021 columns
      ->   u[m, k] = a[m, k] if k < 511 else 0;   v[k, n] = b[k, n] if n < 1021 else 0
           acc[m, n] = sum_{k < 511} u[m, k] * v[k, n]

Halves that lie along the only axis of a side of the product keep the order of their dims, as instructions read them
either side. Other factors are transposed, so that the reduced axis is innermost, and it is longer by these zeros. So
are bytes that the last product of a chain in registers reads, where they lie along its columns.

Types that no instruction multiplies are multiplied by lanes, which read vectors along either side. Factors along the
reduced axis are transposed for them where each element is read often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import evolve

from ...ir import (
    HALF_BYTES,
    MMA_INSTRUCTIONS,
    WIDEST_BYTES,
    Expr,
    FusedGroup,
    Guard,
    Output,
    Read,
    Segment,
    Target,
    TensorType,
    Var,
    as_index,
    call,
    expr_variables,
    factors,
    is_contraction,
    reads,
    rebuild,
    stored_factor,
    variables,
)
from ..geometry import RegisterChain, register_chain
from .split_reduction import free_tensor, group_part, may_be_divided

#: Fewest multiply-adds of a contraction, and elements of its reduced axis, that copies may pay for.
MIN_PRODUCTS, MIN_DEPTH = 1 << 26, 32
#: Fewest multiply-adds of each element that is transposed for products by lanes, and in all.
MIN_USES, MIN_LANE_PRODUCTS = 1024, 1 << 30
#: Bytes of a sector of memory, and fewest sectors of rows that are padded to whole sectors.
SECTOR_BYTES, MIN_SECTORS = 32, 32


def may_be_aligned(group: FusedGroup, target: Target) -> bool:
    """Return whether warpgroups, or lanes alone, multiply a group's inputs."""
    held = {MMA_INSTRUCTIONS[name].held for name, _ in target.atoms if MMA_INSTRUCTIONS[name].reads_shared}
    return target.lockstep and (
        (bool(held) and any(group.tensors[t].dtype in held for t in group.inputs)) or multiplies_by_lanes(group)
    )


def multiplies_by_lanes(group: FusedGroup) -> bool:
    """Return whether a group sums in a type that no instruction multiplies."""
    sums = [reduction for segment in group.segments for reduction in segment.reductions]
    read = [group.tensors[r.tensor].dtype for s in sums for r in reads(s.body) if r.tensor in group.inputs]
    known = {name for instruction in MMA_INSTRUCTIONS.values() for name in instruction.formats}
    return bool(read) and all(dtype.is_float and dtype.value not in known for dtype in read)


def align_operands(group: FusedGroup) -> tuple[FusedGroup, ...]:
    """Return copies of a contraction's unaligned factors, and the contraction of them.

    Nothing where all factors are aligned, or are no reads with a reduced axis of their own in common.
    """
    if (chain := register_chain(group)) is not None:
        return _transpose_bytes(group, chain)
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
    if multiplies_by_lanes(group):
        return _transpose_for_lanes(group, found, axis)
    unit = max(WIDEST_BYTES // group.tensors[f.tensor].dtype.size for f in found)
    kept = [_keeps_order(factor, other, axis, group) for factor, other in (found, found[::-1])]
    alone = all(v == axis or v.extent == 1 for v in reduction.reduce)  # lines of K blocks end with the axis
    ragged = axis.extent % unit != 0 and not (alone and all(kept))
    copied = [ragged or not _is_aligned(factor, group) for factor in found]
    if not any(copied):
        return ()
    longer = Var(axis.name, -(-axis.extent // unit) * unit) if ragged else axis
    types: dict[str, TensorType] = {}
    copies, parts = [], []
    for factor, is_copied, is_kept in zip(found, copied, kept, strict=True):
        if not is_copied:
            parts.append(factor)
            continue
        place = _position(factor, axis)
        assert place is not None
        order = [n for n in range(len(factor.indices)) if is_kept or n != place] + [place] * (not is_kept)
        name = free_tensor("aligned", group, types)
        segment_of_copy, types[name] = _copy(factor, order, {place: longer.extent}, name, group)
        copies.append(group_part(group, (segment_of_copy,), types, (name,)))
        indices = tuple(as_index(longer) if n == place else factor.indices[n] for n in order)
        parts.append(Read(name, indices, factor.guards, factor.fill))
    reduce = (*(v for v in reduction.reduce if v != axis), longer)
    product = evolve(segment, reductions=(evolve(reduction, reduce=reduce, body=call("mul", *parts)),))
    return (*copies, group_part(group, (product,), types, group.outputs))


def _transpose_for_lanes(group: FusedGroup, found: Sequence[Read], axis: Var) -> tuple[FusedGroup, ...]:
    """Return copies of the factors along the reduced axis, with that outermost, and the contraction of them."""
    (segment,) = group.segments
    (reduction,) = segment.reductions
    products = prod(v.extent for v in (*segment.axes, *reduction.reduce))
    types, copies, parts = dict[str, TensorType](), list[FusedGroup](), dict[Expr, Expr]()
    for factor in found:
        last = len(factor.indices) - 1
        used = products >= MIN_USES * group.tensors[factor.tensor].size
        if products < MIN_LANE_PRODUCTS or not used or not last or _position(factor, axis) != last:
            continue
        order, name = [last, *range(last)], free_tensor("aligned", group, types)
        segment_of_copy, types[name] = _copy(factor, order, {}, name, group)
        copies.append(group_part(group, (segment_of_copy,), types, (name,)))
        parts[factor] = Read(name, tuple(factor.indices[n] for n in order), factor.guards, factor.fill)
    body = rebuild(reduction.body, lambda node: parts.get(node, node))
    product = evolve(segment, reductions=(evolve(reduction, body=body),))
    return (*copies, group_part(group, (product,), types, group.outputs)) if copies else ()


def _transpose_bytes(group: FusedGroup, chain: RegisterChain) -> tuple[FusedGroup, ...]:
    """Return a copy of the bytes that a chain's last product reads, along its reduced axis, and the chain of it."""
    *before, last = group.segments
    (reduction,), types = last.reductions, dict[str, TensorType]()
    (axis,) = reduction.reduce
    found = [f for f in map(stored_factor, factors(reduction.body)) if isinstance(f, Read) and f.tensor in group.inputs]
    if len(found) != 1 or group.tensors[found[0].tensor].dtype.size != 1:
        return ()
    (factor,) = found
    if (place := _position(factor, axis)) is None:
        return ()
    order = [n for n in range(len(factor.indices)) if n != place] + [place]
    if order == sorted(order) or group.tensors[chain.scores].size * last.axes[chain.width].extent < MIN_PRODUCTS:
        return ()
    name = free_tensor("aligned", group, types)
    copy, types[name] = _copy(factor, order, {}, name, group)
    read = Read(name, tuple(factor.indices[n] for n in order), factor.guards, factor.fill)
    body = rebuild(reduction.body, lambda node: read if node == factor else node)
    chained = (*before, evolve(last, reductions=(evolve(reduction, body=body),)))
    return group_part(group, (copy,), types, (name,)), group_part(group, chained, types, group.outputs, group.shared)


def _copy(
    factor: Read, order: Sequence[int], extents: Mapping[int, int], name: str, group: FusedGroup
) -> tuple[Segment, TensorType]:
    """Return the copy of a factor with an order of dims, and its type.

    Dims have at least these extents, the innermost one is padded. Elements past the factor's own are 0.
    """
    kind = group.tensors[factor.tensor]
    sizes = [max(extent, extents.get(n, 0)) for n, extent in enumerate(kind.shape)]
    sizes[order[-1]] = row_pitch(sizes[order[-1]], kind.dtype.size)
    dims = [Var(f"d{n}", extent) for n, extent in enumerate(sizes)]
    guards = [Guard(as_index(dim), 0, extent) for dim, extent in zip(dims, kind.shape, strict=True)]
    read = Read(factor.tensor, tuple(map(as_index, dims)), tuple(guard for guard in guards if not guard.always))
    axes = tuple(dims[n] for n in order)
    type_ = TensorType(kind.dtype, tuple(axis.extent for axis in axes))
    return Segment(axes, (), (Output(name, tuple(map(as_index, axes)), read),)), type_


def _keeps_order(factor: Read, other: Read, axis: Var, group: FusedGroup) -> bool:
    """Return whether instructions read rows of a factor as they lie in memory.

    They lie along the reduced axis, or are halves along the only axis of the factor's side.
    """
    last = len(factor.indices) - 1
    if _position(factor, axis) == last:
        return True
    side = expr_variables(factor) - expr_variables(other)
    return group.tensors[factor.tensor].dtype.size == HALF_BYTES and any(
        side == {v} and _position(factor, v) == last for v in side
    )


def _position(factor: Read, axis: Var) -> int | None:
    """Return the dim that an axis runs along on its own, None where it occurs elsewhere too."""
    places = [n for n, index in enumerate(factor.indices) if axis in variables(index)]
    guarded = any(axis in variables(guard.index) for guard in factor.guards)
    alone = len(places) == 1 and factor.indices[places[0]] == as_index(axis)
    return places[0] if alone and not guarded and factor.fill == 0 else None


def _is_aligned(factor: Read, group: FusedGroup) -> bool:
    """Return whether the rows of a factor need no padding, and lie along one axis."""
    last, kind = factor.indices[-1], group.tensors[factor.tensor]
    pitch = kind.pitch or kind.shape[-1]
    return any(last == as_index(v) for v in variables(last)) and row_pitch(pitch, kind.dtype.size) == pitch


def row_pitch(row: int, size: int) -> int:
    """Return the elements from a row to the next.

    They are whole sectors of memory, and whole units of copies in a short row.
    """
    whole = (SECTOR_BYTES if row * size >= MIN_SECTORS * SECTOR_BYTES else WIDEST_BYTES) // size
    return -(-row // whole) * whole
