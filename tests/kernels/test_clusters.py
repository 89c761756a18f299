"""Rows that the blocks of a cluster share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernels
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType
from cuts.numerics.tolerance import tolerance
from cuts.passes.geometry import schedule_of
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.model import features_of
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit

from ..needs import needs_opencl, needs_toolchain
from .cases import accumulation, builder, unite
from .test_points import GPU, SMALL_GPU, _device, _run, check
from .test_row_cache import ROWS, TYPES, rows, special

TINY_GPU = evolve(SMALL_GPU, MAX_thread=8)
MODERATE = 1e4


def cluster_schedule(group: FusedGroup, target: Any, cached: bool = False, least: int = 1) -> Schedule:
    """Return a legal point of clusters with `least` rows side by side.

    The rows are in registers, or `cached`.
    """
    space = make_space(group, target)
    template = next(t for t in space.templates if t.segments[0].clusters)
    numbers = np.random.default_rng(1).integers(0, template.size, 8192)
    columns = columns_at(template, numbers)
    legal = evaluate(space, template, columns, 0, numbers).legal
    for n in np.flatnonzero(legal):
        values = {name: int(column[n]) for name, column in columns.items()}
        found = schedule_of(group, template, values, target.warp_size)
        if bool(found.segments[0].row_cache) == cached and found.segments[0].dims[-1].block >= least:
            return found
    raise AssertionError("no point")


@needs_opencl
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("op", ROWS)
def test_blocks_of_a_cluster_share_rows(op: str, dtype: DType, cached: bool) -> None:
    group, device = rows(op, dtype, 5, 151), _device("opencl")
    schedule = cluster_schedule(group, TINY_GPU, cached)
    assert check_schedule(group, schedule, TINY_GPU) == []
    check(device, TINY_GPU, group, schedule)
    kernel, inputs = lower(group, schedule, {}, TINY_GPU), special(group)
    for array in inputs.values():  # whose products overflow in one order and not in another
        array[np.isfinite(array) & (np.abs(array) > MODERATE)] = 1.0
    assert check_barriers(kernel) == ()
    assert kernel.shared_bytes == features_of(group, schedule, TINY_GPU).shared
    (segment,) = schedule.segments
    reductions = tuple(evolve(r, dims=(evolve(r.dims[0], block_k=segment.reduction_threads * segment.row_vector),))
                       for r in segment.reductions)  # fmt: skip
    alone = evolve(schedule, segments=(evolve(segment, cluster=1, row_cache=0, reductions=reductions),))
    assert check_schedule(group, alone, TINY_GPU) == []
    results = [
        _run(device, emit(extract(lower(group, s, {}, TINY_GPU)), "opencl"), group, inputs) for s in (schedule, alone)
    ]
    for name in group.outputs:
        shared, whole = (r[name].astype(np.float64) for r in results)
        allowed = 4 * tolerance(dtype, *accumulation(group))
        assert np.isclose(shared, whole, allowed, allowed, equal_nan=True).all(), schedule


@needs_opencl
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_clusters_hold_rows_side_by_side(dtype: DType, cached: bool) -> None:
    """Threads lie over columns, where neighbours in memory are of other rows."""
    make, target = builder(), evolve(SMALL_GPU, MAX_thread=16)
    y = make.node("softmax", make.input(3, 151, 4, dtype=dtype), axis=1)
    group = unite(make.programs(), y)
    schedule = cluster_schedule(group, target, cached, least=2)
    assert check_schedule(group, schedule, target) == []
    check(_device("opencl"), target, group, schedule)
    kernel = lower(group, schedule, {}, target)
    assert check_barriers(kernel) == ()
    assert kernel.shared_bytes == features_of(group, schedule, target).shared


@needs_opencl
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_blocks_of_a_cluster_find_extremes(dtype: DType, op: str) -> None:
    make = builder()
    y = make.node(op, make.input(5, 151, dtype=dtype), axis=1)
    group = unite(make.programs(), y)
    schedule = cluster_schedule(group, TINY_GPU)
    assert check_schedule(group, schedule, TINY_GPU) == []
    check(_device("opencl"), TINY_GPU, group, schedule)


@needs_toolchain
def test_clusters_compile_for_hopper() -> None:
    group = rows("softmax", DType.BF16, 64, 1 << 17)
    schedule = cluster_schedule(group, GPU)
    function = emit(extract(lower(group, schedule, {}, GPU)), "cuda")
    assert function.grid[0] == 64 * schedule.segments[0].cluster
    assert "__cluster_dims__" in function.source
    assert "barrier.cluster.arrive.release" not in function.source  # it would wait for all memory operations
    (cubin,) = compile_kernels([function], "sm_90a")
    assert not cubin.spill_bytes
