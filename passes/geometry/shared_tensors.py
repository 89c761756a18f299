"""Boxes in shared memory of tensors passed between segments.

A segment leaves its block's elements of each parallel axis, and whole rows where reduction threads hold rows. Such rows
have a pitch of an odd multiple of 16 bytes, so that threads that read a column of vectors hit different banks. A tensor
that reduction threads compute from rows, element by element, replaces its source in place: each thread reads its own
elements before it writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...ir import WIDEST_BYTES, DType, FusedGroup, Segment, as_index, reads
from .footprint import Count, ceil_div


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
    several = [d for d, extent in enumerate(shape) if extent > 1]
    padded = {d + 1 for d in several[:-2]} if not is_walked_by_rows(group, tensor) else {len(shape) - 1}
    found: list[Count] = []
    step: Count = 1
    for d in reversed(range(len(shape))):
        found.insert(0, step)
        step = step * extents[d]
        step = row_pitch(step, size) if d in padded else step
    return tuple(found), step


def extents_of(segment: Segment, tensor: str, blocks: Sequence[Count], row: Count) -> list[Count]:
    """Return a block's elements along each dim of an output.

    `blocks` are its elements of the axes, `row` those of a row.
    """
    along = row_dim(segment, tensor)
    return [row if d == along else 1 if n is None else blocks[n] for d, n in enumerate(axis_places(segment, tensor))]
