"""Column sums: threads accumulate elements of the rows of a part.

A block takes the rows one after another. Each thread holds the same elements of every row, so the sums of columns need
no other thread until the last row:

    for each tile of rows:  acc = sum over r of x[i, r];   y[i, r] = f(x[i, r], acc);   w[r] += g(x[i, r], acc)
    p[part, r] = w[r]

With several stages, rows of later tiles are copied asynchronously to a ring in shared memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from ....ir import (
    Barrier,
    Commit,
    Guard,
    Index,
    Initialise,
    Item,
    Load,
    Loop,
    Output,
    Phase,
    Read,
    ReduceDim,
    RegisterRead,
    SharedBuffer,
    Store,
    Var,
    Wait,
    as_index,
    linearise,
    substitute,
)
from ...geometry import row_reads, single_elements
from ..index_values import resolve, strides_of, value_of
from ..layout import Frame
from ..outputs import column_register
from ..segment_state import SegmentState, row_share


def emit_column_sums(state: SegmentState, lower_rows: Callable[[SegmentState], None]) -> None:
    """Emit a loop over a part's tiles, and its sums' stores."""
    frame = state.frame
    (dim,), (row,) = frame.schedule.dims, {d for r in frame.schedule.reductions for d in r.dims}
    begin = [_initialise(state, output, row) for output in frame.segment.column_sums]
    state.items.append(state.phase("compute", "columns", begin, (), {}))
    items, turn = state.items, Var(f"{frame.prefix}turn", dim.tiles)
    state.items = []
    local, stages = Var(f"{frame.prefix}w", row.block_k), min(frame.schedule.reductions[0].stages, dim.tiles)
    if stages > 1:
        items += _begin_ring(state, row, local, turn, stages)
    state.frame = _at_tile(frame, as_index(turn))
    lower_rows(state)
    body, state.items, state.frame = tuple(state.items), items, frame
    state.items += [Loop(turn, body)] if turn.extent > 1 else body
    share, unrolled = row_share(frame, local)
    stores = [_store(state, output, row, local) for output in frame.segment.column_sums]
    state.items.append(state.phase("exit", "parts", stores, unrolled, {local: share}))


def _at_tile(frame: Frame, tile: Index) -> Frame:
    """Return a frame that begins at a tile of the block's part."""
    (dim,) = frame.schedule.dims
    return evolve(frame, starts=(frame.starts[0] + tile * dim.block,))


def _begin_ring(state: SegmentState, row: ReduceDim, local: Var, turn: Var, stages: int) -> list[Item]:
    """Return the copies of the first tiles; each tile begins with the wait for its own, and those of a later one."""
    (dim,) = state.frame.schedule.dims
    first, later = Var(f"{turn.name}copy", stages - 1), as_index(turn) + (stages - 1)
    segment = state.frame.segment
    found = row_reads(segment)
    for number, read in enumerate(found):
        kind = state.group.tensors[read.tensor].dtype
        name = f"{state.frame.prefix}row{number}"
        state.layout.buffers[name] = SharedBuffer(name, kind, stages * dim.block * local.extent)
        state.row_caches[read] = state.layout.buffers[name]
    before, inside = ([_copy(state, read, row, local, t, stages) for read in found] for t in (as_index(first), later))
    copies: tuple[Item, ...] = (*before, Commit())
    for read in found:
        buffer = state.row_caches[read]
        state.held[read] = Load(
            "shared", buffer.name, _slot(state, as_index(turn), as_index(local), stages), buffer.dtype
        )
        for single, place in single_elements(segment, read):
            state.held[single] = Load("shared", buffer.name, _slot(state, as_index(turn), place, stages), buffer.dtype)
    state.items += [Wait(stages - 2), Barrier(), *inside, Commit()]
    return [Loop(first, copies)] if first.extent > 1 else [*copies]


def _slot(state: SegmentState, tile: Index, local: Index, stages: int) -> Index:
    """Return the place of a row's element in the ring."""
    (dim,), (row,) = state.frame.schedule.dims, state.frame.tiles
    length = state.frame.schedule.reductions[0].dims[0].block_k
    return ((tile % stages) * dim.block + as_index(row)) * length + local


def _copy(state: SegmentState, read: Read, row: ReduceDim, local: Var, tile: Index, stages: int) -> Phase:
    """Return the phase that copies a tile's rows, where there is such a tile."""
    frame, (dim,) = state.frame, state.frame.schedule.dims
    share, unrolled = row_share(frame, local)
    state.frame = _at_tile(frame, tile)
    value = value_of(read, state.context(state.bind((row,), (local,), (Index(),)), {}))
    state.frame, buffer, exists = frame, state.row_caches[read], Guard(tile, 0, dim.tiles)
    store = Store("shared", buffer.name, _slot(state, tile, as_index(local), stages), value, buffer.dtype)
    asynchronous = state.target.async_copy or not state.target.lockstep
    every = tuple(v for v in unrolled if v.extent > 1) + frame.unrolled
    shares, when = (*(s for s in frame.shares), share), () if exists.always else (exists,)
    copied = asynchronous and isinstance(value, Load) and value.fill == 0
    return Phase("fetch", f"{buffer.name}copy", (store,), every, shares, when, copied)


def _initialise(state: SegmentState, output: Output, row: ReduceDim) -> Initialise:
    """Return the identities that the elements of a thread begin with."""
    dtype = state.group.tensors[output.tensor].dtype
    shape = (row.block_k // state.frame.schedule.reduction_threads,)
    return Initialise(column_register(output), shape, str(output.across), dtype)


def _store(state: SegmentState, output: Output, row: ReduceDim, local: Var) -> Store:
    """Return the store of a part's sums, at the place of its first row."""
    binding = state.bind((row,), (local,), (Index(),))
    context, first = state.context(binding, {}), {tile: Index() for tile in state.frame.tiles}
    places = [resolve(substitute(substitute(w, binding.places), first), context) for w in output.write]
    address = linearise(places, strides_of(output.tensor, context))
    dtype = state.group.tensors[output.tensor].dtype
    inside = tuple(guard for var, guard in binding.valid.items() if var == local)
    value = RegisterRead(column_register(output), (as_index(local),), dtype)
    return Store("global", output.tensor, address, value, dtype, inside)
