"""Lowering: a fused group and a schedule become kernel IR, phases over the block's box (DeepCuts sections 5.1 and 5.2).

Each segment contributes, per reduction, a loop of *fetch* and *compute* phases, and an *exit* phase with the epilogue
and the stores. Segments are concatenated with a barrier between them (shared-memory-level fusion); within a segment
values stay in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from .frames import Frame, lay_out
from .kept_rows import kept_trips
from .meetings import BINS, bins_of, emit_meeting
from .outputs import emit_output
from .reductions import kept_reduction, looped_reduction, resident_reduction
from .segment_state import SegmentState
from .shared_loops import may_share, share_loop


def lower(group: FusedGroup, schedule: Schedule, storages: Mapping[str, Storage], target: Target) -> Kernel:
    """Return the kernel IR of a group under a schedule, block level.

    Raises `PassError` where a tensor shared between segments is not read by an affine box.
    """
    layout = lay_out(group, schedule, target)
    items: list[Item] = []
    aligned = {t: _alignment(t, group, storages) for t in (*group.inputs, *group.outputs)}
    for frame in layout.frames:
        if items:
            items.append(Barrier())
        state = SegmentState(layout, frame, storages, target, aligned)
        _lower_segment(state)
        items.extend(state.items)
    return Kernel(
        blocks=schedule.blocks,
        threads=schedule.threads,
        defines=tuple(layout.defines),
        shared=tuple(layout.buffers.values()),
        items=tuple(items),
        reads=group.inputs,
        writes=group.outputs,
        dtypes={t: group.tensors[t].dtype for t in (*group.inputs, *group.outputs, *group.constants)},
        aligned=aligned,
        tables=dict(layout.tables.values),
        constants=group.constants,
        min_blocks=schedule.min_blocks,
    )


def _alignment(tensor: str, group: FusedGroup, storages: Mapping[str, Storage]) -> int:
    """Bytes that a tensor's first element is aligned to: buffers are to 16 bytes, a view's offset may not be."""
    offset = storages[tensor].offset * group.tensors[tensor].dtype.size if tensor in storages else 0
    return gcd(offset, WIDEST_BYTES)


def _lower_segment(state: SegmentState) -> None:
    """Emit the reductions in order, then the outputs. A row that fits one trip joins one phase, so that its loads are
    shared.
    """
    state.shares = {s.var: s for s in state.frame.shares}
    if state.frame.schedule.meets:
        state.layout.buffers[BINS] = bins_of(state.frame.segment, state.group, state.frame.schedule.dims)
        emit_meeting(state)
        return
    for number, shared in _loops(state.frame):
        schedule = state.frame.schedule.reductions[number]
        if _is_resident(state.frame, schedule):
            for reduction in shared:
                resident_reduction(state, reduction, schedule)
            continue
        state.flush(f"row{number}")
        prefix = f"{state.frame.prefix}r{number}"
        if len(schedule.dims) == 1 and kept_trips(state.frame.schedule, schedule.dims[0]):
            kept_reduction(state, shared, schedule.dims[0], prefix)
        else:
            looped_reduction(state, shared, schedule, prefix)
    for number, output in enumerate(state.frame.segment.outputs):
        emit_output(state, output, f"out{number}")
    state.flush("exit")


def _loops(frame: Frame) -> list[tuple[int, list[Reduction]]]:
    """Return the reductions that each loop serves, with the position of the first."""
    found: list[tuple[int, list[Reduction]]] = []
    schedules = frame.schedule.reductions
    for number, (reduction, may) in enumerate(zip(frame.segment.reductions, may_share(frame.segment), strict=True)):
        if may and share_loop(schedules[number], schedules[number - 1]):
            found[-1][1].append(reduction)
        else:
            found.append((number, [reduction]))
    return found


def _is_resident(frame: Frame, schedule: ReductionSchedule) -> bool:
    """Whether lanes hold a row in one trip. Where some threads take no part they must still meet the others when lanes
    are combined.
    """
    return (
        not schedule.staging
        and all(d.trips == 1 for d in schedule.dims)
        and frame.schedule.lanes > 1
        and not schedule.atom
        and not frame.when
    )
