"""Tolerances cover rounding, and little more.

Sums in each float type are compared with exact ones.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuts.ir.types import DType
from cuts.numerics.comparison import magnitude, relative_error
from cuts.numerics.tolerance import epsilon, tolerance
from hypothesis import given
from hypothesis import strategies as st

FLOATS = [d for d in DType if d.is_float]


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_float], ids=lambda d: d.value)
def test_integers_are_exact(dtype: DType) -> None:
    assert tolerance(dtype, 1 << 20, 100) == 0.0


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
def test_a_tolerance_grows_like_the_roundings_root(dtype: DType) -> None:
    single = tolerance(dtype, 1)
    assert single >= epsilon(dtype)
    assert single < tolerance(dtype, 4) <= 2 * single
    assert tolerance(dtype, 4, 4) == pytest.approx(2 * single)


def test_narrow_intermediate_storage_counts_as_rounding() -> None:
    assert tolerance(DType.F32, 1, 1, DType.F16) > tolerance(DType.F16, 1) / 2
    assert tolerance(DType.F64, 9, 9, DType.F64) == tolerance(DType.F64, 9, 9)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda d: d.value)
@given(seed=st.integers(0, 1 << 20), terms=st.integers(1, 3000))
def test_a_sum_one_after_the_other_errs_less(dtype: DType, seed: int, terms: int) -> None:
    numbers = np.random.default_rng(seed).standard_normal((16, terms)).astype(dtype.numpy)
    found = np.add.accumulate(numbers, axis=1, dtype=dtype.numpy)[:, -1]
    exact = np.array([math.fsum(row) for row in numbers.tolist()])
    assert (relative_error(found, exact, magnitude(exact)) <= tolerance(dtype, terms)).all()


def test_only_equal_infinities_and_nans_are_right() -> None:
    expected = np.array([math.inf, math.nan, math.inf, 1.0, math.nan])
    found = np.array([math.inf, math.nan, -math.inf, math.nan, 1.0])
    assert relative_error(found, expected, magnitude(expected)).tolist() == [0.0, 0.0, math.inf, math.inf, math.inf]
