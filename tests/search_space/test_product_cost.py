"""Cost of products by bulk copies, beside times of an H200."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType
from cuts.passes.model import features_of
from cuts.passes.model.cost_model import estimate_time
from cuts.passes.model.lower_bound import lower_bound
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.passes.split.split_reduction import split_reduction
from cuts.tests.kernels.test_bulk_copies import with_tma
from cuts.tests.kernels.test_warpgroup_products import halves, point
from cuts.tests.products import FORMATS, product_group

H200 = find_target("cuda:h200")
#: With a cold L2 cache: elements along each axis; warpgroups, instructions of each, columns; stages, `tma`, raster,
#: microseconds.
MEASURED_PRODUCTS = (
    (8192, (2, 2, 192), 4, 2, 8, 1430.0),
    (8192, (2, 1, 256), 4, 2, 8, 1519.0),
    (8192, (2, 1, 256), 4, 1, 8, 1665.0),
    (8192, (2, 1, 128), 3, 1, 8, 2135.0),
    (4096, (2, 1, 256), 4, 2, 1, 199.0),
)


def square_point(
    size: int, tile: tuple[int, int, int], stages: int, tma: int, raster: int
) -> tuple[FusedGroup, Schedule]:
    """Return a square product of halves and one of its points."""
    group = product_group(FORMATS["bf16"], (1, size, size, size), DType.BF16)
    groups, atoms, columns = tile
    schedule = point(group, (True, False), groups=groups, atoms=atoms, columns=columns, stages=stages)
    return group, evolve(with_tma(schedule, tma), raster=raster)


def seconds(group: FusedGroup, schedule: Schedule) -> float:
    features = features_of(group, schedule, H200)
    return float(estimate_time(features, lower_bound(features, H200), H200))


@pytest.mark.parametrize(("size", "tile", "stages", "tma", "raster", "measured"), MEASURED_PRODUCTS)
def test_products_take_as_long_as_estimated(
    size: int, tile: tuple[int, int, int], stages: int, tma: int, raster: int, measured: float
) -> None:
    group, schedule = square_point(size, tile, stages, tma, raster)
    assert seconds(group, schedule) * 1e6 == pytest.approx(measured, rel=0.15)
    assert float(lower_bound(features_of(group, schedule, H200), H200).time) * 1e6 < measured


def test_bound_lets_neighbours_share_reads_of_threads() -> None:
    """Measured on an H200: 604 MB through L2 in 64.6 us.

    64 blocks of a row copy one tile at the same time.
    """
    group, schedule = square_point(2048, (2, 2, 32), 4, 0, 1)
    assert float(lower_bound(features_of(group, schedule, H200), H200).time) * 1e6 < 64.58


def gradient_point(columns: int, stages: int, swizzle: int = 128) -> tuple[FusedGroup, Schedule]:
    """Return a gradient of 544 channels from 128, for teams."""
    group = product_group(FORMATS["bf16"], (1, 12544, 544, 128), DType.BF16)
    schedule = point(group, (True, False), (128, swizzle), atoms=2, columns=columns, vector=8, stages=stages)
    return group, with_tma(schedule, 4)


def test_a_ring_of_one_tile_waits() -> None:
    ones = [seconds(*gradient_point(96, stages, 64)) * 1e6 for stages in (2, 4)]
    assert ones[0] == pytest.approx(13.0, rel=0.25)
    assert ones[1] < 0.85 * ones[0]


def test_narrow_lines_take_as_long_as_wide_ones() -> None:
    group, _ = gradient_point(64, 4)
    wide, narrow = (features_of(group, gradient_point(n, 4, s)[1], H200) for n, s in ((64, 128), (96, 64)))
    assert float(wide.boxed) == 2 * (128 + 64)  # two K blocks
    assert float(narrow.boxed) == 2 * (128 + 3 * 64)


@pytest.mark.parametrize(("size", "measured"), [(1000, 9.6), (1024, 5.8), (2000, 26.8)])
def test_lines_that_begin_within_sectors_take_longer(size: int, measured: float) -> None:
    groups, columns = (2, 64) if size < 2000 else (2, 256)
    group = product_group(FORMATS["bf16"], (1, size, size, size), DType.F16)
    schedule = with_tma(point(group, (True, False), groups=groups, columns=columns, vector=8, stages=4), 2)
    features = features_of(group, schedule, H200)
    assert float(features.straddling) == (float(features.boxed) / 2 if size == 1000 else 0.0)
    assert seconds(group, schedule) * 1e6 == pytest.approx(measured, rel=0.2)


def test_only_persistent_grids_have_stages_for_further_tiles() -> None:
    group, _ = gradient_point(64, 4)
    space = make_space(group, H200)
    for template in space.templates:
        if not template.segments[0].bulk:
            continue
        batch = evaluate(space, template, columns_at(template, np.arange(0, template.size, 7)), 0)
        stages, form = (np.broadcast_to(batch.columns[f"s0.{x}"], batch.shape)[batch.legal] for x in ("stages", "tma"))
        assert set(stages[form < 3]) == {2}
        assert {4, 6} < set(stages[form >= 3])


def test_parts_of_a_depth_are_boxes() -> None:
    group = halves((1, 512, 2048, 8192), (True, True))
    parts, _ = split_reduction(group, 4) or (None, None)
    assert parts is not None
    assert any(template.segments[0].bulk for template in make_space(parts, H200).templates)
    ragged, _ = split_reduction(halves((1, 512, 2048, 8224), (True, True)), 2) or (None, None)
    assert ragged is not None  # its parts have a dim of their own, so that elements past their ends are 0
    assert any(template.segments[0].bulk for template in make_space(ragged, H200).templates)


def test_independent_products_share_reads_among_their_own_blocks() -> None:
    found = []
    for batch, rows in ((1, 2048), (4, 512)):
        group = halves((batch, rows, 2048, 2048), (True, True))
        features = features_of(group, with_tma(point(group, (True, True), columns=128), 2), H200)
        found.append([float(x) for x in (features.rows, features.columns, features.batches, features.outer)])
    assert found == [[*found[0][:2], 1.0, 32.0], [*found[0][:2], 4.0, 8.0]]


def test_coefficients_are_the_target_s() -> None:
    group, schedule = square_point(4096, (2, 1, 256), 4, 2, 1)
    features = features_of(group, schedule, H200)
    slow = evolve(H200, costs=evolve(H200.costs, bulk_tensor=2.0 * H200.costs.bulk_tensor))
    bound = lower_bound(features, H200)
    assert lower_bound(features, slow) == bound
    assert float(estimate_time(features, bound, slow)) > 1.3 * float(estimate_time(features, bound, H200))


@pytest.mark.parametrize(("changes", "ratio"), [({}, 2.0), ({"fragments": 1}, 3.0), ({"bulk": 2}, 1.0)])
def test_copies_of_threads_have_factors(changes: dict[str, int], ratio: float) -> None:
    group, schedule = square_point(4096, (2, 1, 256), 4, 0, 1)
    features = features_of(group, schedule, H200)
    assert not features.fragments
    features = evolve(features, **changes)
    times = []
    for copied, loaded in ((1.0, 1.0), (2.0, 3.0)):
        costs = evolve(H200.costs, copied_products=copied, fragment_products=loaded)
        machine = evolve(H200, costs=costs)
        times.append(float(estimate_time(features, lower_bound(features, machine), machine)))
    assert times[1] == pytest.approx(ratio * times[0], rel=0.02)
    assert find_target("cuda:a100").costs.fragment_products == 1.0
