"""Fetches of single elements: all are loaded before any is stored."""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import DType, Loop, MmaAccumulate, Phase, Schedule
from cuts.passes.lowering import extract, lower
from cuts.passes.lowering.races import check_barriers
from cuts.tests.emission import emit

from .test_matrix_instructions import ahead_schedule, product
from .test_warpgroup_products import halves, point

GPU = find_target("cuda:sm_90")


@pytest.mark.parametrize("prefetch", [0, 1])
def test_products_lie_between_moves_of_single_elements(prefetch: int) -> None:
    group = product(DType.F16, "", (1, 21, 19, 67), (False, False))
    schedule = ahead_schedule(group, "f16", (2, 4), (1, 2), 2, 1)
    (segment,) = schedule.segments
    (loop,) = segment.reductions
    schedule = evolve(schedule, segments=(evolve(segment, reductions=(evolve(loop, prefetch=prefetch),)),))
    kernel = lower(group, schedule, {}, GPU)
    assert check_barriers(kernel) == ()
    (body,) = (item.body for item in kernel.items if isinstance(item, Loop))
    names = [item.name if isinstance(item, Phase) else "" for item in body]
    first = next(n for n, item in enumerate(body) if isinstance(item, Phase) and _multiplies(item))
    for number in range(2):
        assert names.index(f"s0r0fetch{number}") < first < names.index(f"s0r0fetch{number}_store")


def test_products_in_place_come_before_single_elements() -> None:
    group = halves((1, 257, 255, 513), (True, False))
    kernel = lower(group, point(group, (True, False), (128, 64), groups=2, columns=96), {}, GPU)
    assert check_barriers(kernel) == ()
    (loop,) = (item for item in kernel.items if isinstance(item, Loop))
    names = [item.name for item in loop.body if isinstance(item, Phase)]
    assert names == ["s0r0", "s0r0fetch0", "s0r0fetch1", "s0r0fetch0_store", "s0r0fetch1_store"]
    source = emit(extract(kernel), "cuda").source
    assert "cuts_from_f16(p0" not in source and "cuts_from_f16(p1" not in source, "registers hold bits"


def test_single_buffers_hold_bits() -> None:
    group = product(DType.F16, "", (1, 21, 19, 67), (False, False))
    (segment,) = ahead_schedule(group, "f16", (2, 4), (1, 2), 2, 1).segments
    (loop,) = segment.reductions
    schedule = Schedule((evolve(segment, reductions=(evolve(loop, stages=1, prefetch=0),)),))
    source = emit(extract(lower(group, schedule, {}, GPU)), "cuda").source
    assert "cuts_from_f16(p0" not in source and "cuts_from_f16(p1" not in source


def _multiplies(phase: Phase) -> bool:
    return any(isinstance(root, MmaAccumulate) for root in phase.roots)
