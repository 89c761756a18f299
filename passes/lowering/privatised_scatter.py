"""Privatised scatter: values combine in shared memory, then in global memory.

Where data determines the elements that values are added to, atomic operations combine them. A block with many values
combines them in shared memory first, which takes a few clocks each, and then combines each element in global memory.

    y[m, at[j]] += x[m, j]   ->   bins[:] = 0;  bins[at[j]] += x[m, j] for each tile of j;  y[m, v] += bins[v]

A block holds every element that its values may belong to: its own tile along axes that equal an index (m), all of the
other dims of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ...ir import (
    COMBINERS,
    Barrier,
    FusedGroup,
    Guard,
    Index,
    Item,
    Literal,
    Load,
    Loop,
    Phase,
    Segment,
    SharedBuffer,
    Store,
    TileDim,
    Var,
    as_index,
    delinearise,
    linearise,
    row_major,
    substitute,
    substitute_guards,
)
from ..geometry import ScatterBins, bin_count, scatter_bins
from .index_values import resolve, strides_of, value_of
from .layout import bind_dims
from .segment_state import SegmentState

#: Name of the shared buffer of bins.
BINS = "bins"


def bins_buffer(segment: Segment, group: FusedGroup, dims: Sequence[TileDim]) -> SharedBuffer:
    """Return the buffer of a block's bins."""
    bins = bin_count(segment, group, [d.axes for d in dims], [d.block for d in dims])
    return SharedBuffer(BINS, group.tensors[segment.outputs[0].tensor].dtype, bins)


def emit_privatised_scatter(state: SegmentState) -> None:
    """Emit the phases of a privatised scatter.

    Bins are initialised to the identity, tiles are combined one by one, and the bins are combined in global memory.
    """
    bins, frame = state.layout.buffers[BINS], state.frame
    meeting = scatter_bins(frame.segment, state.group, [d.axes for d in frame.schedule.dims])
    identity = Literal(COMBINERS[meeting.into].identity(bins.dtype), bins.dtype)
    place, guards, step = _bin_of_thread(state, bins)
    clear = Store("shared", BINS, place, identity, bins.dtype, guards)
    state.items += [_loop(step, Phase("exit", f"{frame.prefix}clear", (clear,), ())), Barrier()]
    turn, phase = _combine_tile(state, meeting)
    state.items += [_loop(turn, phase), Barrier()]
    state.items.append(
        _loop(step, Phase("exit", f"{frame.prefix}leave", (_flush_bin(state, meeting, place, guards),), ()))
    )


def _loop(var: Var, phase: Phase) -> Item:
    return Loop(var, (phase,)) if var.extent > 1 else phase


def _bin_of_thread(state: SegmentState, bins: SharedBuffer) -> tuple[Index, tuple[Guard, ...], Var]:
    """Return a thread's bin at a step over all bins, its guard, and the step."""
    threads = state.layout.schedule.threads
    step = Var(f"{state.frame.prefix}z", -(-bins.elements // threads))
    place = as_index(step) * threads + as_index(state.layout.thread)
    guard = Guard(place, 0, bins.elements)
    return place, () if guard.always else (guard,), step


def _combine_tile(state: SegmentState, meeting: ScatterBins) -> tuple[Var, Phase]:
    """Return the variable of a block's tiles, and the phase that combines the values of one in their bins."""
    frame = state.frame
    turns = next((n for n, dim in enumerate(frame.schedule.dims) if dim.tiles > 1), 0)
    turn = Var(f"{frame.prefix}turn", frame.schedule.dims[turns].tiles)
    starts = list(frame.starts)
    starts[turns] = starts[turns] + as_index(turn) * frame.schedule.dims[turns].block
    state.frame = evolve(frame, starts=tuple(starts))
    binding = state.bind((), (), ())
    state.frame = frame
    (output,) = frame.segment.outputs
    context = state.context(binding, {})
    found = [resolve(substitute(index, binding.places), context) for index in output.write]
    where = [as_index(frame.tiles[n]) if kind == "tile" else found[n] for kind, n in meeting.parts]
    blocks = [dim.block for dim in frame.schedule.dims]
    address = linearise(where, row_major(meeting.extents(blocks)))
    dtype = state.group.tensors[output.tensor].dtype
    guards = (*binding.valid.values(), *substitute_guards(output.guards, binding.places))
    store = Store("shared", BINS, address, value_of(output.body, context), dtype, guards, output.into)
    return turn, state.phase("exit", "meet", (store,), (), {s.var: s for s in frame.shares})


def _flush_bin(state: SegmentState, meeting: ScatterBins, place: Index, guards: tuple[Guard, ...]) -> Store:
    """Return the store that combines a bin with its element of global memory, where the tensor has one."""
    frame, dims = state.frame, state.frame.schedule.dims
    digits = delinearise(place, meeting.extents([dim.block for dim in dims]))
    at = dict(zip(meeting.parts, digits, strict=True))
    held = [n for n in range(len(dims)) if ("tile", n) in at]
    locals_ = [Var(f"{frame.prefix}q{n}", dims[n].block) for n in held]
    places, valid = bind_dims([dims[n] for n in held], locals_, [frame.starts[n] for n in held])
    walked = {local: at["tile", n] for local, n in zip(locals_, held, strict=True)}
    own = {n: substitute(places[axis], walked) for n, axis in meeting.own}
    written = [own[n] if n in own else at["dim", n] for n in range(len(meeting.shape))]
    binding = state.bind((), (), ())
    address = linearise(written, strides_of(meeting.tensor, state.context(binding, {})))
    dtype = state.group.tensors[meeting.tensor].dtype
    exists = substitute_guards(tuple(valid.values()), walked)
    every = (*guards, *exists)
    return Store(
        "global", meeting.tensor, address, Load("shared", BINS, place, dtype, guards), dtype, every, meeting.into
    )
