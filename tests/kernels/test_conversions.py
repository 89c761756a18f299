"""Conversion of floats to integers.

One rule for every pair of types, on the reference and on devices.
"""

from __future__ import annotations

import math
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.ir import DType
from cuts.ir.evaluation import saturate
from cuts.tests.needs import needs_opencl
from cuts.tests.ops.test_empty_tensors import graph
from hypothesis import given
from hypothesis import strategies as st

FLOATS = [d for d in DType if d.is_float]
INTEGERS = [d for d in DType if d.is_int]


def edges(floats: DType) -> np.ndarray[Any, Any]:
    """Return the limits of every integer type, their neighbours, NaN and infinities."""
    powers = [math.ldexp(1.0, n) for n in (7, 8, 15, 16, 31, 32, 63, 64)]
    ends = np.array([*powers, 0.0, 0.5, 1.0, 1e30, math.inf])
    with np.errstate(over="ignore"):
        near = np.concatenate([ends, -ends]).astype(floats.numpy)
        bits = near.view(f"u{near.itemsize}")
        every = [near, (bits + 1).view(near.dtype), (bits - 1).view(near.dtype)]
        shifted = [near + near.dtype.type(s) for s in (-1.5, -1, 1, 1.5)]
    return np.concatenate([*every, *shifted, np.array([math.nan, 2.7, -2.7, 300, -300]).astype(near.dtype)])


def exactly(value: float, dtype: DType) -> int:
    """Convert by the rule, in integers of any size.

    Truncates towards zero, then takes the nearest value of the type; NaN is 0.
    """
    if math.isnan(value):
        return 0
    whole = math.trunc(value) if math.isfinite(value) else math.copysign(1 << 70, value)
    return int(min(max(whole, dtype.element.lowest), dtype.element.highest))


@given(st.floats(), st.sampled_from(INTEGERS))
def test_the_reference_cuts_and_saturates(value: float, dtype: DType) -> None:
    assert saturate(np.array([value]), dtype)[0] == exactly(value, dtype)


def check(floats: DType, integers: DType, target: str) -> None:
    x = edges(floats)
    found = cuts.build(graph("cast", x, to=integers.value), target=target).run({"x0": x})["y0"]
    expected = np.array([exactly(float(v), integers) for v in x], integers.numpy)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("floats", FLOATS)
def test_reference_makes_the_nearest_integer(floats: DType) -> None:
    for integers in INTEGERS:
        check(floats, integers, "reference")


@needs_opencl
@pytest.mark.parametrize("integers", INTEGERS)
@pytest.mark.parametrize("floats", FLOATS)
def test_kernels_make_the_same(floats: DType, integers: DType) -> None:
    check(floats, integers, "opencl")
