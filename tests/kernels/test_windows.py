"""Shared loads of neighbouring outputs of a filter.

A window covers all taps, or the inner ones where all are more than a thread holds, or none. The cost model counts as
many.
"""

from __future__ import annotations

from math import prod

import pytest
from cuts.backends.devices import find_target
from cuts.ir.dfg import Load, own_variables, post_order
from cuts.ir.kernel import phases
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, TileDim
from cuts.ir.segment import FusedGroup
from cuts.ir.traversal import reads
from cuts.ir.types import DType
from cuts.passes.geometry import geometry_of
from cuts.passes.lowering import extract, lower, max_window_elements
from cuts.passes.model.memory_access.evaluation_sites import evaluation_site

from ..needs import needs_opencl
from .cases import builder, unite
from .test_halves import in_type
from .test_points import SMALL_GPU, _device, check

GPU = find_target("cuda:sm_90")
CASES = [(3, 1, 2, 4), (5, 2, 4, 4), (5, 2, 2, 2), (3, 2, 8, 4)]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=str)
@pytest.mark.parametrize("outputs", [32, 29])  # 29 are no whole number of any thread's outputs
@pytest.mark.parametrize(("taps", "stride", "rows", "columns"), CASES)
def test_each_element_is_loaded_once_in_registers(
    taps: int, stride: int, rows: int, columns: int, outputs: int, dtype: DType
) -> None:
    make = builder()
    filters = make.input(8, 1, taps, taps)
    size = (outputs - 1) * stride + taps
    image = make.input(2, 8, size, size)
    value = make.node("conv", image, filters, groups=8, strides=(stride, stride))
    group = in_type(unite(make.programs(), value), dtype)
    (segment,) = group.segments
    threads = {len(segment.axes) - 2: rows, len(segment.axes) - 1: columns}
    tiles = [(axis, threads.get(n, 1)) for n, axis in enumerate(segment.axes)]
    dims = tuple(TileDim((axis,), 2 * each, each, each) for axis, each in tiles)
    loops = ReductionSchedule(tuple(ReduceDim((r,), r.extent) for r in segment.reductions[0].reduce))
    schedule = Schedule((SegmentSchedule(dims, (loops,)),))
    most = max_window_elements(group.tensors[image].dtype)
    high, wide = (stride * (n - 1) + taps for n in (rows, columns))
    each = taps * rows * (wide if rows * wide <= most else taps * columns)
    expected = high * wide if high * wide <= most else each
    assert loads(group, schedule, image) == expected
    (geometry,) = geometry_of(group, schedule)
    (read,) = (r for r in reads(segment.reductions[0].body) if r.tensor == image)
    assert evaluation_site(geometry, range(2)).loads(read, group.tensors[image]) == expected


def loads(group: FusedGroup, schedule: Schedule, tensor: str) -> int:
    """Return how many elements of a tensor a thread loads."""
    found = 0
    for phase in phases(extract(lower(group, schedule, {}, GPU)).items):
        for node in post_order(phase.roots):
            if isinstance(node, Load) and node.buffer == tensor:
                found += prod(v.extent for v in own_variables(node) & {*phase.unrolled})
    return found


@needs_opencl
@pytest.mark.parametrize("outputs", [9, 10, 11, 12])
@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (2, 2), (2, 3), (5, 2)])
@pytest.mark.parametrize("pad", [0, 1])
def test_what_only_missing_outputs_read_is_not_loaded(taps: int, stride: int, outputs: int, pad: int) -> None:
    """Two images of four outputs a thread.

    The last are beyond the end.
    """
    make = builder()
    value = make.node(
        "max_pool", make.input(2, 1, 1, (outputs - 1) * stride + taps - 2 * pad), kernel_shape=(1, taps),
        strides=(1, stride), pads=(0, pad, 0, pad),
    )  # fmt: skip
    group = unite(make.programs(), value)
    (segment,) = group.segments
    dims = tuple(TileDim((a,), *((4 * (a.extent // 4 + 1), 4, 4) if a.extent > 2 else (1, 1))) for a in segment.axes)
    loops = ReductionSchedule(tuple(ReduceDim((r,), r.extent) for r in segment.reductions[0].reduce))
    check(_device("opencl"), SMALL_GPU, group, Schedule((SegmentSchedule(dims, (loops,)),)))
