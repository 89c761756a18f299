"""Pairs of blocks that fetch a tile together (multicast), exact for integers.

On OpenCL each block copies both halves. The checker of races and the verifier of kernels find planted bugs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve
from cuts.backends.cuda.compile import compile_kernel
from cuts.ir import (
    BulkFetch,
    Guard,
    Kernel,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    Var,
    as_index,
    bulk_fetches,
    kernel_violations,
)
from cuts.ir.kernel import Item
from cuts.ir.types import DType
from cuts.passes.lowering import extract, lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.model import features_of
from cuts.passes.schedule import check_schedule
from cuts.tests.emission import emit

from ..needs import needs_cuda, needs_opencl, needs_toolchain
from .test_bulk_copies import replace_items, with_fields, with_tma, without
from .test_matrix_instructions import GPU, _device, check
from .test_warpgroup_products import halves, point

#: Warpgroups, instructions, columns, stages, raster and a shape: pairs along the rows, and along the columns.
CASES = (
    (1, 1, 64, 3, 1, (1, 256, 128, 512)),
    (1, 1, 128, 4, 4, (2, 512, 192, 328)),
    (2, 1, 64, 3, 1, (1, 256, 256, 200)),
    (2, 2, 64, 4, 2, (1, 512, 256, 64)),
)


def pair_point(case: tuple, kind: DType = DType.F16, deep: bool = True) -> tuple:
    """Return a product and a point with clusters."""
    groups, atoms, columns, stages, raster, shape = case
    group = halves(shape, (True, deep), kind)
    found = point(group, (True, deep), groups=groups, atoms=atoms, columns=columns, vector=2, stages=stages)
    return group, evolve(with_tma(found, 3), raster=raster)


def small_kernel(stages: int = 3, depth: int = 1024) -> Kernel:
    group, schedule = pair_point((1, 1, 64, stages, 1, (1, 256, 128, depth)))
    return lower(group, schedule, {}, GPU)


@needs_opencl
@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_share_a_tile_opencl(case: tuple, deep: bool) -> None:
    check(_device("opencl"), GPU, *pair_point(case, DType.BF16, deep))


@needs_cuda
@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_share_a_tile_cuda(case: tuple, deep: bool) -> None:
    check(_device("cuda"), GPU, *pair_point(case, DType.BF16, deep))


@pytest.mark.parametrize("stages", [3, 4, 8])
@pytest.mark.parametrize("depth", [64, 192, 1024, 8192])
def test_each_phase_is_waited_for_once(stages: int, depth: int) -> None:
    kernel = small_kernel(stages, depth)
    assert kernel.cluster == 2
    assert kernel_violations(kernel) == []
    assert check_barriers(kernel) == ()


def test_the_larger_tile_is_shared() -> None:
    for case, shared in (((1, 1, 64, 3, 1, (1, 256, 128, 512)), 1), ((2, 1, 64, 3, 1, (1, 256, 256, 256)), 0)):
        group, schedule = pair_point(case)
        kernel = lower(group, schedule, {}, GPU)
        (fetch,) = (f for producer in kernel.producer for f in bulk_fetches(producer.body))
        assert [copy.across is not None for copy in fetch.copies] == [shared == 0, shared == 1]
        alone = features_of(group, with_tma(schedule, 2), GPU)
        both = features_of(group, schedule, GPU)
        tile = (64 * case[0] if shared == 0 else case[2]) * case[-1][-1] * 2
        assert alone.bytes - both.bytes == alone.fetched - both.fetched == tile / 2
        assert both.shared == kernel.shared_bytes


def test_no_release_is_for_a_block_that_ended() -> None:
    kernel = small_kernel(3, 1024)
    (loop,) = (item for item in kernel.items if type(item).__name__ == "Loop")
    (release,) = (item for item in loop.body if isinstance(item, MbarrierArrive))
    assert release.blocks == 2
    assert release.when == (Guard(as_index(loop.var), 1, 16 - 3 + 1),)
    assert not any(isinstance(item, MbarrierArrive) for item in _inner(small_kernel(8, 512)))


def _inner(kernel: Kernel) -> list[Item]:
    return [item for loop in kernel.items if type(loop).__name__ == "Loop" for item in loop.body]


@pytest.mark.parametrize(
    ("bug", "report"),
    [
        (without(MbarrierArrive), "for a phase that nothing begins"),
        (with_fields(MbarrierArrive, blocks=1), "4 warps arrive at empty, which expects 8"),
        (with_fields(MbarrierInit, arrivals=4), "8 warps arrive at empty, which expects 4"),
        (with_fields(MbarrierWait, parity=as_index(0)), "has parity 0, its phase 1 has 1"),
        (with_fields(BulkFetch, nbytes=16384 - 4096), "its copies bring 16384"),
    ],
)
def test_planted_bugs_are_found(bug: Callable[[Item], Item | None], report: str) -> None:
    faults = check_barriers(replace_items(small_kernel(), bug))
    assert any(report in fault for fault in faults), faults


def test_clusters_are_verified() -> None:
    kernel = small_kernel()

    def with_copies(**fields: object) -> Callable[[Item], Item | None]:
        def replace(item: Item) -> Item | None:
            if not isinstance(item, BulkFetch):
                return item
            return evolve(item, copies=tuple(evolve(c, **fields) if c.across else c for c in item.copies))

        return replace

    rank = next(d.var for d in kernel.defines if d.var.name == "rank")
    block = Var("blk", kernel.blocks)
    swapped = tuple(evolve(d, value=as_index(block) // 2 % 2) if d.var == rank else d for d in kernel.defines)
    for broken, reason in (
        (evolve(kernel, cluster=3), "no clusters of 3"),
        (evolve(kernel, cluster=1), "released by other blocks"),
        (replace_items(kernel, with_fields(MbarrierArrive, blocks=1)), "released by other blocks"),
        (replace_items(kernel, with_copies(coordinates=(as_index(0), as_index(block)))), "parts of several boxes"),
        (evolve(kernel, defines=swapped), "does not number the blocks"),
        (replace_items(kernel, with_copies(across=Var("rank", 4))), "other blocks than the cluster of 2"),
    ):
        assert any(reason in error.message for error in kernel_violations(broken)), reason


def test_blocks_without_pairs_are_named() -> None:
    for case, reason in (
        ((1, 1, 64, 3, 1, (1, 192, 128, 512)), "3 blocks along a dim are no pairs"),
        ((2, 1, 96, 3, 1, (1, 256, 96, 512)), "1 blocks along a dim are no pairs"),
    ):
        assert reason in check_schedule(*pair_point(case), GPU)


@needs_toolchain
@pytest.mark.parametrize(("groups", "atoms", "columns"), [(2, 1, 256), (2, 2, 128), (1, 1, 64)])
def test_kernels_compile_without_serialisation(groups: int, atoms: int, columns: int) -> None:
    group, schedule = pair_point((groups, atoms, columns, 4, 8, (1, 4096, 4096, 4096)), DType.BF16)
    function = emit(extract(lower(group, schedule, {}, GPU)), "cuda")
    assert "__cluster_dims__(2, 1, 1)" in function.source
    cubin = compile_kernel(function, GPU.arch)
    assert (cubin.serialised, cubin.spill_bytes) == ("", 0)
    assert "__cluster_dims__" not in emit(extract(lower(group, schedule, {}, GPU)), "opencl").source
