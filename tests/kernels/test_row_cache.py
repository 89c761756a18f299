"""Shared-memory row cache: results equal those of kernels that load rows again.

Rows hold any numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.ir.kernel import phases
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir
from cuts.ir.types import DType
from cuts.numerics.tolerance import tolerance
from cuts.passes.geometry import schedule_of
from cuts.passes.geometry.row_sharing import cached_reads
from cuts.passes.inspection.verify import verify_kernel
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit

from ..needs import DEVICES
from .cases import accumulation, builder, unite
from .extremes import extremes
from .test_points import GPU, SMALL_GPU, _device, _run, check

#: Blocks of so few threads that rows of more than 64 elements may be kept.
TINY_GPU = evolve(SMALL_GPU, MAX_thread=8)
#: Operations over rows: names, operands of the row's length that belong to all rows, of the rows' shape.
ROWS = {
    "softmax": (0, 1),
    "log_softmax": (0, 1),
    "layer_norm": (2, 1),
    "rms_norm": (1, 1),
    "softmax_grad": (0, 2),
    "log_softmax_grad": (0, 2),
}
TYPES = (DType.F32, DType.F16, DType.BF16, DType.F64)


def rows(op: str, dtype: DType, *shape: int) -> FusedGroup:
    """Return the group of an operation over rows."""
    make = builder()
    shared, whole_ = ROWS[op]
    operands = [make.input(*shape, dtype=dtype) for _ in range(whole_)]
    y = make.node(op, *operands, *(make.input(shape[-1], dtype=dtype) for _ in range(shared)))
    return unite(make.programs(), y)


def keeping(group: FusedGroup, target: Any, seed: int, count: int) -> list[Schedule]:
    """Return legal points that keep rows."""
    space = make_space(group, target)
    found: list[Schedule] = []
    for structure in (s for s in space.templates if s.segments[-1].caches_rows and not s.segments[-1].clusters):
        numbers = np.random.default_rng(seed).integers(0, structure.size, 4096)
        columns = columns_at(structure, numbers)
        legal = evaluate(space, structure, columns, 0, numbers).legal & (columns["s0.row_cache"] > 0)
        for n in np.flatnonzero(legal)[:count]:
            values = {k: int(v[n]) for k, v in columns.items()}
            found.append(schedule_of(group, structure, values, target.warp_size))
    return found


def special(group: FusedGroup) -> dict[str, np.ndarray[Any, Any]]:
    """Return inputs with every extreme value.

    Some rows have many of them, others none.
    """
    generator = np.random.default_rng(3)
    found = {}
    for tensor in group.inputs:
        kind = group.tensors[tensor]
        array = generator.standard_normal(kind.shape).astype(kind.dtype.numpy)
        places = (np.linspace(0, 0.1, kind.shape[0]) > generator.random(kind.shape).T).T
        array[places] = generator.choice(extremes(kind.dtype), int(places.sum()))
        found[tensor] = array
    return found


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("op", ROWS)
def test_what_is_kept_is_what_was_loaded(op: str, dtype: DType, target: str) -> None:
    device, machine = _device(target), TINY_GPU if target.startswith("opencl") else evolve(GPU, MAX_thread=64)
    group = rows(op, dtype, 5, 71 if machine is TINY_GPU else 8 * 64 + 7)
    inputs = special(group)
    points = keeping(group, machine, 1, 2)
    assert points
    for schedule in points:
        if schedule is points[0]:
            check(device, machine, group, schedule)
        results = []
        for point in (schedule, evolve(schedule, segments=(evolve(schedule.segments[0], row_cache=0),))):
            kernel = lower(group, point, {}, machine)
            assert not check_barriers(kernel) and not check_schedule(group, point, machine)
            results.append(_run(device, emit(extract(kernel), device.target.dialect), group, inputs))
        for name in group.outputs:
            kept, loaded = (r[name].astype(np.float64) for r in results)
            # Compilers join a product and a sum in one kernel and not in the other.
            allowed = 4 * tolerance(dtype, *accumulation(group))
            assert np.isclose(kept, loaded, allowed, allowed, equal_nan=True).all(), schedule


def test_statements_keep_what_they_share() -> None:
    kept = {op: [r.tensor for r in cached_reads(rows(op, DType.F32, 4, 96).segments[0], ())] for op in ROWS}
    assert [len(kept[op]) for op in ROWS] == [1, 1, 1, 1, 2, 1]
    assert not cached_reads(whole_sum().segments[0], ())


def whole_sum() -> FusedGroup:
    """Return the group of sums of rows: one statement reads a row."""
    make = builder()
    y = make.node("reduce_sum", make.input(4, 96), axes=(1,))
    return unite(make.programs(), y)


@pytest.mark.parametrize("width", [20000, 65536])
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32], ids=str)
def test_long_rows_are_kept_by_choice(dtype: DType, width: int) -> None:
    group = rows("softmax", dtype, 256, width)
    (best,) = choose(group, evolve(GPU, cluster_blocks=1))
    assert best.schedule.segments[0].row_cache * dtype.size <= GPU.MAX_shared
    resident = all(d.trips == 1 for r in best.schedule.segments[0].reductions for d in r.dims)
    assert best.schedule.segments[0].row_cache or resident
    assert best.features["again"] < group.tensors[group.inputs[0]].dtype.size * width


def test_a_hand_written_point_keeps_whole_trips() -> None:
    group = rows("softmax", DType.F32, 2, 96)
    (point, *_) = keeping(group, TINY_GPU, 1, 1)
    (segment,) = point.segments
    wrong = evolve(point, segments=(evolve(segment, row_cache=segment.row_cache + 1),))
    assert any("whole" in fault for fault in check_schedule(group, wrong, TINY_GPU))


#: A channel's gradient by its data, and a step of its scale: the value written row by row and once reads other numbers.
SEVERAL = """\
var i0 < 5, r0 < {width}

group {{
  tensor t0: f32[5, {width}]
  tensor t1: f32[5]
  tensor t2: f32[5]
  tensor t3: f32[5]
  tensor t4: f32[]
  tensor t5: f32[5, {width}]
  tensor t6: f32[5]
  tensor t7: f32[5]
  tensor acc0: f32[5]
  inputs t0, t1, t2, t3, t4
  outputs t5, t6, t7
  segment (i0) {{
    reduce acc0 = sum over (r0) of t0[i0, r0]
    output t5[i0, r0] for (r0) = t0[i0, r0] * t1[i0] - acc0[i0] * t2[i0]
    output t6[i0] = t3[i0] * t3[i0] + acc0[i0]
    output t7[i0] = t2[i0] - t4[] * (t3[i0] * t3[i0] + acc0[i0])
  }}
}}
"""


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)  # halves are computed with as f32
def test_last_phases_hold_their_own_values(dtype: DType, target: str) -> None:
    """Registers that one phase loads before the sums are not another phase's."""
    device, machine = _device(target), TINY_GPU if target.startswith("opencl") else evolve(GPU, MAX_thread=64)
    width = 71 if machine is TINY_GPU else 8 * 64 + 7
    group = parse_ir(SEVERAL.format(width=width).replace("f32", str(dtype)))
    assert isinstance(group, FusedGroup)
    points, early = keeping(group, machine, 1, 8), 0
    for schedule in points:
        kernel = lower(group, schedule, {}, machine)
        verify_kernel(kernel)
        early += sum(phase.name.endswith("early") for phase in phases(kernel.items)) > 1
        check(device, machine, group, schedule)
    assert early
