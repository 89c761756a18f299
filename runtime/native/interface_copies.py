"""Copies between memory of a caller and internal places of a plan.

A caller's tensor is dense. Where the plan's tensor is too, alone in its buffer and written by no other, kernels use the
caller's memory (*direct*); otherwise the tensor is copied row by row:

    x: f32[2, 3] inside y: f32[2, 8]   ->   2 rows of 12 bytes, 12 bytes after each other here and 32 there
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from attrs import evolve, frozen

from ...backends import BlockAddress
from ...ir import PlanError, StateTensor, Storage, TensorType, quote
from ..plan import Plan, written_buffers

#: Copies of rows that one tensor may take: each is a launch of its own.
MAX_ROW_COPIES = 1 << 12


@frozen
class RowCopy:
    """Copy of `height` rows of `width` bytes.

    Pitches are the bytes from row to row.
    """

    source: BlockAddress
    target: BlockAddress
    width: int
    height: int
    source_pitch: int
    target_pitch: int

    def backwards(self) -> RowCopy:
        """Return the copy in the other direction."""
        return RowCopy(self.target, self.source, self.width, self.height, self.target_pitch, self.source_pitch)


def is_dense(type_: TensorType, storage: Storage) -> bool:
    """Return whether a tensor lies in row-major order without gaps."""
    pairs = zip(storage.strides, type_.strides, type_.shape, strict=True)
    return 0 in type_.shape or all(a == b for a, b, extent in pairs if extent != 1)


def direct_tensors(plan: Plan) -> tuple[set[str], set[str]]:
    """Return the inputs and outputs that kernels use in caller's memory."""
    constant = {plan.storages[name].buffer for name in plan.constants}
    written = set(written_buffers(plan)) - {plan.storages[tensor.input].buffer for tensor in updated_state(plan)}
    readers = Counter(plan.storages[name].buffer for name in plan.inputs)
    inputs = {
        name
        for name in plan.inputs
        if _is_whole(plan, name) and readers[(b := plan.storages[name].buffer)] == 1 and b not in written | constant
    }
    taken = set(readers) | constant
    outputs = set[str]()
    for name in plan.outputs:
        if _is_whole(plan, name) and plan.storages[name].buffer not in taken:
            outputs.add(name)
            taken.add(plan.storages[name].buffer)
    return inputs, outputs


def updated_state(plan: Plan) -> tuple[StateTensor, ...]:
    """Return the state that kernels update in place."""
    in_place = plan.in_place
    return tuple(t for t in plan.interface.state.values() if in_place.get(t.input) == t.output)


def _is_whole(plan: Plan, name: str) -> bool:
    type_, storage = plan.types[name], plan.storages[name]
    whole = plan.buffers[storage.buffer].nbytes == type_.nbytes
    return whole and storage.start() == 0 and storage.by == 0 and is_dense(type_, storage)


def row_copies(plan: Plan, name: str, place: BlockAddress, caller: BlockAddress) -> Iterator[RowCopy]:
    """Yield the copies from a caller's dense tensor to its place.

    Raises `PlanError` where these are too many.
    """
    type_, storage = plan.types[name], plan.storages[name]
    size = type_.dtype.size
    if 0 in type_.shape:
        return
    dims = _merged_dims(type_, storage)
    width = size
    if dims and dims[-1][1] == 1:
        width *= dims.pop()[0]
    rows = bool(dims) and dims[-1][1] * size >= width  # a dim that is repeated, or interleaved, is copied in pieces
    height, theirs, ours = dims.pop() if rows else (1, 0, 0)
    outer = [extent for extent, *_ in dims]
    count = 1
    for extent in outer:
        count *= extent
    if count > MAX_ROW_COPIES:
        raise PlanError(
            f"plan {quote(plan.name)}: {quote(name)} would be copied in {count:,} pieces, expected at most "
            f"{MAX_ROW_COPIES:,}",
            hint="let the model end with a contiguous copy of it",
        )
    for at in product(*map(range, outer)):
        there = sum(i * stride for i, (_, stride, _) in zip(at, dims, strict=True)) * size
        here = sum(i * stride for i, (_, _, stride) in zip(at, dims, strict=True)) * size
        yield RowCopy(
            evolve(caller, offset=caller.offset + here),
            evolve(place, offset=place.offset + there),
            width,
            height,
            max(width, ours * size),
            max(width, theirs * size),
        )


def _merged_dims(type_: TensorType, storage: Storage) -> list[tuple[int, int, int]]:
    """Return extent, stride of the plan and stride of the caller of each dim; dims that continue another are merged."""
    merged: list[tuple[int, int, int]] = []
    for extent, plan_stride, dense_stride in zip(type_.shape, storage.strides, type_.strides, strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * plan_stride:
            merged[-1] = merged[-1][0] * extent, plan_stride, dense_stride
        else:
            merged.append((extent, plan_stride, dense_stride))
    return merged
