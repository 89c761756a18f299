"""Schedule verifier: named checks, one invariant of a group's schedule each.

They are those that templates fulfil by construction; `rules.py` has the rules that some candidates of a template break.
A check yields a message for every violation. Later stages of checks take the earlier ones for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from math import prod
from typing import TypeAlias

from attrs import frozen

from ...ir import (
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
    block_scales,
    is_exchange,
    operands,
    walked_row,
)
from ..geometry import (
    cached_reads,
    column_run,
    geometry_of,
    index_axes,
    is_register_chain,
    is_scatter_only,
    mma_faults,
    mma_operands,
    part_rows,
    promotion_depth,
    reads_shared_matrices,
    shared_matrix_faults,
)
from ..lowering import bulk_copy_faults, lay_out
from ..model import Features, features_of
from .rules import FEATURE_RULES, ScheduleSizes, messages
from .schedule_parameters import SIZE_RULES
from .staging_parameters import MMA_STAGES


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
    def loops(self) -> Iterator[tuple[str, Reduction, ReductionSchedule, SegmentSchedule]]:
        """Each reduction: its name, itself, its loop, its segment's schedule."""
        for segment, schedule in self.segments:
            for reduction, loop in zip(segment.reductions, schedule.reductions, strict=False):
                yield f"reduction {reduction.name}", reduction, loop, schedule

    @cached_property
    def sizes(self) -> ScheduleSizes:
        """Sizes of all segments."""
        return ScheduleSizes(self.group, self.target, geometry_of(self.group, self.schedule))

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


def check_numbers_positive(case: Scheduled) -> Iterator[str]:
    """Tiles, vectors and K blocks have at least one element."""
    for _, schedule in case.segments:
        for dim in schedule.dims:
            if min(dim.block, dim.thread, dim.vector, dim.tiles) < 1:
                yield f"{_name(dim)}: block {dim.block}, thread {dim.thread} and vector {dim.vector} must be positive"
    for name, _, loop, _ in case.loops:
        yield from (f"{name}: K block {dim.block_k} must be positive" for dim in loop.dims if dim.block_k < 1)


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


def check_shared_axes(case: Scheduled) -> Iterator[str]:
    """Of a tensor in shared memory each axis is a dim.

    An exchange has dims of several axes.
    """
    for segment, schedule in case.segments:
        held = any(o.tensor in case.group.shared for o in segment.outputs)
        for dim in schedule.dims:
            if held and len(dim.axes) > 1 and not is_exchange(case.group):
                yield f"{_name(dim)}: a tensor in shared memory has one dim per axis"


def check_lanes_are_powers(case: Scheduled) -> Iterator[str]:
    """Reduction threads are a power of two, as is the row vector.

    They exchange values by halves, or by warps where no value belongs to an element of the row.
    """
    for segment, schedule in case.segments:
        threads, vector = schedule.reduction_threads, schedule.row_vector
        alone = column_run(segment, case.group.shared) == 1 or any(r.along for r in segment.reductions)
        aside = schedule.threads // threads if column_run(segment, case.group.shared) else 1
        warps = threads * aside % case.target.warp_size == 0 and not alone
        if not (warps or _is_power_of_two(threads)) or not _is_power_of_two(vector):
            yield f"reduction threads {threads} and row vector {vector} must be powers of two"


def check_warps_placed(case: Scheduled) -> Iterator[str]:
    """A warp layout places all lanes on the tile dims."""
    size = case.target.warp_size
    for _, schedule in case.segments:
        if not schedule.warp:
            continue
        if len(schedule.warp) != len(schedule.dims) or prod(schedule.warp) != size:
            yield f"the warp map {schedule.warp} must place {size} lanes on {len(schedule.dims)} dims"


def check_atoms_known(case: Scheduled) -> Iterator[str]:
    """The matrix instruction of a reduction is in the table."""
    for name, _, loop, _ in case.loops:
        if loop.mma and loop.mma not in MMA_INSTRUCTIONS:
            yield f"{name}: '{loop.mma}' is no matrix instruction"


def check_atoms_spread(case: Scheduled) -> Iterator[str]:
    """Threads hold the fragments of a matrix instruction.

    It computes the only reduction of a segment, or all of a chain in registers: sums of products of its rows and
    columns. Partial sums are promoted as often as the math mode requires.
    """
    for segment, schedule in case.segments:
        loop = schedule.atomic
        if loop is None or loop.mma not in MMA_INSTRUCTIONS:
            continue
        faults = mma_faults(loop, schedule.dims, schedule.reduction_threads)
        yield from faults
        chained = is_register_chain(case.schedule.segments)
        if len(segment.reductions) != 1 and not chained:
            yield f"{loop.mma}: a segment with a matrix instruction has one reduction"
        elif not faults:
            for reduction, own in zip(segment.reductions, schedule.reductions, strict=True):
                yield from _check_mma_reduction(reduction, own, schedule, chained)


def _check_mma_reduction(
    reduction: Reduction, loop: ReductionSchedule, schedule: SegmentSchedule, chained: bool
) -> Iterator[str]:
    if mma_operands(reduction, schedule.dims[loop.rows].axes, schedule.dims[loop.columns].axes) is None:
        yield f"{loop.mma}: reduction {reduction.name} is no sum of products of its rows and columns"
    elif reads_shared_matrices(loop.mma):
        yield from shared_matrix_faults(reduction, loop, schedule.dims, [reduction.name], chained)
    every, (_, block) = promotion_depth(reduction, loop.mma), block_scales(reduction.body, reduction.reduce)
    if every and any(d.block_k > every * schedule.reduction_threads for d in loop.dims):
        mode = f"math mode {reduction.math}: " if reduction.math else ""
        yield f"{loop.mma}: {mode}partial sums are promoted after at most {every} elements"
    elif block and any(block % d.block_k for d in loop.dims):
        yield f"{loop.mma}: a K block is no part of a block of {block} terms of one scale"


def check_bulk_copies(case: Scheduled) -> Iterator[str]:
    """Operands of bulk copies are boxes of tensor maps.

    Such a kernel has one segment, or is a chain in registers.
    """
    for name, reduction, loop, schedule in case.loops:
        several = len(case.group.segments) > 1 and not is_register_chain(case.schedule.segments)
        if loop.tma not in range(5) or (loop.tma and several):
            yield f"{name}: tma {loop.tma} of a kernel of {len(case.group.segments)} segments"
        elif loop.tma:
            alone = len(case.group.segments) == 1
            yield from bulk_copy_faults(reduction, loop, schedule.dims, [reduction.name], case.group.tensors, alone)


def check_lanes_share_one_row(case: Scheduled) -> Iterator[str]:
    """Reduction threads share one reduce dim in whole trips.

    They read it straight from memory, except with matrix instructions.
    """
    for name, _, loop, schedule in case.loops:
        step = schedule.reduction_threads * schedule.row_vector
        if step > 1 and (len(loop.dims) != 1 or loop.dims[0].block_k % step):
            yield f"{name}: reduction threads need one reduce dim whose K block is a multiple of {step}"
        if step > 1 and loop.staging and (not loop.mma or schedule.row_vector > 1):
            yield f"{name}: a reduction of several threads stages nothing"


def check_row_cached(case: Scheduled) -> Iterator[str]:
    """Several statements read the only cached row of a segment."""
    for segment, schedule in case.segments:
        loops = {d for r in schedule.reductions for d in r.dims}
        several = cached_reads(segment, (*case.group.shared, *case.group.constants))
        if schedule.row_cache and (len(loops) != 1 or not several):
            yield f"{schedule.row_cache} elements of the row cache are of rows that no two statements share"


def check_privatised_scatter(case: Scheduled) -> Iterator[str]:
    """A privatised scatter belongs to a segment that only combines values.

    Only there do blocks take several tiles, along one dim; the axes of each dim all equal an index of the output, or
    none does.
    """
    for segment, schedule in case.segments:
        turned = [d for d in schedule.dims if d.tiles != 1]
        if segment.column_sums and walked_row(segment) is None:
            rows = part_rows(segment, case.group)
            if len(schedule.dims) != 1 or schedule.dims[0].threads > 1 or rows != _rows_taken(schedule.dims):
                yield f"a block adds up {_rows_taken(schedule.dims)} rows, not the {rows} of a part, or by many threads"
            continue
        if any(d.tiles < 1 for d in turned) or len(turned) > 1 or (turned and not schedule.privatised):
            yield f"tiles {[d.tiles for d in schedule.dims]} of a block, privatised: {schedule.privatised}"
        if not schedule.privatised:
            continue
        if not is_scatter_only(segment):
            yield "values of a privatised scatter are not combined in memory, or not by it alone"
            continue
        own = index_axes(segment, case.group)
        if any(0 < len(own & {*d.axes}) < len(d.axes) for d in schedule.dims) or any(own & {*d.axes} for d in turned):
            yield "a tile dim has axes that name an element by themselves, and others, or several tiles a block"


def check_staging_known(case: Scheduled) -> Iterator[str]:
    """Pipelines have a few stages, and staged operands are distinct."""
    held = [r.name for segment, _ in case.segments for r in segment.reductions]
    for name, reduction, loop, _ in case.loops:
        if not 1 <= loop.stages <= MMA_STAGES[-1]:
            yield f"{name}: {loop.stages} stages, expected 1 to {MMA_STAGES[-1]}"
        chosen, count = [s.operand for s in loop.staging], len(operands(reduction, held))
        if len(set(chosen)) != len(chosen) or any(not 0 <= o < count for o in chosen):
            yield f"{name}: staged operands {chosen} are not distinct positions below {count}"


def check_orders_permute(case: Scheduled) -> Iterator[str]:
    """The layout of a staged tile is an order of its dims."""
    for name, _, loop, _ in case.loops:
        if any(sorted(s.order) != list(range(len(s.order))) for s in loop.staging):
            yield f"{name}: the layout order of a staged tile is no permutation"


def check_launch_known(case: Scheduled) -> Iterator[str]:
    """Raster and resident blocks are counts."""
    if case.schedule.raster < 1 or case.schedule.min_blocks < 0:
        yield "raster must be at least 1 and min_blocks at least 0"


def check_boxes_fit(case: Scheduled) -> Iterator[str]:
    """The tiles of a segment hold the boxes that later segments read."""
    try:
        lay_out(case.group, case.schedule, case.target)
    except PassError as error:
        yield error.message


Check: TypeAlias = Callable[[Scheduled], Iterator[str]]

#: Checks in stages: the later ones take for granted that the earlier ones find nothing.
FIRST_CHECKS: tuple[Check, ...] = (check_segments_match, check_atoms_known, check_numbers_positive)
SHAPE_CHECKS: tuple[Check, ...] = (
    check_axes_covered,
    check_atoms_spread,
    check_bulk_copies,
    check_shared_axes,
    check_lanes_are_powers,
    check_warps_placed,
    check_lanes_share_one_row,
    check_row_cached,
    check_privatised_scatter,
    check_staging_known,
    check_orders_permute,
    check_launch_known,
)
CHECKS: tuple[Check, ...] = (*FIRST_CHECKS, *SHAPE_CHECKS, check_boxes_fit)


def check_schedule(group: FusedGroup, schedule: Schedule, target: Target) -> list[str]:
    """Return why a schedule is not legal; nothing where it is."""
    case = Scheduled(group, schedule, target)
    stages: tuple[Callable[[], Iterator[Iterator[str]]], ...] = (
        lambda: (check(case) for check in FIRST_CHECKS),
        lambda: (check(case) for check in SHAPE_CHECKS),
        lambda: (messages(rule(case.sizes)) for rule in SIZE_RULES),
        lambda: (check(case) for check in (check_boxes_fit,)),
        lambda: (messages(rule(case.features, target)) for rule in FEATURE_RULES),
    )
    found = ([*chain.from_iterable(stage())] for stage in stages)
    return next(filter(None, found), [])


def _rows_taken(dims: Sequence[TileDim]) -> int:
    return prod(dim.block * dim.tiles for dim in dims)


def _name(dim: TileDim) -> str:
    return f"dim {'*'.join(a.name for a in dim.axes)}"


def _is_power_of_two(value: int) -> bool:
    return value >= 1 and value & (value - 1) == 0
