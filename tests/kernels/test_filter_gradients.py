"""Filter gradients: few results and long sums.

One thread has all taps of a row, sums use split-K, and points of either kind compute the reference.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.bench.operators.cases import KINDS, gradient_case
from cuts.bench.operators.shapes import convolution_case, read_convolution
from cuts.bench.operators.tuning import vocabulary_of
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.normalise import Illegal, normalise
from cuts.passes.fusion.programs import build_programs
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.selection.enumerate import sample_batches, to_schedule
from cuts.passes.schedule.space import make_space
from cuts.passes.split.part_counts import candidates
from cuts.passes.split.split_reduction import split_reduction

from ..needs import needs_opencl
from .cases import arrays
from .test_points import SMALL_GPU, _device, check

GPU = find_target("cuda:h200")


def filter_gradient(text: str, batch: int) -> FusedGroup:
    """Return the gradient of the filter of a convolution."""
    case = gradient_case(convolution_case(read_convolution(text)[0], batch), 1, KINDS[1])
    registry = vocabulary_of([case])
    programs = build_programs(case.graph(registry), registry)
    (unit,) = programs.units
    group = normalise(unit.statements, programs.types, unit.writes, programs.tables)
    assert not isinstance(group, Illegal)
    return group


def _tiles(schedule: Schedule) -> list[int]:
    return [dim.thread for segment in schedule.segments for dim in segment.dims]


@needs_opencl
@pytest.mark.parametrize("text", ["3x6 4x3x3 +1", "2x7 3x3x3 /2 +1"])
def test_a_thread_may_have_all_taps(text: str) -> None:
    group = filter_gradient(text, 3)
    space = make_space(group, SMALL_GPU)
    found = [
        schedule
        for batch in sample_batches(space, 512)
        if batch.structure.segments[-1].stages_any and batch.points is not None
        for point in batch.points[batch.legal]
        if (schedule := to_schedule(space, batch.start + int(point))) and _tiles(schedule).count(3) == 2
    ]
    small = min((s for s in found if s.threads > 1), key=lambda s: (prod(_tiles(s)) * s.threads, str(s)))
    check(_device("opencl"), SMALL_GPU, group, small)


@pytest.mark.parametrize(("text", "parts"), [("256x14 256x3x3 +1", 8), ("64x56 256x1x1", 512)])
def test_parts_are_enough_for_every_sm(text: str, parts: int) -> None:
    """Tiles with the fewest reads exceed those that fill the machine.

    This is without split-K.
    """
    assert max(candidates(filter_gradient(text, 64), GPU)) == parts


@pytest.mark.parametrize("parts", [64, 128, 256])
def test_parts_make_long_sums_of_few_results_faster(parts: int) -> None:
    group = filter_gradient("64x56 256x1x1", 64)
    halves = split_reduction(group, parts)
    assert halves is not None
    whole, (first, second) = choose(group, GPU)[0], (choose(half, GPU)[0] for half in halves)
    assert first.score + second.score < 0.85 * whole.score


@pytest.mark.parametrize(("asked", "made"), [(9, 3), (7, 2)])
def test_more_parts_than_images_are_parts_of_images(asked: int, made: int) -> None:
    """As many as rows can be cut into without an empty part."""
    group = filter_gradient("3x6 4x3x3 +1", 3)
    halves = split_reduction(group, asked)
    assert halves is not None
    before, after = halves
    assert before.tensors[before.outputs[0]].shape[:2] == (3, made)
    inputs = arrays(group, 1)
    partial = interpret(before, inputs)
    (found,) = interpret(after, inputs | partial).values()
    (expected,) = interpret(group, inputs).values()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert split_reduction(group, 100) is None, "neither images nor rows can be cut into so many"


def test_tiles_follow_memory_order_along_the_sum() -> None:
    """Neighbours of a row of both operands are neighbours in the tile.

    They are copied and loaded in vectors.
    """
    halves = split_reduction(filter_gradient("512x28 128x1x1", 64), 32)
    assert halves is not None
    (part,) = choose(halves[0], GPU)[0].schedule.segments
    assert [(s.order, s.pad) for s in part.reductions[0].staging] == [((1, 0), 4), ((1, 0), 4)]
