"""Equality of results and an oracle of more bits."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.numerics.comparison import compare

MAX_ERROR = 1e-5


@pytest.mark.parametrize("sign", [1, -1])
def test_value_beyond_the_type_is_infinite(sign: int) -> None:
    expected = np.array([sign * 6e63, 1.0])
    assert compare("y", np.array([sign * np.inf, 1], np.float32), expected, MAX_ERROR).ok
    assert not compare("y", np.array([-sign * np.inf, 1], np.float32), expected, MAX_ERROR).ok
    assert not compare("y", np.array([3e38, 1], np.float32), expected, MAX_ERROR).ok
    assert compare("y", np.array([sign * 6e63, 1.0]), expected, MAX_ERROR).ok


def test_what_overflows_hides_no_other_error() -> None:
    assert not compare("y", np.array([np.inf, 1.5], np.float32), np.array([6e63, 1.0]), MAX_ERROR).ok
    assert not compare("y", np.array([np.inf, np.nan], np.float32), np.array([6e63, 1.0]), MAX_ERROR).ok


def test_an_infinity_out_of_nothing_is_wrong() -> None:
    assert not compare("y", np.array([np.inf, 1], np.float32), np.array([3e38, 1.0]), MAX_ERROR).ok
    assert compare("y", np.array([np.nan, np.inf], np.float32), np.array([np.nan, np.inf]), MAX_ERROR).ok
