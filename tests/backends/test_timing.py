"""Time of a kernel's runs as one number."""

from __future__ import annotations

from math import floor, inf
from statistics import fmean, median

import numpy as np
import pytest
from cuts.backends import Timing, middle_mean
from hypothesis import given
from hypothesis import strategies as st

SECONDS = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60)


@given(SECONDS, st.randoms(use_true_random=False))
def test_result_is_order_independent_and_scales_with_units(samples: list[float], random: object) -> None:
    found, ordered = middle_mean(samples), sorted(samples)
    outer = max(len(samples) // 6, 1 if len(samples) > 2 else 0)
    low, high = ordered[outer], ordered[-1 - outer]
    assert low * (1 - 1e-12) <= found <= high * (1 + 1e-12)
    random.shuffle(samples)  # type: ignore[attr-defined]
    assert middle_mean(samples) == found == Timing(tuple(samples)).typical
    assert middle_mean([2 * s for s in samples]) == pytest.approx(2 * found)


@pytest.mark.parametrize("count", range(3, 40))
def test_sixth_of_runs_on_either_side_is_ignored(count: int) -> None:
    outer = max(1, count // 6)
    middle = [1.0] * (count - 2 * outer)
    assert middle_mean([*[0.0] * outer, *middle, *[inf] * outer]) == 1.0


def test_one_or_two_runs_are_used_unchanged() -> None:
    assert middle_mean([2.0]) == 2.0
    assert middle_mean([2.0, 4.0]) == 3.0


def test_quantised_clock_is_averaged_out() -> None:
    """A median of quantised times resolves too little.

    Runs of an H200 take a multiple of 0.16 us, one more or one less: a median is no finer however many there are, and
    two kernels that differ by 3 % are often in the wrong order.
    """
    drawn = np.random.default_rng(3)

    def runs(seconds: float, count: int) -> list[float]:
        return [0.16e-6 * floor(seconds / 0.16e-6 + late) for late in drawn.random(count)]

    times = np.linspace(3.4e-6, 3.8e-6, 60)
    errors = {
        by: fmean(abs(by(runs(t, 24)) / t - 1.0) for t in times for _ in range(10)) for by in (middle_mean, median)
    }
    assert errors[middle_mean] < 0.006 < 0.009 < errors[median]
