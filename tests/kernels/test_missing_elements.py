"""Missing elements of a K block add nothing.

Any value may lie in their slot. Elements that a block computes beyond a tensor may be infinite, and so may data;
neither is multiplied by a zero that replaces a missing element.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir import DType, FusedGroup, Schedule, parse_ir
from cuts.ir.affine import FloorDiv, Guard, Index, Var, as_index, ranges
from cuts.passes.fusion import interpret
from cuts.passes.lowering import check_barriers, extract, lower
from cuts.passes.schedule import make_space
from cuts.tests.emission import emit

from ..needs import needs_opencl
from .cases import legal_points
from .test_points import SMALL_GPU, _device, _run, check

#: Windows over results of rows: of the rows that a block makes besides, each value is infinite.
BOX = """var c < 3, j < 20, k < 5, o < 20, r < 3, s < 3

group {
  tensor x: f32[5, 3, 20]
  tensor v: f32[3, 3]
  tensor t: f32[3, 20]
  tensor a: f32[3, 20]
  tensor b: f32[20]
  tensor y: f32[20]
  inputs x, v
  outputs y
  shared t
  segment (c, j) {
    reduce a = sum over (k) of x[k, c, j]
    output t[c, j] = 1.0 / a[c, j]
  }
  segment (o) {
    reduce b = sum over (r, s) of v[r, s] * t[r, o + s - 1 if 0 <= o + s - 1 < 20 else 0]
    output y[o] = b[o]
  }
}
"""
#: A sum over two axes; one factor varies with the inner one alone: after the last element it begins again.
INNER = """var i < 6, r < 3, s < 3

group {
  tensor v: f32[6, 3, 3]
  tensor w: f32[6, 3]
  tensor a: f32[6]
  tensor y: f32[6]
  inputs v, w
  outputs y
  segment (i) {
    reduce a = sum over (r, s) of v[i, r, s] * w[i, s]
    output y[i] = a[i]
  }
}
"""


FLOATS = (DType.F32, DType.F16, DType.BF16, DType.F64)


def points_of(text: str, dtype: DType) -> tuple[FusedGroup, list[Schedule]]:
    """Return a group and some legal points of each template.

    Its elements are of a given type.
    """
    literals = text.replace("1.0", "1.0:f64") if dtype == DType.F64 else text  # others compute in f32
    group = parse_ir(literals.replace("f32", str(dtype)))
    assert isinstance(group, FusedGroup)
    space = make_space(group, SMALL_GPU)
    return group, [p for n, s in enumerate(space.templates) for p in legal_points(space, s, n, 6)]


@needs_opencl
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elements_beyond_a_box_add_nothing(dtype: DType) -> None:
    group, points = points_of(BOX, dtype)
    assert len(points) > 8
    for schedule in points:
        assert check_barriers(lower(group, schedule, {}, SMALL_GPU)) == ()
        check(_device("opencl"), SMALL_GPU, group, schedule)


@needs_opencl
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)  # halves are multiplied as f32
def test_infinite_data_is_multiplied_by_existing_elements_only(dtype: DType, value: float) -> None:
    group, points = points_of(INNER, dtype)
    inputs = {"v": np.ones((6, 3, 3), dtype.numpy), "w": np.full((6, 3), value, dtype.numpy)}
    assert len(points) > 4
    for schedule in points:
        kernel = emit(extract(lower(group, schedule, {}, SMALL_GPU)), "opencl")
        found = _run(_device("opencl"), kernel, group, inputs)
        np.testing.assert_array_equal(found["y"], interpret(group, inputs)["y"].astype(dtype.numpy), str(schedule))


@pytest.mark.parametrize("divisor", [1, 3, 4])
@pytest.mark.parametrize(("low", "high"), [(0, 4), (1, 2), (0, 1), (2, 9), (7, 9)])
@pytest.mark.parametrize("offset", [0, 5, 8])
def test_guard_of_a_quotient_limits_the_dividend(divisor: int, low: int, high: int, offset: int) -> None:
    k = Var("k", 16)
    quotient = as_index(k) + offset if divisor == 1 else Index(0, ((FloorDiv(as_index(k) + offset, divisor), 1),))
    wanted = [n for n in range(16) if low <= (n + offset) // divisor < high]
    found = ranges([Guard(quotient, low, high)])
    assert (found is None) == (not wanted)
    if found is not None and wanted:
        assert found.get(k, (0, 15)) == (wanted[0], wanted[-1])
