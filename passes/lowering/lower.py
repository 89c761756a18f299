"""Lower a fused group and a schedule to kernel IR.

A kernel is a sequence of phases over the block's box (DeepCuts sections 5.1 and 5.2). Each segment contributes, per
reduction, a loop of *fetch* and *compute* phases, and an *exit* phase with the epilogue and the stores. Segments are
concatenated with a barrier between them (shared-memory-level fusion); within a segment values stay in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from ...ir import (
    WIDEST_BYTES,
    Barrier,
    FusedGroup,
    Item,
    Kernel,
    Reduction,
    ReductionSchedule,
    Schedule,
    Storage,
    Target,
)
from ..geometry import is_register_chain, joins_loop, multiplies_one_row, row_reads, walks_rows
from .k_loop import hoist_loads, split_prologue, streaming_blocks, walk_rows
from .layout import BlockLayout, Frame, lay_out
from .outputs import emit_outputs
from .privatised_scatter import BINS, bins_buffer, emit_privatised_scatter
from .reductions import cached_reduction, looped_reduction, resident_reductions
from .row_cache import block_trips, cached_trips
from .segment_state import SegmentState
from .streaming import (
    emit_column_sums,
    lower_chained_contraction,
    lower_online_softmax,
    lower_register_chain,
    lower_tile_chain,
)
from .threads import fix_roundings

#: Registers of a thread from which on a compiler has to know the blocks of an SM: it else takes about 168 at most.
MANY_REGISTERS = 192


def lower(group: FusedGroup, schedule: Schedule, storages: Mapping[str, Storage], target: Target) -> Kernel:
    """Return the block-level kernel IR of a group under a schedule.

    Raises `PassError` where a tensor shared between segments is not read by an affine box.
    """
    layout = lay_out(group, schedule, target)
    aligned = {t: _alignment(t, group, storages) for t in (*group.inputs, *group.outputs)}
    states = [SegmentState(layout, frame, storages, target, aligned) for frame in layout.frames]
    if is_register_chain(schedule.segments):
        items = (lower_register_chain if len(states) > 2 else lower_tile_chain)(layout, states)
    elif layout.part is None:
        items = _concatenate_segments(states)
    else:
        items = (lower_online_softmax if len(states) > 2 else lower_chained_contraction)(layout, states, _lower_segment)
    kernel = Kernel(
        blocks=schedule.blocks,
        threads=schedule.threads,
        defines=tuple(layout.defines),
        shared=tuple(layout.buffers.values()),
        items=(*layout.opening, *items),
        reads=group.inputs,
        writes=group.outputs,
        dtypes={t: group.tensors[t].dtype for t in (*group.inputs, *group.outputs, *group.constants)},
        aligned=aligned,
        constants=group.constants,
        min_blocks=max(schedule.min_blocks, _resident_blocks(layout, target)),
        maps=tuple(layout.maps),
        producer=tuple(layout.producer),
        launched=layout.launched,
        teams=layout.teams,
        cluster=schedule.segments[-1].cluster,
    )
    return fix_roundings(kernel) if target.invariant else kernel


def _concatenate_segments(states: Sequence[SegmentState]) -> list[Item]:
    """Return the items of segments, with a barrier between them. While reduction threads work on rows, the first copies
    of the next segment's K loop are in flight.
    """
    for state in states:
        _lower_segment(state)
    parts = [state.items for state in states]
    first = hoist_loads(states, parts)
    for number, state in enumerate(states[1:-1], start=1):
        if any(o.extra for o in state.frame.segment.outputs):
            early, parts[number + 1] = split_prologue(parts[number + 1])
            parts[number] = [*early, *parts[number]]
    items = [*first, *parts[0]]
    for part in parts[1:]:
        items += [Barrier(), *part]
    return items


def _resident_blocks(layout: BlockLayout, target: Target) -> int:
    """Return the blocks of an SM that a compiler has to know, 0 for none.

    It knows the registers that warps exchange only then. Where shared memory leaves a chain's threads many registers,
    they load more elements at once on their way to shared memory. Reduction threads that multiply have many loads in
    flight: a compiler delays most of them to save registers, where it does not know that there are enough. A small grid
    leaves them more.
    """
    if any(producer.registers for producer in layout.producer):
        return 1
    if any(map(_streams_by_threads, layout.frames)):
        return streaming_blocks(layout.schedule, target)
    if layout.producer or not is_register_chain(layout.schedule.segments):
        return 0
    shared = sum(buffer.nbytes for buffer in layout.buffers.values())
    fitting = max(1, target.shared_per_sm // (shared + target.shared_reserved))
    return fitting if fitting * layout.schedule.threads * MANY_REGISTERS <= target.registers_per_sm else 0


def _streams_by_threads(frame: Frame) -> bool:
    """Return whether threads have many loads in flight: of the factors of a product, of rows that they walk, or of
    several rows in a loop.
    """
    schedule = frame.schedule
    if walks_rows(frame.segment, schedule):
        return True
    if schedule.reduction_threads <= 1 or any(loop.mma for loop in schedule.reductions):
        return False
    dims = [loop.dims[0] for loop in schedule.reductions if not _is_resident(frame, loop)]
    looped = any(block_trips(schedule, dim) > cached_trips(schedule, dim) for dim in dims)
    return multiplies_one_row(frame.segment) or (looped and len(row_reads(frame.segment)) > 1)


def _alignment(tensor: str, group: FusedGroup, storages: Mapping[str, Storage]) -> int:
    """Return the bytes that a tensor's first element is aligned to: 16 for buffers, fewer where a view's offset breaks
    it.
    """
    offset = storages[tensor].offset * group.tensors[tensor].dtype.size if tensor in storages else 0
    return gcd(offset, WIDEST_BYTES)


def _lower_segment(state: SegmentState) -> None:
    """Emit the reductions in order, then the outputs. A row that one trip covers joins one phase, which shares its
    loads.
    """
    state.shares = {s.var: s for s in state.frame.shares}
    if state.frame.schedule.privatised:
        state.layout.buffers[BINS] = bins_buffer(state.frame.segment, state.group, state.frame.schedule.dims)
        emit_privatised_scatter(state)
        return
    if walks_rows(state.frame.segment, state.frame.schedule):
        _lower_reductions(state, [(n, r) for n, r in _group_reductions(state.frame) if not r[0].along])
        walk_rows(state)
    elif state.frame.segment.column_sums:
        emit_column_sums(state, _lower_rows)
    else:
        _lower_rows(state)


def _lower_rows(state: SegmentState) -> None:
    """Emit the reductions of rows in order, then the outputs."""
    _lower_reductions(state, _group_reductions(state.frame))
    emit_outputs(state, state.frame.segment.outputs)


def _lower_reductions(state: SegmentState, found: Sequence[tuple[int, list[Reduction]]]) -> None:
    """Emit reductions that share loops."""
    for number, shared in found:
        schedule = state.frame.schedule.reductions[number]
        if _is_resident(state.frame, schedule):
            resident_reductions(state, shared, schedule)
            continue
        state.flush(f"row{number}")
        prefix = f"{state.frame.prefix}r{number}"
        in_parts = state.frame.schedule.cluster > 1 or cached_trips(state.frame.schedule, schedule.dims[0])
        if len(schedule.dims) == 1 and in_parts:
            cached_reduction(state, shared, schedule.dims[0], prefix)
        else:
            looped_reduction(state, shared, schedule, prefix)


def _group_reductions(frame: Frame) -> list[tuple[int, list[Reduction]]]:
    """Return the reductions that each loop serves, with the position of the first."""
    found: list[tuple[int, list[Reduction]]] = []
    schedules = frame.schedule.reductions
    loops, alone = [s.dims for s in schedules], [s.staging or s.mma for s in schedules]
    for number, reduction in enumerate(frame.segment.reductions):
        if joins_loop(frame.segment, number, loops, alone):
            found[-1][1].append(reduction)
        else:
            found.append((number, [reduction]))
    return found


def _is_resident(frame: Frame, schedule: ReductionSchedule) -> bool:
    """Return whether reduction threads hold a row in one trip of each block. Idle threads rule it out: they still reach
    the barrier of the combination.
    """
    return (
        not schedule.staging
        and all(d.trips == frame.schedule.cluster for d in schedule.dims)
        and frame.schedule.reduction_threads > 1
        and not schedule.mma
        and not frame.when
    )
