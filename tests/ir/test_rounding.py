"""The tolerance covers what rounding does, and little more: sums in each float type against exact ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuts.ir.rounding import epsilon, magnitude, relative_error, tolerance
from cuts.ir.types import DType
from hypothesis import given
from hypothesis import strategies as st

FLOATS = [d for d in DType if d.is_float]


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_float], ids=lambda d: d.value)
def test_integers_are_exact(dtype: DType) -> None:
    assert tolerance(dtype, 1 << 20, 100) == 0.0


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
def test_a_tolerance_grows_like_the_root_of_what_rounds(dtype: DType) -> None:
    single = tolerance(dtype, 1)
    assert single >= epsilon(dtype)
    assert single < tolerance(dtype, 4) <= 2 * single
    assert tolerance(dtype, 4, 4) == pytest.approx(2 * single)


def test_what_is_stored_narrower_on_the_way_rounds_as_much() -> None:
    assert tolerance(DType.F32, 1, 1, DType.F16) > tolerance(DType.F16, 1) / 2
    assert tolerance(DType.F64, 9, 9, DType.F64) == tolerance(DType.F64, 9, 9)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda d: d.value)
@given(seed=st.integers(0, 1 << 20), terms=st.integers(1, 3000))
def test_a_sum_one_after_the_other_errs_less(dtype: DType, seed: int, terms: int) -> None:
    numbers = np.random.default_rng(seed).standard_normal((16, terms)).astype(dtype.numpy)
    found = np.add.accumulate(numbers, axis=1, dtype=dtype.numpy)[:, -1]
    exact = np.array([math.fsum(row) for row in numbers.tolist()])
    assert (relative_error(found, exact, magnitude(exact)) <= tolerance(dtype, terms)).all()


def test_equal_infinities_and_nans_are_right_and_others_are_not() -> None:
    expected = np.array([math.inf, math.nan, math.inf, 1.0, math.nan])
    found = np.array([math.inf, math.nan, -math.inf, math.nan, 1.0])
    assert relative_error(found, expected, magnitude(expected)).tolist() == [0.0, 0.0, math.inf, math.inf, math.inf]
