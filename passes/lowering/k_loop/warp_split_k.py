"""Warp split-K: warps sum disjoint K slices, then combine them.

    warp 0: rows 0-15, steps 0, 2, ..   ->  sums  \\
                                                    shared memory  ->  warp 0: rows 0-7, warp 1: rows 8-15
    warp 1: rows 0-15, steps 1, 3, ..   ->  sums  /

The threads of a tile of results then hold smaller tiles: the dim that is not contiguous in memory is divided first, so
that neighbours stay together. The functions of sizes take numbers, or arrays of them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from attrs import evolve

from ....ir import (
    Accumulate,
    Barrier,
    Define,
    Index,
    Load,
    Reduction,
    RegisterRead,
    SegmentSchedule,
    SharedBuffer,
    Store,
    TileDim,
    Var,
    as_index,
    delinearise,
)
from ...geometry import contiguous_side, partial_sum_elements, partial_sum_pitch, result_shares, result_vector
from ..layout import Frame, divide_tile, thread_guards
from ..segment_state import SegmentState

#: A number, or an array with one entry per candidate schedule.
_Size: TypeAlias = Any


def warp_sum_register(reduction: Reduction, schedule: SegmentSchedule) -> str:
    """Return the register name of a thread's sums.

    It is the reduction's own, or that of its part of the depth.
    """
    return f"{reduction.name}.warp" if schedule.atomic and schedule.reduction_threads > 1 else reduction.name


def combine_warps(state: SegmentState, reduction: Reduction) -> None:
    """Emit the exchange of sums between warps.

    The frame that follows shares the results among all threads of the block.
    """
    frame, dtype = state.frame, state.group.tensors[reduction.name].dtype
    loop, dims = frame.schedule.atomic, frame.schedule.dims
    assert loop is not None, "warps divide the depth of atoms"
    fast = contiguous_side(frame.segment, [d.axes for d in dims], loop.rows, loop.columns)
    slow = loop.rows + loop.columns - fast
    lanes, blocks = frame.schedule.reduction_threads, (dims[fast].block, dims[slow].block)
    size: int = partial_sum_elements(*blocks, fast == loop.rows, lanes)
    pitch: int = partial_sum_pitch(blocks[0], fast == loop.rows)
    buffer = SharedBuffer(f"{frame.prefix}parts", dtype, size)
    state.layout.buffers[buffer.name] = buffer
    at = tuple(as_index(u) for u in frame.tiles)

    def partial_index(part: Var) -> Index:
        return as_index(part) * (size // lanes) + at[slow] * pitch + at[fast]

    sums = RegisterRead(warp_sum_register(reduction, frame.schedule), at, dtype)
    store = Store("shared", buffer.name, partial_index(frame.lane), sums, dtype, ())
    state.items += [state.phase("compute", "parts", (store,), (), state.shares), Barrier()]
    state.frame = _joint_frame(state, fast, slow)
    state.shares = {s.var: s for s in state.frame.shares}
    part = Var(f"{frame.prefix}p", lanes)
    load = Load("shared", buffer.name, partial_index(part), dtype)
    roots = (state.initialise(reduction), Accumulate(reduction.name, at, reduction.combine, load, (part,), dtype))
    state.items.append(state.phase("compute", "joined", roots, (part,), state.shares))


def _joint_frame(state: SegmentState, fast: int, slow: int) -> Frame:
    """Return the frame in which all threads share the results, those along the `fast` dim next to each other."""
    frame, layout = state.frame, state.layout
    dims = list(frame.schedule.dims)
    widest = state.target.vector_bytes // min(state.group.tensors[o.tensor].dtype.size for o in frame.segment.outputs)
    parts = result_shares(dims[fast].thread, dims[slow].thread, frame.schedule.reduction_threads)
    for d, share in zip((fast, slow), map(int, parts), strict=True):
        dims[d] = _divide_dim(dims[d], share, widest if d == fast else 1)
    counts = dims[slow].threads, dims[fast].threads
    threads = [Var(f"{frame.prefix}g{d}", dim.threads) for d, dim in enumerate(dims)]
    places = delinearise(as_index(layout.thread) % (counts[0] * counts[1]), counts)
    for d, place in zip((slow, fast), places, strict=True):
        layout.defines.append(Define(threads[d], place))
    shares, unrolled = divide_tile(dims, frame.tiles, threads, f"{frame.prefix}d")
    schedule = evolve(frame.schedule, dims=tuple(dims), reduction_threads=1)
    return evolve(
        frame,
        schedule=schedule,
        shares=shares,
        unrolled=unrolled,
        lane=Var(frame.lane.name, 1),
        when=thread_guards(layout, schedule.threads),
    )


def _divide_dim(dim: TileDim, share: int, widest: int) -> TileDim:
    thread = dim.thread // share
    return evolve(dim, thread=thread, vector=int(result_vector(thread, widest)))
