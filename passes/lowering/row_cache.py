"""Shared-memory row cache: rows that several statements read, copied once.

A softmax reads its row three times: for the maximum, for the sum, for the results. Where reduction threads hold the row
in one trip, the three share their loads; a longer one would come from global memory three times. Its first elements, in
whole trips, as many as the schedule says, are copied asynchronously to shared memory; each statement then has a loop
over the trips in shared memory, and one over the remaining trips:

    max over x[n, r]; sum over exp(x[n, r] - max); y[n, r] = exp(x[n, r] - max) / sum
        ->  kept[r] = x[n, r]; max over kept[r]; sum over exp(kept[r] - max); y[n, r] = exp(kept[r] - max) / sum

The cache has the element type of its tensor. The first statement waits trip by trip, while the copies of later trips
are in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from attrs import frozen

from ...ir import (
    Barrier,
    Commit,
    Expr,
    Index,
    Item,
    Load,
    Loop,
    Phase,
    Read,
    ReduceDim,
    SegmentSchedule,
    SharedBuffer,
    Store,
    Value,
    Var,
    Wait,
    as_index,
    linearise,
    reads,
    row_major,
)
from ..geometry import cached_reads, column_run
from .index_values import value_of
from .segment_state import SegmentState, row_share


def block_trips(schedule: SegmentSchedule, dim: ReduceDim) -> int:
    """Return the trips of a block over its part of a row."""
    return -(-dim.trips // schedule.cluster)


def cached_trips(schedule: SegmentSchedule, dim: ReduceDim) -> int:
    """Return how many trips over a row read the row cache.

    It is 0 where the row takes one trip.
    """
    trips = block_trips(schedule, dim)
    return min(trips, schedule.row_cache // dim.block_k) if trips > 1 else 0


@frozen
class RowPart:
    """Consecutive trips over a row.

    `step` numbers them, `start` is the row's element that a trip begins with, `staged` are the reads that shared memory
    serves. `before` comes before the trips, `inside` begins each, `after` follows them.
    """

    step: Var
    start: Index
    staged: dict[Expr, Value]
    before: tuple[Item, ...] = ()
    inside: tuple[Item, ...] = ()
    after: tuple[Item, ...] = ()

    def items(self, *phases: Phase) -> Iterator[Item]:
        """Yield the part's items, the phases of each trip."""
        body = (*self.inside, *phases)
        yield from self.before
        yield from (Loop(self.step, body),) if self.step.extent > 1 else body
        yield from self.after


def row_parts(state: SegmentState, bodies: Sequence[Expr], dim: ReduceDim, local: Var, name: str) -> list[RowPart]:
    """Return the trips of a statement over a row.

    `local` numbers the elements of a trip. First come the trips of the row cache, with their copies unless an earlier
    statement made them, then the others.
    """
    kept, trips = cached_trips(state.frame.schedule, dim), block_trips(state.frame.schedule, dim)
    first = state.frame.rank * trips
    parts = [_kept_part(state, bodies, dim, local, Var(f"{name}kept", kept), first)] if kept else []
    if trips > kept:
        step = Var(f"{name}it", trips - kept)
        parts.append(RowPart(step, (first + step + kept) * dim.block_k, {}))
    return parts


def _kept_part(
    state: SegmentState, bodies: Sequence[Expr], dim: ReduceDim, local: Var, step: Var, first: Index
) -> RowPart:
    known = cached_reads(state.frame.segment, (*state.group.shared, *state.group.constants))
    used = [r for r in known if any(r in reads(body) for body in bodies)]
    start = (first + step) * dim.block_k
    staged: dict[Expr, Value] = {}
    # Rows that later statements read are in flight with those of the first one.
    copies = [] if all(read in state.row_caches for read in used) else [r for r in known if r not in state.row_caches]
    for read in copies:
        state.row_caches[read] = _buffer(state, read, step.extent * dim.block_k, len(state.row_caches))
    for read in used:
        buffer = state.row_caches[read]
        staged[read] = Load("shared", buffer.name, _cache_index(state, as_index(step), local), buffer.dtype)
    if not copies:
        return RowPart(step, start, staged)
    filling = Var(f"{step.name}copy", step.extent)
    phases = [_copy(state, read, dim, local, as_index(filling), first) for read in copies]
    asynchronous = any(phase.asynchronous for phase in phases)
    body = (*phases, *((Commit(),) if asynchronous else ()))
    before: tuple[Item, ...] = (Loop(filling, body),) if filling.extent > 1 else body
    # An empty group in each trip keeps the number of groups in flight the same from the first trip to the last. Threads
    # read their own copies.
    inside = (Commit(), Wait(step.extent)) if asynchronous else ()
    return RowPart(step, start, staged, before, inside, (Barrier(),))


def _buffer(state: SegmentState, read: Read, elements: int, number: int) -> SharedBuffer:
    rows = prod(dim.block for dim in state.frame.schedule.dims)
    buffer = SharedBuffer(f"{state.frame.prefix}row{number}", state.group.tensors[read.tensor].dtype, rows * elements)
    state.layout.buffers[buffer.name] = buffer
    return buffer


def _cache_index(state: SegmentState, trip: Index, local: Var) -> Index:
    """Return the index of an element in the row cache.

    The elements of a block's trip are contiguous, row by row, or in the order of threads over columns.
    """
    schedule, place, width = state.frame.schedule, as_index(local), local.extent
    if column_run(state.frame.segment, state.group.shared):
        width = schedule.row_vector
    tiles, extents = map(as_index, state.frame.tiles), (local.extent // width, *(d.block for d in schedule.dims), width)
    return linearise([trip, place // width, *tiles, place % width], (prod(extents), *row_major(extents)))


def _copy(state: SegmentState, read: Read, dim: ReduceDim, local: Var, trip: Index, first: Index) -> Phase:
    """Return the phase that copies a thread's share of a trip, after the `first` one of the block."""
    share, unrolled = row_share(state.frame, local)
    value = value_of(read, state.context(state.bind((dim,), (local,), ((first + trip) * dim.block_k,)), {}))
    buffer = state.row_caches[read]
    store = Store("shared", buffer.name, _cache_index(state, trip, local), value, buffer.dtype)
    asynchronous = state.target.async_copy or not state.target.lockstep
    every = tuple(v for v in unrolled if v.extent > 1) + state.frame.unrolled
    shares = (*state.shares.values(), share)
    copied = asynchronous and isinstance(value, Load) and value.fill == 0
    return Phase("fetch", f"{buffer.name}copy", (store,), every, shares, state.frame.when, copied)
