"""Verifier of schedules.

Each named check states its invariant and finds the schedule that breaks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from attrs import evolve
from cuts.backends import find_target
from cuts.ir.machine import with_policy
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.ir.types import DType
from cuts.passes.schedule.check_schedules import (
    CHECKS,
    Scheduled,
    check_atoms_spread,
    check_schedule,
)
from cuts.passes.schedule.rules import FEATURE_RULES, Finding, Rule, messages
from cuts.passes.schedule.schedule_parameters import SIZE_RULES
from cuts.passes.schedule.selection.choose import choose
from cuts.tests.kernels.test_attention_chains import attention, group_of
from cuts.tests.kernels.test_box_products import group as box_group
from cuts.tests.kernels.test_bulk_copies import with_tma
from cuts.tests.kernels.test_column_sums import norm_gradient, parts_of
from cuts.tests.kernels.test_kept_sums import group_gradient, kernels
from cuts.tests.kernels.test_tile_chains import gradient as attention_gradient
from cuts.tests.kernels.test_tile_chains import groups_of, points_of
from cuts.tests.kernels.test_warpgroup_products import halves, point

from .groups import conv, matmul, two_matmuls

TARGET = find_target("cuda:h200")
GROUP = matmul(256, 256, 256)
COLUMN_SUMS, _ = parts_of(norm_gradient(DType.F32, (16,), 64), 4)
KEPT_SUMS, _ = kernels(group_gradient(DType.F32, (3, 14), (0,)), 5)
ROWS, COLUMNS = GROUP.segments[0].axes
(K,) = GROUP.segments[0].reductions[0].reduce
RIGHT = Schedule(
    (
        SegmentSchedule(
            (TileDim((ROWS,), 64, 8, 4), TileDim((COLUMNS,), 64, 8, 4)),
            (ReductionSchedule((ReduceDim((K,), 16),), (Staging(0, (), 4), Staging(1, (), 4)), 2),),
        ),
    )
)


def segment(**changes: object) -> Schedule:
    """The schedule with another segment."""
    return evolve(RIGHT, segments=(evolve(RIGHT.segments[0], **changes),))


def loop(**changes: object) -> Schedule:
    """The schedule with another loop."""
    return segment(reductions=(evolve(RIGHT.segments[0].reductions[0], **changes),))


def dims(*tiles: tuple[int, int, int]) -> Schedule:
    """The schedule with other tiles."""
    return segment(dims=tuple(TileDim((a,), *tile) for a, tile in zip((ROWS, COLUMNS), tiles, strict=True)))


def long_ring() -> Schedule:
    """A ring of more stages than a block has tiles."""
    (axis,), row = COLUMN_SUMS.segments[0].axes, COLUMN_SUMS.segments[0].reductions[0].reduce
    rows = ReductionSchedule((ReduceDim(row, 64),), stages=3)
    return Schedule((SegmentSchedule((TileDim((axis,), 2, 2, 1, 2),), (rows, rows), 32, 2),))


def uneven_vectors() -> Schedule:
    """Vectors that reach into a second run of kept sums."""
    (segment,) = KEPT_SUMS.segments
    rows = ReductionSchedule((ReduceDim(segment.reductions[0].reduce, 64),))
    return Schedule((SegmentSchedule((TileDim(segment.axes, 2, 1),), (rows, rows), 16, 4),))


def odd_lanes() -> Schedule:
    """Return a schedule of 48 threads, three of each result."""
    (part,) = dims((64, 16, 4), (64, 16, 4)).segments
    return Schedule((evolve(part, reduction_threads=3),))


def one_element() -> SegmentSchedule:
    """A segment whose first operand's tile is one element."""
    part = dims((1, 1, 1), (64, 8, 4)).segments[0]
    return evolve(part, reductions=(ReductionSchedule((ReduceDim((K,), 1),), (Staging(0, (), 4),), 1),))


#: A chain in registers, for the check of its lanes.
CHAIN = group_of(attention((64, 12, 12, 128, 128, 64, 64), DType.F16))


def uneven_chain() -> Schedule:
    """A chain in registers whose contractions have rings of different stages."""
    right = choose(CHAIN, TARGET)[0].schedule
    *first, last = right.segments
    return evolve(right, segments=(*first, evolve(last, reductions=(evolve(last.reductions[0], stages=3),))))


#: A chain with elementwise values between its contractions, for the check of their lanes.
TILE_CHAIN = groups_of(attention_gradient(64, 96))[0]


def uneven_tile_chain() -> Schedule:
    """A chain whose last segment has other stages than its first one."""
    *first, last = points_of(TILE_CHAIN, 1)[0].segments
    loops = tuple(evolve(r, stages=r.stages + 1) for r in last.reductions)
    return Schedule((*first, evolve(last, reductions=loops)))


#: Two products, for the check of the streamed tile between them.
BOX = box_group("f16", "expanded")


def idle_warps() -> Schedule:
    """Return a schedule whose product has one of four warps."""
    first, last = BOX.segments
    tiles = zip(first.axes, ((1, 1, 1), (3, 3, 1), (16, 2, 1), (24, 6, 2)), strict=True)
    product = ReductionSchedule((ReduceDim(first.reductions[0].reduce, 16),), (), 1, "m16n8k16_f16", 2, 3)
    windows = ReductionSchedule(tuple(ReduceDim((v,), 3) for v in last.reductions[0].reduce))
    readers = zip(last.axes, ((1, 1, 1), (1, 1, 1), (5, 1, 1), (24, 1, 1)), strict=True)
    segments = ((tiles, product), (readers, windows))
    return Schedule(
        tuple(SegmentSchedule(tuple(TileDim((a,), *tile) for a, tile in each), (made,)) for each, made in segments)
    )


CONV = conv(2, 16, 8, 16)


def swapped_axes() -> Schedule:
    """Return a schedule that adds several channels at each filter place."""
    (segment,) = CONV.segments
    channels, *places = segment.reductions[0].reduce
    chunks = (ReduceDim((channels,), 4), *(ReduceDim((v,), 1) for v in places))
    tiles = tuple(TileDim((a,), 1, 1) for a in segment.axes)
    return Schedule((SegmentSchedule(tiles, (ReductionSchedule(chunks),)),))


TWO_PRODUCTS = two_matmuls(256, 256, 64)


def streamed_schedule(chunk: int) -> Schedule:
    """Return a schedule of two products with parts of 64 elements.

    The second product has K blocks of `chunk` elements.
    """
    first, last = TWO_PRODUCTS.segments
    tiles = ([TileDim((a,), 64, 8) for a in s.axes] for s in (first, last))
    loops = (ReduceDim(first.reductions[0].reduce, 16), ReduceDim(last.reductions[0].reduce, chunk))
    return Schedule(
        tuple(SegmentSchedule(tuple(t), (ReductionSchedule((d,)),)) for t, d in zip(tiles, loops, strict=True))
    )


def flat_schedule() -> Schedule:
    """Return two products' schedule, the first one with one dim."""
    first, last = streamed_schedule(32).segments
    axes = tuple(a for d in first.dims for a in d.axes)
    return Schedule((evolve(first, dims=(TileDim(axes, 64, 8),)), last))


def small_tiles() -> Schedule:
    """Return two products' schedule, the second one with wider reads."""
    first, last = streamed_schedule(32).segments
    tiles = tuple(evolve(d, block=32, thread=4) for d in first.dims)
    return Schedule((evolve(first, dims=tiles), last))


def odd_steps() -> Schedule:
    """Return a schedule with prefetched fragments and one step."""
    return loop(mma="m16n8k8_tf32", columns=1, prefetch=1, dims=(ReduceDim((K,), 8),))


#: A product in place whose last rows fill no tile.
RAGGED_GROUP = halves((1, 72, 64, 508), (True, True))
#: Findings of each check, and a schedule that breaks no earlier check.
BROKEN_SCHEDULES: dict[str, tuple[Callable[[], Schedule], str]] = {
    "check_segments_match": (lambda: segment(reductions=()), "0 reductions, expected 1"),
    "check_atoms_known": (lambda: loop(mma="m1n1k1"), "'m1n1k1' is no matrix instruction"),
    "check_numbers_positive": (lambda: loop(dims=(ReduceDim((K,), 0),)), "K block 0 must be positive"),
    "check_axes_covered": (lambda: segment(dims=RIGHT.segments[0].dims[::-1]), "do not cover the parallel axes"),
    "check_atoms_spread": (
        lambda: segment(
            dims=(TileDim((ROWS,), 32, 8, 4), TileDim((COLUMNS,), 128, 8, 4)),
            reductions=(evolve(RIGHT.segments[0].reductions[0], mma="m16n8k8_tf32", columns=1),),
        ),
        "its rows need a multiple of 8 threads",
    ),
    "check_bulk_copies": (lambda: loop(tma=1), "bulk copies stage operands that a warpgroup reads"),
    "check_shared_axes": (lambda: flat_schedule(), "has one dim per axis"),
    "check_lanes_are_powers": (lambda: segment(reduction_threads=3), "must be powers of two"),
    "check_warps_placed": (lambda: segment(warp=(2, 8)), "must place 32 lanes"),
    "check_lanes_share_one_row": (lambda: segment(reduction_threads=32), "whose K block is a multiple of 32"),
    "check_row_cached": (lambda: segment(row_cache=16), "that no two statements share"),
    "check_privatised_scatter": (
        lambda: segment(privatised=True),
        "values of a privatised scatter are not combined in memory",
    ),
    "check_staging_known": (lambda: loop(stages=9), "9 stages, expected 1 to 8"),
    "check_orders_permute": (lambda: loop(staging=(Staging(0, (5, 5), 4),)), "is no permutation"),
    "check_launch_known": (lambda: evolve(RIGHT, raster=0), "raster must be at least 1"),
    "check_boxes_fit": (lambda: small_tiles(), "is smaller than the box"),
}
#: The same for each rule about counts.
BROKEN_COUNTS: dict[str, tuple[Callable[[], Schedule], str]] = {
    "check_tiles_several": (lambda: evolve(RIGHT, segments=(one_element(),)), "a staged tile has one element only"),
    "check_shared_memory_fits": (lambda: loop(dims=(ReduceDim((K,), 256),), stages=4), "bytes of shared memory"),
    "check_registers_suffice": (lambda: dims((256, 16, 4), (256, 32, 4)), "registers per thread"),
    "check_bodies_compile": (lambda: loop(dims=(ReduceDim((K,), 128),), stages=1), "an unrolled body of 8192"),
}
#: The same for each rule about sizes.
BROKEN_SIZES: dict[str, tuple[Callable[[], Schedule], str]] = {
    "check_tiles_divide": (lambda: dims((64, 8, 3), (64, 8, 4)), "must be a multiple"),
    "check_tiles_fit": (lambda: dims((512, 8, 4), (64, 8, 4)), "exceeds its extent 256 needlessly"),
    "check_warps_divide": (lambda: segment(warp=(32, 1)), "the warp map [32, 1] does not divide"),
    "check_chunks_fit": (lambda: loop(dims=(ReduceDim((K,), 512),)), "chunk 512 exceeds its extent 256"),
    "check_fragment_sets": (lambda: odd_steps(), "fragments are loaded ahead of an odd step"),
    "check_cached_copies": (lambda: loop(stages=1, staging=(Staging(0, (), 4, True),)), "need a ring of at least 2"),
    "check_carried_tiles": (
        lambda: loop(staging=(Staging(0, (), 1, register_staged=True),)),
        "need an even padding, and no atom",
    ),
    "check_bulk_copies_fit": (lambda: with_tma(point(RAGGED_GROUP, (True, True))), "operands are no boxes"),
    "check_rows_kept": (
        lambda: segment(row_cache=24),
        "24 elements of rows are cached, not whole ones of 16 trips of 16",
    ),
    "check_rows_whole": (lambda: RIGHT, "lanes do not hold its whole row"),
    "check_rows_walked": (lambda: RIGHT, "elements of walked rows are loaded ahead"),
    "check_sums_whole": (lambda: RIGHT, "a block of 64 sums, not all of 256"),
    "check_clusters": (lambda: segment(cluster=2), "1 of 64 threads share a row of a cluster"),
    "check_lanes_fill_warps": (odd_lanes, "3 reduction threads of 48 are no power of two"),
    "check_ring_short": (long_ring, "3 stages of 2 tiles"),
    "check_kept_sums": (uneven_vectors, "vectors of 4, and blocks 42 elements, of runs of 14"),
    "check_rows_passed_on": (lambda: RIGHT, "rows are passed on by 64 of 64 threads"),
    "check_parts_whole": (lambda: streamed_schedule(128), "parts of 64 elements are no whole chunks of [128]"),
    "check_chain_held": (uneven_chain, "elements, one K block each"),
    "check_tile_chain_held": (uneven_tile_chain, "stages of"),
    "check_boxes_filled": (idle_warps, "32 threads of 120 multiply"),
    "check_threads_fit": (lambda: dims((128, 2, 2), (128, 2, 2)), "4096 threads in a block"),
    "check_order_invariant": (swapped_axes, "change the order of a sum"),
}

#: The group with a value for each element of its row, for the check of those.
ALONG_GROUP = evolve(
    GROUP,
    segments=(evolve(GROUP.segments[0], reductions=(evolve(GROUP.segments[0].reductions[0], along="upto"),)),),
)
#: The group with a row that a thread may walk, for the check of those.
WALKED_GROUP = evolve(
    ALONG_GROUP,
    segments=(evolve(ALONG_GROUP.segments[0], outputs=(evolve(ALONG_GROUP.segments[0].outputs[0], extra=(K,)),)),),
)
#: The group with a sum over the instances of walked rows, for the check of those.
SUMMED_OUTPUT = evolve(WALKED_GROUP.segments[0].outputs[0], across="sum")
SUMMED_GROUP = evolve(
    WALKED_GROUP,
    segments=(evolve(WALKED_GROUP.segments[0], outputs=(evolve(SUMMED_OUTPUT, write=SUMMED_OUTPUT.write[:1]),)),),
)
#: The group with a row that a later segment would read, for the check of those.
PASSED_GROUP = evolve(
    GROUP,
    segments=(evolve(GROUP.segments[0], outputs=(evolve(GROUP.segments[0].outputs[0], extra=(K,)),)),),
    shared=(GROUP.segments[0].outputs[0].tensor,),
)


#: Groups of the checks that concern more than one product.
GROUPS = {
    "check_shared_axes": TWO_PRODUCTS,
    "check_boxes_fit": TWO_PRODUCTS,
    "check_rows_whole": ALONG_GROUP,
    "check_rows_walked": WALKED_GROUP,
    "check_sums_whole": SUMMED_GROUP,
    "check_ring_short": COLUMN_SUMS,
    "check_kept_sums": KEPT_SUMS,
    "check_rows_passed_on": PASSED_GROUP,
    "check_parts_whole": TWO_PRODUCTS,
    "check_chain_held": CHAIN,
    "check_tile_chain_held": TILE_CHAIN,
    "check_boxes_filled": BOX,
    "check_bulk_copies_fit": RAGGED_GROUP,
    "check_order_invariant": CONV,
}
#: Targets of the checks that concern a policy.
TARGETS = {"check_order_invariant": with_policy(TARGET, "batch-invariant")}
#: Rules that an earlier check precedes where a whole schedule is verified.
EARLIER_SEGMENT_RULES = {"check_bulk_copies_fit", "check_fragment_sets", "check_lanes_fill_warps", "check_rows_kept"}


def test_every_check_states_its_invariant_and_is_tried() -> None:
    every = (*CHECKS, *SIZE_RULES, *FEATURE_RULES)
    assert all(check.__name__.startswith("check_") and (check.__doc__ or "").strip() for check in every)
    assert [check.__name__ for check in every] == [*BROKEN_SCHEDULES, *BROKEN_SIZES, *BROKEN_COUNTS]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check_finds_its_broken_invariant_only(check: Callable[..., Iterator[str]]) -> None:
    make, reason = BROKEN_SCHEDULES[check.__name__]
    assert list(check(Scheduled(GROUP, RIGHT, TARGET))) == []
    group = GROUPS.get(check.__name__, GROUP)
    assert any(reason in found for found in check(Scheduled(group, make(), TARGET)))
    assert any(reason in found for found in check_schedule(group, make(), TARGET))


@pytest.mark.parametrize("rule", SIZE_RULES, ids=lambda rule: rule.__name__)
def test_rule_finds_its_broken_invariant_only(rule: Rule) -> None:
    make, reason = BROKEN_SIZES[rule.__name__]
    target = TARGETS.get(rule.__name__, TARGET)
    assert list(messages(rule(Scheduled(GROUP, RIGHT, target).sizes))) == []
    group = GROUPS.get(rule.__name__, GROUP)
    assert any(reason in found for found in messages(rule(Scheduled(group, make(), target).sizes)))
    assert rule.__name__ in EARLIER_SEGMENT_RULES or any(
        reason in found for found in check_schedule(group, make(), target)
    )


@pytest.mark.parametrize("rule", FEATURE_RULES, ids=lambda rule: rule.__name__)
def test_count_finds_its_broken_invariant_only(rule: Callable[..., Iterator[Finding]]) -> None:
    make, reason = BROKEN_COUNTS[rule.__name__]
    assert list(messages(rule(Scheduled(GROUP, RIGHT, TARGET).features, TARGET))) == []
    assert any(reason in found for found in messages(rule(Scheduled(GROUP, make(), TARGET).features, TARGET)))
    assert any(reason in found for found in check_schedule(GROUP, make(), TARGET))


def test_parts_of_whole_chunks_are_legal() -> None:
    assert check_schedule(TWO_PRODUCTS, streamed_schedule(32), TARGET) == []


def test_the_number_of_segments_comes_first() -> None:
    assert check_schedule(GROUP, Schedule(()), TARGET) == ["the schedule has 0 segments, expected 1"]


@pytest.mark.parametrize("changes", [{"stages": 1}, {"staging": ()}, {"dims": (ReduceDim((K,), 8),)}, {"prefetch": 2}])
def test_fragments_prefetch_needs_stages_and_step_pairs(changes: dict[str, object]) -> None:
    """Registers for fragments alternate.

    A K block therefore takes an even number of steps.
    """
    sound = loop(mma="m16n8k8_tf32", columns=1, prefetch=1)
    assert list(check_atoms_spread(Scheduled(GROUP, sound, TARGET))) == []
    broken = evolve(sound.segments[0].reductions[0], **changes)
    (found,) = check_atoms_spread(Scheduled(GROUP, segment(reductions=(broken,)), TARGET))
    assert "one step ahead, from a ring of at least 2 buffers" in found
