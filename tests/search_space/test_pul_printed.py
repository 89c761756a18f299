"""PUL as printed: counts of Tables 7 and 8, and ratios."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.ir import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.passes.geometry import geometry_of
from cuts.passes.model import features_of, printed_pul, pul
from cuts.passes.model.pul_printed import _counts, printed_wb_ratio
from cuts.passes.schedule import batches, make_space

from .groups import ALL, conv, matmul, pointwise

V100 = find_target("cuda:v100")


def printed_counts(group, schedule):
    features = features_of(group, schedule, V100)
    (segment,), (sizes,) = group.segments, geometry_of(group, schedule)
    return _counts(group, segment, sizes, features.segments[0], V100)


@pytest.mark.parametrize(("blocks", "ratio"), [(131, 0.008), (132, 1.0), (133, 0.996), (264, 1.0)])
def test_printed_wb_ratio_is_inverse(blocks, ratio):
    assert float(printed_wb_ratio(float(blocks), 132)) == pytest.approx(ratio, abs=5e-4)


def test_printed_counts_of_a_convolution():
    group = conv(1, 16, 32, 14)
    n, k, h, w = group.segments[0].axes
    c, r, s = group.segments[0].reductions[0].reduce
    tiles = ((n, 1, 1), (k, 8, 2), (h, 14, 2), (w, 14, 1))
    dims = tuple(TileDim((axis,), block, thread) for axis, block, thread in tiles)
    loop = ReductionSchedule((ReduceDim((c,), 4), ReduceDim((r,), 3), ReduceDim((s,), 3)), (Staging(0), Staging(1)))
    counts = printed_counts(group, Schedule((SegmentSchedule(dims, (loop,)),)))
    rows = (14 + 3 - 2) // 1 + 1
    assert float(counts.transactions) == pytest.approx(16 * rows * rows / 32 + np.ceil(8 * 16 * 9 / 32))
    assert float(counts.loads) == pytest.approx(16 * (2 + 3 - 2 + 1) * (1 + 3 - 2 + 1) + 2 * 16 * 9 / 32)


def test_printed_counts_of_a_product_and_a_function():
    group = matmul(1024, 1024, 1024)
    i, j = group.segments[0].axes
    (c,) = group.segments[0].reductions[0].reduce
    loop = ReductionSchedule((ReduceDim((c,), 16),), (Staging(0), Staging(1)))
    dims = (TileDim((i,), 64, 4), TileDim((j,), 48, 4))
    counts = printed_counts(group, Schedule((SegmentSchedule(dims, (loop,)),)))
    assert float(counts.transactions) == 64 * 1024 / 32 + 1024 * 2
    assert float(counts.loads) == 4 * 1024 + 1024 * 4
    group = pointwise(64, 64)
    dims = tuple(TileDim((axis,), block, 1) for axis, block in zip(group.segments[0].axes, (4, 64), strict=True))
    counts = printed_counts(group, Schedule((SegmentSchedule(dims, ()),)))
    assert float(counts.transactions) == pytest.approx(4 * 32 * len(group.inputs))


def test_printed_and_corrected_values_differ_by_the_corrections():
    for group in ALL.values():
        for batch in batches(make_space(group, V100, coarse=True)):
            printed = batch.flat(printed_pul(group, batch.sizes, batch.features, V100))
            assert printed.min() >= 0
            assert printed.max() <= 1 + 1e-9
            full = batch.flat(batch.features.threads) >= V100.MAX_thread
            assert not printed[full].any()
            assert pul(batch.features, V100) is not None
            break
