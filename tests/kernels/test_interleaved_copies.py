"""Interleaved copies among the steps of products.

Each is there once, in the part of the loop that its group commits.
"""

from __future__ import annotations

from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import MMA_INSTRUCTIONS, Commit, DType, Item, Kernel, Loop, MmaAccumulate, Phase, Schedule, Store
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule import choose
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_matrix_instructions import product

GPU = find_target("cuda:sm_90")


def body(kernel: Kernel) -> tuple[Item, ...]:
    """Return the loop over chunks."""
    return next(item.body for item in kernel.items if isinstance(item, Loop))


def prefetching_kernels(kind: DType, shape: tuple[int, int, int, int]) -> tuple[Kernel, Kernel]:
    """Return a product's kernel with prefetched fragments.

    There is one for a block and one for a thread.
    """
    group = product(kind, "", shape, (False, False))
    schedule = next(c.schedule for c in choose(group, GPU, count=40) if _in_steps(c.schedule))
    block = lower(group, schedule, {}, GPU)
    return block, extract(block)


def _in_steps(schedule: Schedule) -> bool:
    """Return true where a warp prefetches fragments and multiplies a K block in several steps before it meets the
    others, with copies left by then.
    """
    (segment,) = schedule.segments
    (loop,) = segment.reductions
    (dim,) = loop.dims
    several = loop.prefetch and dim.block_k >= 4 * segment.reduction_threads * MMA_INSTRUCTIONS[loop.mma].k
    return bool(several) and dim.trips >= loop.stages


@settings(max_examples=6, deadline=None)
@given(st.sampled_from((1024, 2048, 4096)), st.sampled_from((1024, 2048)), st.sampled_from((512, 1024)))
def test_every_copy_is_made_once_before_its_commit(rows: int, columns: int, depth: int) -> None:
    block, thread = prefetching_kernels(DType.F16, (1, rows, columns, depth))
    whole = [p for p in body(block) if isinstance(p, Phase) and p.asynchronous]
    trips = sum(next((v.extent for v in p.unrolled if v.name == "f"), 1) for p in whole)
    items = body(thread)
    end = next(n for n, item in enumerate(items) if isinstance(item, Commit))
    places = [n for n, item in enumerate(items) if isinstance(item, Phase) and item.asynchronous]
    copies = [root for n in places for root in items[n].roots if isinstance(root, Store)]
    assert len(copies) == trips == len({(c.buffer, c.address) for c in copies})
    assert max(places) < end
    steps = [n for n, item in enumerate(items[:end]) if _multiplies(item)]
    between = [sum(low < n < high for n in places) for low, high in zip([-1, *steps], steps, strict=False)]
    assert max(between) - min(between) <= 1


def _multiplies(item: Item) -> bool:
    return isinstance(item, Phase) and any(isinstance(root, MmaAccumulate) for root in item.roots)


def test_copies_stay_where_products_are_one_phase() -> None:
    group = product(DType.F16, "", (1, 512, 512, 1024), (False, False))
    found = next(c.schedule for c in choose(group, GPU, count=40) if _in_steps(c.schedule))
    segment = found.segments[0]
    loop = evolve(segment.reductions[0], prefetch=0)
    schedule = evolve(found, segments=(evolve(segment, reductions=(loop,)),))
    kinds = [type(item).__name__ for item in body(extract(lower(group, schedule, {}, GPU)))]
    assert kinds == [type(item).__name__ for item in body(lower(group, schedule, {}, GPU))]
