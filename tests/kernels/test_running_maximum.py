"""Sums of exponentials beside a running maximum: rows are read once.

m = max over r of z[r];  t = sum over r of exp(z[r] - m) * v[r]
"""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.source.emit import emit
from cuts.ir.affine import Var
from cuts.ir.expr import Cast, Const, Expr, call
from cuts.ir.kernel import Loop
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, TileDim
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.types import DType, TensorType
from cuts.passes.geometry.row_sharing import shareable_loops
from cuts.passes.lowering import extract, lower
from cuts.passes.model import features_of

from ..needs import needs_opencl
from ..search_space.groups import at, write
from .test_points import SMALL_GPU, _device, _run, check

ROWS, COLUMNS = 6, 91
#: Reduction threads of a row, its vectors, and the elements that they take in one trip.
LANES = ((1, 1, 8), (8, 4, 32), (16, 1, 16), (16, 2, 96))


def softmax_sums(dtype: DType = DType.F32, weighted: bool = False, guarded: bool = False) -> FusedGroup:
    """Return each row's maximum and sum of shifted exponentials."""
    i, r = Var("i", ROWS), Var("r", COLUMNS)
    wide = DType.F64 if dtype is DType.F64 else DType.F32
    x: Expr = at("x", i, r) if dtype is wide else Cast(wide, at("x", i, r))
    greatest: Expr = at("m", i) if dtype is wide else Cast(dtype, at("m", i))
    if guarded:
        low = Const(-np.inf, dtype)
        greatest = call("select", call("ne", greatest, low), greatest, Const(0.0, dtype))
    weight = call("exp", call("sub", x, greatest if dtype is wide else Cast(wide, greatest)))
    body = call("mul", weight, at("v", r)) if weighted else weight
    reductions = (Reduction("m", (r,), "max", x), Reduction("t", (r,), "sum", body))
    outputs = (Output("y", write(i), at("m", i)), Output("z", write(i), at("t", i)))
    types = {name: TensorType(wide, (ROWS,)) for name in "mtyz"}
    types |= {"x": TensorType(dtype, (ROWS, COLUMNS)), "v": TensorType(wide, (COLUMNS,))}
    inputs = ("x", "v") if weighted else ("x",)
    tensors = {name: t for name, t in types.items() if name != "v" or weighted}
    return FusedGroup((Segment((i,), reductions, outputs),), tensors, inputs, ("y", "z"))


def schedule(group: FusedGroup, lanes: int, vector: int, chunk: int, cached: int = 0) -> Schedule:
    """Return a schedule of two rows a block."""
    (segment,) = group.segments
    loop = ReductionSchedule((ReduceDim(segment.reductions[0].reduce, chunk),))
    dims = (TileDim(segment.axes, 2, 1),)
    return Schedule((SegmentSchedule(dims, (loop,) * 2, reduction_threads=lanes, row_vector=vector, row_cache=cached),))


def run(group: FusedGroup, point: Schedule, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return maxima and sums that a kernel computes."""
    function = emit(extract(lower(group, point, {}, SMALL_GPU)), "opencl")
    found = _run(_device("opencl"), function, group, {"x": x})
    return found["y"], found["z"]


def test_shifted_sums_join_the_loop_of_their_maximum() -> None:
    group = softmax_sums()
    assert shareable_loops(group.segments[0]) == (False, True)
    kernel = lower(group, schedule(group, 8, 4, 32), {}, SMALL_GPU)
    assert sum(isinstance(item, Loop) for item in kernel.items) == 1
    assert features_of(group, schedule(group, 8, 4, 32), SMALL_GPU).segments[0].loads == 96 / 8


def test_other_sums_wait_for_the_maximum() -> None:
    (segment,) = softmax_sums().segments
    (i,), (r,) = segment.axes, segment.reductions[0].reduce
    for body in (
        call("exp", call("sub", at("x", r, i), at("m", i))),  # other elements
        call("mul", call("exp", call("sub", at("x", i, r), at("m", i))), at("m", i)),
        call("sub", at("x", i, r), at("m", i)),
    ):
        first, second = segment.reductions
        assert shareable_loops(evolve(segment, reductions=(first, evolve(second, body=body)))) == (False, False)


@needs_opencl
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16])
def test_sums_are_those_of_two_passes(lanes: tuple[int, int, int], dtype: DType) -> None:
    for weighted in (False, True):
        group = softmax_sums(dtype, weighted)
        check(_device("opencl"), SMALL_GPU, group, schedule(group, *lanes))


@needs_opencl
@pytest.mark.parametrize("cached", [32, 96])
def test_sums_over_a_row_cache(cached: int) -> None:
    group = softmax_sums()
    check(_device("opencl"), SMALL_GPU, group, schedule(group, 8, 4, 32, cached))


@needs_opencl
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_infinities_and_numbers_far_below_zero(dtype: DType, lanes: tuple[int, int, int], guarded: bool) -> None:
    x = np.full((ROWS, COLUMNS), -np.inf, np.float32 if dtype is DType.F32 else np.float16)
    x[0, 70] = -200.0  # a thread without finite elements, and exp(200) is infinite
    x[1, :2] = (-300.0, 300.0)
    x[2, 5] = np.nan
    x[3, 9] = np.inf
    x[4] = -1000.0
    group = softmax_sums(dtype, guarded=guarded)
    greatest, total = run(group, schedule(group, *lanes), x)
    np.testing.assert_array_equal(greatest, [-200.0, 300.0, np.nan, np.inf, -1000.0, -np.inf])
    np.testing.assert_array_equal(total, [1.0, 1.0, np.nan, np.nan, COLUMNS, 0.0 if guarded else np.nan])
