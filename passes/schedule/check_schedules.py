"""Schedule verifier: named checks, one invariant of a group's schedule each.

They are the scalar counterpart of the rules that enumeration applies to whole columns of candidates. A check yields a
message for every violation. Machine limits are checked only for well-formed schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from math import prod
from typing import TypeAlias

from attrs import frozen

from ...ir import (
    MATH_MODES,
    MMA_INSTRUCTIONS,
    FusedGroup,
    PassError,
    Reduction,
    ReductionSchedule,
    Schedule,
    Segment,
    SegmentSchedule,
    Target,
    TileDim,
    operands,
    streamable_axis,
    streamed_variables,
)
from ..geometry import (
    cached_reads,
    can_stream_rows,
    index_axes,
    is_scatter_only,
    least_block,
    least_chunk,
    mma_faults,
    mma_operands,
    next_power,
)
from ..lowering import lay_out
from ..model import Features, features_of
from .schedule_parameters import MMA_STAGES

#: Most operations of the unrolled body of a loop, per thread: compile time grows superlinearly past it.
MAX_BODY = 4096


@frozen(slots=False)
class Scheduled:
    """A group, its schedule and the machine, with cached derivations."""

    group: FusedGroup
    schedule: Schedule
    target: Target

    @property
    def segments(self) -> Iterator[tuple[Segment, SegmentSchedule]]:
        """Each segment with its schedule."""
        return zip(self.group.segments, self.schedule.segments, strict=False)

    @property
    def dims(self) -> Iterator[tuple[str, TileDim, bool, int]]:
        """Each tile dim with its properties.

        They are its name, itself, whether its segment leaves a tensor in shared memory, and the elements of a matrix
        instruction along it.
        """
        for segment, schedule in self.segments:
            held = any(o.tensor in self.group.shared for o in segment.outputs)
            for d, dim in enumerate(schedule.dims):
                loop = schedule.atomic
                least = 0 if loop is None else least_block(loop.atom, loop.rows, loop.columns, d)
                yield f"dim {'*'.join(a.name for a in dim.axes)}", dim, held, least

    @property
    def loops(self) -> Iterator[tuple[str, Reduction, ReductionSchedule, SegmentSchedule]]:
        """Each reduction: its name, itself, its loop, its segment's schedule."""
        for segment, schedule in self.segments:
            for reduction, loop in zip(segment.reductions, schedule.reductions, strict=False):
                yield f"reduction {reduction.name}", reduction, loop, schedule

    @cached_property
    def features(self) -> Features:
        """Features of the models."""
        return features_of(self.group, self.schedule, self.target)


def check_segments_match(case: Scheduled) -> Iterator[str]:
    """A schedule has one part per segment, one loop per reduction."""
    found, wanted = len(case.schedule.segments), len(case.group.segments)
    if found != wanted:
        yield f"the schedule has {found} segments, expected {wanted}"
        return
    for segment, schedule in case.segments:
        if len(schedule.reductions) != len(segment.reductions):
            yield f"the schedule has {len(schedule.reductions)} reductions, expected {len(segment.reductions)}"


def check_axes_covered(case: Scheduled) -> Iterator[str]:
    """Tile dims hold the parallel axes in order, loops their reduction's."""
    for segment, schedule in case.segments:
        covered = [a for d in schedule.dims for a in d.axes]
        # Matrix instructions take all axes of a class as one dim, in any position.
        atomic = schedule.atomic is not None and {*covered} == {*segment.axes} and len(covered) == len(segment.axes)
        if not atomic and tuple(covered) != segment.axes:
            yield "the tile dims do not cover the parallel axes in order"
    for name, reduction, loop, _ in case.loops:
        if tuple(a for d in loop.dims for a in d.axes) != reduction.reduce:
            yield f"{name}: the reduce dims do not cover its axes in order"


def check_tiles_divide(case: Scheduled) -> Iterator[str]:
    """Block, thread tile and vector are positive and nested multiples."""
    for name, dim, _, _ in case.dims:
        if dim.thread < 1 or dim.vector < 1:
            yield f"{name}: thread tile {dim.thread} and vector {dim.vector} must be positive"
        elif dim.block % dim.thread or dim.thread % dim.vector:
            expected = f"must be a multiple of thread {dim.thread}, and that of vector {dim.vector}"
            yield f"{name}: block {dim.block} {expected}"


def check_tiles_fit(case: Scheduled) -> Iterator[str]:
    """No block is larger than its dim takes.

    Of a tensor in shared memory each axis is a dim.
    """
    for name, dim, held, least in case.dims:
        if not held and dim.block * dim.turns > max(next_power(dim.extent), least):
            yield f"{name}: block {dim.block} exceeds its extent {dim.extent} needlessly"
        if held and len(dim.axes) > 1:
            yield f"{name}: a tensor in shared memory has one dim per axis"


def check_lanes_are_powers(case: Scheduled) -> Iterator[str]:
    """Reduction threads are a power of two, as is the row vector.

    They exchange values by halves.
    """
    for _, schedule in case.segments:
        if not _is_power_of_two(schedule.lanes) or not _is_power_of_two(schedule.row_vector):
            yield f"lanes {schedule.lanes} and row vector {schedule.row_vector} must be powers of two"


def check_warps_placed(case: Scheduled) -> Iterator[str]:
    """A warp layout places all lanes within each dim's threads."""
    size = case.target.warp_size
    for _, schedule in case.segments:
        if not schedule.warp:
            continue
        if len(schedule.warp) != len(schedule.dims) or prod(schedule.warp) != size:
            yield f"the warp map {schedule.warp} must place {size} lanes on {len(schedule.dims)} dims"
        elif any(d.threads % w for d, w in zip(schedule.dims, schedule.warp, strict=True)):
            yield f"the warp map {schedule.warp} does not divide the threads of each dim"


def check_chunks_fit(case: Scheduled) -> Iterator[str]:
    """A trip of a loop takes between one and all elements."""
    for name, _, loop, _ in case.loops:
        for dim in loop.dims:
            if not 1 <= dim.chunk <= max(next_power(dim.extent), least_chunk(loop.atom)):
                yield f"{name}: chunk {dim.chunk} is not between 1 and the extent {dim.extent}"


def check_atoms_known(case: Scheduled) -> Iterator[str]:
    """The matrix instruction of a reduction is in the table."""
    for name, _, loop, _ in case.loops:
        if loop.atom and loop.atom not in MMA_INSTRUCTIONS:
            yield f"{name}: '{loop.atom}' is no atom"


def check_atoms_spread(case: Scheduled) -> Iterator[str]:
    """Threads hold the fragments of a matrix instruction.

    It computes the only reduction of a segment, a sum of products of its rows and columns; partial sums are promoted as
    often as the math mode requires.
    """
    for segment, schedule in case.segments:
        loop = schedule.atomic
        if loop is None or loop.atom not in MMA_INSTRUCTIONS:
            continue
        faults = mma_faults(loop, schedule.dims, schedule.lanes)
        yield from faults
        if len(segment.reductions) != 1:
            yield f"atom {loop.atom}: a segment with atoms has one reduction"
        elif not faults:
            yield from _check_mma_reduction(segment.reductions[0], loop, schedule)


def _check_mma_reduction(reduction: Reduction, loop: ReductionSchedule, schedule: SegmentSchedule) -> Iterator[str]:
    if mma_operands(reduction, schedule.dims[loop.rows].axes, schedule.dims[loop.columns].axes) is None:
        yield f"atom {loop.atom}: reduction {reduction.name} is no sum of products of its rows and columns"
    mode = MATH_MODES.get(reduction.math)
    if mode is not None and mode.every and any(d.chunk > mode.every * schedule.lanes for d in loop.dims):
        yield f"atom {loop.atom}: math mode {reduction.math} promotes partial sums after at most {mode.every} elements"


def check_lanes_share_one_row(case: Scheduled) -> Iterator[str]:
    """Reduction threads share one reduce dim in whole trips.

    They read it straight from memory, except with matrix instructions.
    """
    for name, _, loop, schedule in case.loops:
        step = schedule.lanes * schedule.row_vector
        if step > 1 and (len(loop.dims) != 1 or loop.dims[0].chunk % step):
            yield f"{name}: lanes need one reduce dim whose chunk is a multiple of {step}"
        if step > 1 and loop.staging and (not loop.atom or schedule.row_vector > 1):
            yield f"{name}: a reduction shared by lanes stages nothing"


def check_rows_kept(case: Scheduled) -> Iterator[str]:
    """The row cache holds whole trips over a segment's only row.

    Several statements read the row, and no threads hold it in one trip.
    """
    for segment, schedule in case.segments:
        if not schedule.kept:
            continue
        loops = {d for r in schedule.reductions for d in r.dims}
        if len(loops) != 1 or not cached_reads(segment, (*case.group.shared, *case.group.constants)):
            yield f"{schedule.kept} elements of rows are kept that no two statements share"
        for loop in loops:
            if loop.trips == 1 or schedule.kept % loop.chunk or not 0 < schedule.kept <= loop.trips * loop.chunk:
                yield f"{schedule.kept} elements of rows are kept, not whole ones of {loop.trips} trips of {loop.chunk}"


def check_rows_whole(case: Scheduled) -> Iterator[str]:
    """Reduction threads hold a row with a value per element.

    They hold it in one trip.
    """
    for name, reduction, loop, schedule in case.loops:
        if reduction.along and (schedule.lanes == 1 or loop.staging or any(d.trips > 1 for d in loop.dims)):
            yield f"{name}: lanes do not hold its whole row"


def check_rows_passed_on(case: Scheduled) -> Iterator[str]:
    """All threads of the block hold rows that a later segment reads.

    The reader of an element may then write it. Rows are streamed only where sums can be rescaled, in parts of whole
    chunks of the later loops.
    """
    for segment, schedule in case.segments:
        if not any(o.extra and o.tensor in case.group.shared for o in segment.outputs):
            continue
        if schedule.lanes == 1 or schedule.threads != case.schedule.threads:
            yield f"rows are passed on by {schedule.threads} of {case.schedule.threads} threads"
        parts = {(d.trips > 1, d.chunk) for r in schedule.reductions for d in r.dims}
        later = [d.chunk for r in case.schedule.segments[-1].reductions for d in r.dims]
        if len(parts) > 1 or any(parted and not can_stream_rows(case.group) for parted, _ in parts):
            yield "rows come in parts whose sums cannot be scaled again"
        elif any(parted and chunk % other for parted, chunk in parts for other in later):
            yield f"rows come in parts that are no whole chunks of {later}"


def check_parts_whole(case: Scheduled) -> Iterator[str]:
    """Streamed parts are whole numbers of the later loops' chunks."""
    axis = streamable_axis(case.group)
    if axis is None or len(case.schedule.segments) < 2:
        return
    tile, last = case.schedule.segments[0].dims[axis], case.schedule.segments[-1]
    rows = streamed_variables(case.group)
    along = [d for r in last.reductions for d in r.dims if rows & {*d.axes}]
    chunks = [d.chunk for d in along]
    broken = any(tile.block % d.chunk or len(d.axes) > 1 for d in along)
    if tile.blocks > 1 and (broken or last.lanes > 1):
        yield f"parts of {tile.block} elements are no whole chunks of {chunks}"


def check_privatised_scatter(case: Scheduled) -> Iterator[str]:
    """A privatised scatter belongs to a segment that only combines values.

    Only there do blocks take several tiles, along one dim; the axes of each dim all equal an index of the output, or
    none does.
    """
    for segment, schedule in case.segments:
        turned = [d for d in schedule.dims if d.turns != 1]
        if any(d.turns < 1 for d in turned) or len(turned) > 1 or (turned and not schedule.meets):
            yield f"turns {[d.turns for d in schedule.dims]}, where values meet: {schedule.meets}"
        if not schedule.meets:
            continue
        if not is_scatter_only(segment):
            yield "values meet that are not combined in memory, or not by them alone"
            continue
        own = index_axes(segment, case.group)
        if any(0 < len(own & {*d.axes}) < len(d.axes) for d in schedule.dims) or any(own & {*d.axes} for d in turned):
            yield "a tile dim has axes that name an element by themselves, and others, or is taken in turns"


def check_staging_known(case: Scheduled) -> Iterator[str]:
    """Pipelines have a few stages, and staged operands are distinct."""
    held = [r.name for segment, _ in case.segments for r in segment.reductions]
    for name, reduction, loop, _ in case.loops:
        if not 1 <= loop.stages <= MMA_STAGES[-1]:
            yield f"{name}: {loop.stages} stages, expected 1 to {MMA_STAGES[-1]}"
        chosen, count = [s.operand for s in loop.staging], len(operands(reduction, held))
        if len(set(chosen)) != len(chosen) or any(not 0 <= o < count for o in chosen):
            yield f"{name}: staged operands {chosen} are not distinct positions below {count}"


def check_cached_copies(case: Scheduled) -> Iterator[str]:
    """Only pipelined copies have a cache policy: loads always cache."""
    for name, _, loop, _ in case.loops:
        if loop.stages == 1 and any(s.cached for s in loop.staging):
            yield f"{name}: operands that are cached need a ring of at least 2 buffers"


def check_orders_permute(case: Scheduled) -> Iterator[str]:
    """The layout of a staged tile is an order of its dims."""
    for name, _, loop, _ in case.loops:
        if any(sorted(s.order) != list(range(len(s.order))) for s in loop.staging):
            yield f"{name}: the layout order of a staged tile is no permutation"


def check_carried_tiles(case: Scheduled) -> Iterator[str]:
    """Register staging stores vectors, and excludes matrix instructions."""
    for name, _, loop, _ in case.loops:
        if any(s.carried for s in loop.staging) and (loop.atom or any(s.pad % 2 for s in loop.staging)):
            yield f"{name}: operands that are carried need an even padding, and no atom"


def check_launch_known(case: Scheduled) -> Iterator[str]:
    """The index function is known; raster and resident blocks are counts."""
    if case.schedule.index not in ("computed", "table"):
        yield f"index function '{case.schedule.index}' is not one of computed, table"
    if case.schedule.raster < 1 or case.schedule.min_blocks < 0:
        yield "raster must be at least 1 and min_blocks at least 0"


def check_threads_fit(case: Scheduled) -> Iterator[str]:
    """A block has no more threads than the machine allows."""
    if case.schedule.threads > case.target.MAX_thread:
        yield f"{case.schedule.threads} threads in a block, at most {case.target.MAX_thread}"


def check_tiles_laid_out(case: Scheduled) -> Iterator[str]:
    """Every staged operand has a tile of several elements."""
    try:
        lay_out(case.group, case.schedule, case.target)
    except PassError as error:
        yield error.message
        return
    if case.features.tile <= 1:
        yield "a staged tile has one element only"


def check_shared_memory_fits(case: Scheduled) -> Iterator[str]:
    """A block takes no more shared memory than there is."""
    if case.features.shared > case.target.MAX_shared:
        yield f"{int(case.features.shared)} bytes of shared memory, at most {case.target.MAX_shared}"


def check_registers_suffice(case: Scheduled) -> Iterator[str]:
    """A thread needs no more registers than it gets without spills."""
    if case.features.needed > case.features.limit:
        yield f"about {int(case.features.needed)} registers per thread, at most {int(case.features.limit)}"


def check_bodies_compile(case: Scheduled) -> Iterator[str]:
    """No unrolled body is so long that compiling it takes minutes."""
    if case.features.body > MAX_BODY:
        yield f"an unrolled body of {int(case.features.body)} operations per thread, at most {MAX_BODY}"


Check: TypeAlias = Callable[[Scheduled], Iterator[str]]

#: Checks of well-formedness.
SHAPE_CHECKS: tuple[Check, ...] = (
    check_segments_match,
    check_atoms_known,
    check_axes_covered,
    check_atoms_spread,
    check_tiles_divide,
    check_tiles_fit,
    check_lanes_are_powers,
    check_warps_placed,
    check_chunks_fit,
    check_lanes_share_one_row,
    check_rows_kept,
    check_rows_whole,
    check_rows_passed_on,
    check_parts_whole,
    check_privatised_scatter,
    check_staging_known,
    check_orders_permute,
    check_cached_copies,
    check_carried_tiles,
    check_launch_known,
)
#: Checks of the layout alone, and of the sizes that follow from it.
LAYOUT_CHECKS: tuple[Check, ...] = (check_threads_fit, check_tiles_laid_out)
SIZE_CHECKS: tuple[Check, ...] = (check_shared_memory_fits, check_registers_suffice, check_bodies_compile)
CHECKS: tuple[Check, ...] = (*SHAPE_CHECKS, *LAYOUT_CHECKS, *SIZE_CHECKS)


def check_schedule(group: FusedGroup, schedule: Schedule, target: Target) -> list[str]:
    """Return why a schedule is not legal; nothing where it is."""
    case = Scheduled(group, schedule, target)
    if found := [*check_segments_match(case), *check_atoms_known(case)]:
        return found
    if found := [reason for check in SHAPE_CHECKS[2:] for reason in check(case)]:
        return found
    found = [reason for check in LAYOUT_CHECKS for reason in check(case)]
    return found + [reason for check in SIZE_CHECKS for reason in check(case)] if _is_laid_out(case) else found


def _is_laid_out(case: Scheduled) -> bool:
    return "features" in vars(case)


def _is_power_of_two(value: int) -> bool:
    return value >= 1 and value & (value - 1) == 0
