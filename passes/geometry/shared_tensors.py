"""Boxes in shared memory of tensors passed between segments.

A segment leaves its block's elements of each parallel axis, and whole rows where reduction threads hold rows. Such rows
have a pitch of an odd multiple of 16 bytes, so that threads that read a column of vectors hit different banks. A tensor
that reduction threads compute from rows, element by element, replaces its source in place: each thread reads its own
elements before it writes them.

Of a tensor that pointwise segments exchange, a block has its elements of the owned axes and everything along the other
dims. The pitches of these are padded so that warps that write it along one axis and read it along another hit different
banks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby, product
from math import prod
from typing import Any

import numpy as np

from ...ir import (
    LANES,
    WIDEST_BYTES,
    DType,
    FusedGroup,
    Index,
    Segment,
    TensorType,
    Var,
    as_index,
    evaluate,
    is_exchange,
    owned_axes,
    reads,
    replaced_exchanges,
)
from .footprint import Count, ceil_div

#: Bytes that the banks of shared memory move at once.
BYTES_OF_BANKS = 128
#: Units of padding to consider for each pitch of an exchanged tensor, pitches to pad, addresses to simulate, and the
#: elements of a block along an owned axis; and the most elements with padding, as a share of those without.
PADDING_UNITS, MAX_PADDED_PITCHES, MAX_SIMULATED_ADDRESSES, SIMULATED_BLOCK = (0, 1, 2, 4), 3, 4, 16
MAX_PADDED_SHARE = 1.25


def writer_of(group: FusedGroup, tensor: str) -> Segment:
    """Return the segment that writes a tensor."""
    return next(s for s in group.segments if any(o.tensor == tensor for o in s.outputs))


def axis_places(segment: Segment, tensor: str) -> tuple[int | None, ...]:
    """Return the parallel axis' position for each dim of an output.

    None stands for dims of rows and, beside rows, for dims of one element.
    """
    (output,) = (o for o in segment.outputs if o.tensor == tensor)
    if not output.extra and len(output.write) == len(segment.axes):
        return tuple(range(len(segment.axes)))
    axes = {as_index(a): n for n, a in enumerate(segment.axes) if a.extent > 1}
    return tuple(axes.get(index) for index in output.write)


def row_dim(segment: Segment, tensor: str) -> int | None:
    """Return the dim that an output's row runs along, or None."""
    (output,) = (o for o in segment.outputs if o.tensor == tensor)
    rows = {as_index(v) for v in output.extra}
    return next((d for d, index in enumerate(output.write) if index in rows), None)


def tensors_in_place(group: FusedGroup) -> dict[str, str]:
    """Map tensors that replace others in shared memory to these."""
    if is_exchange(group):
        return dict.fromkeys(replaced_exchanges(group.segments, group.shared, group.tensors), group.shared[0])
    types = tuple(group.tensors[t].dtype for t in group.shared)
    return {new: old for s in group.segments for new, old in _replaced_tensors(s, group.shared, types)}


@lru_cache(maxsize=4096)
def _replaced_tensors(
    segment: Segment, shared: tuple[str, ...], types: tuple[DType, ...]
) -> tuple[tuple[str, str], ...]:
    """Map tensors of a segment that replace a tensor that it reads; `types` are the element types of all `shared`
    tensors.
    """
    kind = dict(zip(shared, types, strict=True))
    found: dict[str, str] = {}
    for output in (o for o in segment.outputs if o.tensor in kind and o.extra):
        for read in reads(output.body):
            places = {r.indices for body in segment.expressions for r in reads(body) if r.tensor == read.tensor}
            if kind.get(read.tensor) is kind[output.tensor] and places == {output.write} and read.tensor not in found:
                found[read.tensor] = output.tensor
                break
    return tuple((new, old) for old, new in found.items())


def holds_rows(group: FusedGroup, tensor: str) -> bool:
    """Return whether reduction threads read or write rows of a tensor.

    The tensor is shared, and a later contraction reads it.
    """
    if is_exchange(group):
        return False
    return row_dim(writer_of(group, tensor), tensor) is not None or tensor in tensors_in_place(group).values()


def is_walked_by_rows(group: FusedGroup, tensor: str) -> bool:
    """Return whether threads iterate over rows of a shared tensor.

    They are reduction threads, or threads that sum along its last dim.
    """
    found = (
        read.indices[-1] in map(as_index, reduction.reduce)
        for segment in group.segments
        for reduction in segment.reductions
        for read in reads(reduction.body)
        if read.tensor == tensor and read.indices
    )
    return holds_rows(group, tensor) or any(found)


def row_pitch(extent: Count, size: int) -> Count:
    """Return the elements of `size` bytes between the starts of rows.

    Extents may be numbers or arrays of them.
    """
    together = WIDEST_BYTES // size
    vectors = ceil_div(extent, together)
    return (vectors + (vectors + 1) % 2) * together


def shared_pitches(group: FusedGroup, tensor: str, extents: Sequence[Count]) -> tuple[tuple[Count, ...], Count]:
    """Return the strides of a shared tensor's box, and its size.

    Both count elements; extents may be numbers or arrays of them. Rows that threads iterate over, and planes of boxes
    of three dims or more, are odd multiples of 16 bytes: lanes that read several of them side by side, as in a
    depthwise convolution, hit different banks.
    """
    size, shape = group.tensors[tensor].dtype.size, group.tensors[tensor].shape
    if is_exchange(group):
        return _padded_pitches(extents, exchange_padding(group.segments, group.shared, tensor, group.tensors[tensor]))
    several = [d for d, extent in enumerate(shape) if extent > 1]
    padded = {d + 1 for d in several[:-2]} if not is_walked_by_rows(group, tensor) else {len(shape) - 1}
    found: list[Count] = []
    step: Count = 1
    for d in reversed(range(len(shape))):
        found.insert(0, step)
        step = step * extents[d]
        step = row_pitch(step, size) if d in padded else step
    return tuple(found), step


def place_together(
    group: FusedGroup, tensor: str, sizes: Mapping[str, Sequence[Count]]
) -> tuple[dict[str, tuple[Count, ...]], Count]:
    """Return strides of a shared tensor and its replacements, and their elements.

    `sizes` are the extents of each tensor's box. Exchanged tensors keep their own strides, as threads hold all elements
    between reads and writes.
    """
    together = [tensor, *(new for new, old in tensors_in_place(group).items() if old == tensor)]
    if is_exchange(group):
        found = {each: shared_pitches(group, each, sizes[each]) for each in together}
        elements: Count = 0
        for _, size in found.values():
            elements = np.maximum(elements, size)
        return {each: pitches for each, (pitches, _) in found.items()}, elements
    extents = list(sizes[tensor])
    for other in together[1:]:
        extents = [np.maximum(a, b) for a, b in zip(extents, sizes[other], strict=True)]
    pitches, elements = shared_pitches(group, tensor, extents)
    return dict.fromkeys(together, pitches), elements


def extents_of(segment: Segment, tensor: str, blocks: Sequence[Count], row: Count) -> list[Count]:
    """Return a block's elements along each dim of an output.

    `blocks` are its elements of the axes, `row` those of a row.
    """
    along = row_dim(segment, tensor)
    return [row if d == along else 1 if n is None else blocks[n] for d, n in enumerate(axis_places(segment, tensor))]


# ---- tensors that pointwise segments exchange


def exchange_dims(segment: Segment, owned: Sequence[int]) -> tuple[tuple[Var, ...], ...]:
    """Return the tile dims of a segment of an exchange.

    Each owned axis is a dim, and so is each run of other axes, which a block computes whole.
    """
    runs = groupby(enumerate(segment.axes), key=lambda each: each[0] if each[0] in owned else -1)
    return tuple(tuple(axis for _, axis in run) for _, run in runs)


def whole_dims(group: FusedGroup, segment: Segment) -> tuple[int, ...]:
    """Return the tile dims that a block of an exchange takes whole."""
    if not is_exchange(group):
        return ()
    owned = owned_axes(group.segments, group.shared)[group.segments.index(segment)]
    alone = {segment.axes[n] for n in owned}
    return tuple(d for d, dim in enumerate(exchange_dims(segment, owned)) if dim[0] not in alone)


def owned_dims(segment: Segment, tensor: str, owned: Sequence[int]) -> tuple[Var | None, ...]:
    """Return the owned axis, or None, of each dim of a tensor."""
    writes = zip(*(o.write for o in segment.outputs if o.tensor == tensor), strict=True)
    axes = {as_index(segment.axes[n]): segment.axes[n] for n in owned}
    return tuple(axes.get(index) if len({index, *others}) == 1 else None for index, *others in writes)


def exchange_extents(group: FusedGroup, tensor: str, blocks: Mapping[Var, Count]) -> list[Count]:
    """Return a block's elements along each dim of an exchanged tensor.

    `blocks` are its elements of owned axes.
    """
    number = next(n for n, s in enumerate(group.segments) if any(o.tensor == tensor for o in s.outputs))
    owned = owned_axes(group.segments, group.shared)[number]
    dims = zip(owned_dims(group.segments[number], tensor, owned), group.tensors[tensor].shape, strict=True)
    return [extent if axis is None else blocks[axis] for axis, extent in dims]


def _padded_pitches(extents: Sequence[Count], padding: Sequence[int]) -> tuple[tuple[Count, ...], Count]:
    """Return the strides of a box with padding before the step of each dim, and its size."""
    found: list[Count] = []
    step: Count = 1
    for extent, pad in zip(reversed(extents), reversed(padding), strict=True):
        found.insert(0, step + pad)
        step = (step + pad) * extent
    return tuple(found), step


@lru_cache(maxsize=1024)
def exchange_padding(
    segments: tuple[Segment, ...], shared: tuple[str, ...], tensor: str, type_: TensorType
) -> tuple[int, ...]:
    """Return the padding of each pitch with the fewest bank conflicts.

    Where an owned axis is inside of other dims, lanes lie along it and hit different banks without padding.
    """
    shape, owned = type_.shape, owned_axes(segments, shared)
    number = next(n for n, s in enumerate(segments) if any(o.tensor == tensor for o in s.outputs))
    places = owned_dims(segments[number], tensor, owned[number])
    wide = [d for d, extent in enumerate(shape) if extent > 1]
    first = next((d for d in wide if places[d] is None), len(shape))
    none = (0,) * len(shape)
    if any(places[d] is not None for d in wide if d > first):
        return none
    unit = shape[-1] if shape[-1] * type_.dtype.size <= WIDEST_BYTES else 1
    accesses = []
    for n, segment in enumerate(segments):
        if every := _addresses(segment, tensor):
            chosen = sorted({*every}, key=str)[:MAX_SIMULATED_ADDRESSES]
            accesses.append((_lane_coordinates(segment, owned[n], chosen), len(every)))
    extents = [1 if place is not None else extent for place, extent in zip(places, shape, strict=True)]
    padded = wide[:-1][:MAX_PADDED_PITCHES]
    best: tuple[float, int, tuple[int, ...]] | None = None
    for units in product(PADDING_UNITS, repeat=len(padded)):
        padding = list(none)
        for d, count in zip(padded, units, strict=True):
            padding[d] = count * unit
        pitches, size = _padded_pitches(extents, padding)
        if int(size) > MAX_PADDED_SHARE * prod(extents):
            continue
        cycles = sum(times * _cycles(lanes @ np.array(pitches), unit, type_.dtype.size) for lanes, times in accesses)
        found = cycles, int(size), tuple(padding)
        best = found if best is None else min(best, found)
    return best[2] if best else none


def _addresses(segment: Segment, tensor: str) -> list[tuple[Index, ...]]:
    """Return the places at which a segment writes and reads a tensor."""
    written = [o.write for o in segment.outputs if o.tensor == tensor]
    return [*written, *dict.fromkeys(r.indices for o in segment.outputs for r in reads(o.body) if r.tensor == tensor)]


def _lane_coordinates(
    segment: Segment, owned: Sequence[int], places: Sequence[tuple[Index, ...]]
) -> np.ndarray[Any, Any]:
    """Return the coordinates of the elements that the lanes of a warp access, for each place: the last axis first."""
    order = [(axis, SIMULATED_BLOCK if n in owned else axis.extent) for n, axis in enumerate(segment.axes)]
    found = np.empty((len(places), LANES, len(places[0])), dtype=np.int64)
    for lane in range(LANES):
        rest, at = lane, dict[Var, int]()
        for axis, extent in reversed(order):
            rest, at[axis] = divmod(rest, extent)
        for number, place in enumerate(places):
            found[number, lane] = [evaluate(index, at) for index in place]
    return found


def _cycles(addresses: np.ndarray[Any, Any], unit: int, size: int) -> float:
    """Return the mean cycles of a warp's accesses to `unit` elements of `size` bytes; a row has those of its lanes."""
    together = min(LANES, BYTES_OF_BANKS // (unit * size))
    unit *= max(1, BYTES_OF_BANKS // (LANES * unit * size))  # elements of a bank
    words = (addresses // unit).reshape(-1, together)
    worst = [max(Counter(word % together for word in {*row}).values()) for row in words.tolist()]
    return sum(worst) / len(addresses)
