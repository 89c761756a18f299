"""Equations 1 to 4 against a library with known tiles and coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.errors import UsageError
from cuts.latency.convolution import FIELDS, Convolutions, convolution
from cuts.latency.predictors.tiles import FORMS, SIZES, fit_tiles, grid_size
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy", reason="coefficients are found by scipy's linear programs")
from cuts.latency.predictors.fitting import least_deviations
from cuts.latency.predictors.kernel_model import KernelFit
from cuts.tests.latency.simulator import KERNELS, layers, profile


def test_product_sizes_are_those_of_the_paper() -> None:
    row = Convolutions([convolution({"N": 16, "C": 64, "H": 56, "K": 128, "R": 3, "stride": 2})])
    assert (row.p[0], row.q[0], row.m[0], row.n[0], row.k[0]) == (28, 28, 16 * 28 * 28, 128, 576)
    assert row.m_in[0] == 16 * 64 * 56 * 56 + 128 * 576
    assert row.m_out[0] == 16 * 28 * 28 * 128
    assert row.flops[0] == 2 * 16 * 28 * 28 * 128 * 576


def test_a_description_may_leave_out_what_is_usual() -> None:
    row = dict(zip(FIELDS, convolution({"C": 8, "H": 14, "K": 4, "R": 5}), strict=True))
    assert row | {"N": 1, "W": 14, "S": 5, "stride_h": 1, "pad_h": 2, "pad_w": 2, "dilation": 1, "groups": 1} == row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C": 0}, "size C=0 of a convolution: expected 1 to"),
        ({"K": -3}, "size K=-3"),
        ({"R": 9, "pad": 0, "H": 5}, "a filter of 9x9 does not fit an image of 5x5"),
        ({"groups": 3}, "C=64 cannot be split into groups=3"),
        ({"X": 1}, "unknown size 'X' of a convolution"),
        ({"stride": 0}, "size stride_h=0"),
        ({"N": 1 << 21}, "size N=2097152"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convolution({"N": 1, "C": 64, "H": 56, "K": 64, "R": 3} | change)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(UsageError, match="size 'K' of a convolution is missing"):
        convolution({"C": 64, "H": 56, "R": 3})


@given(st.sampled_from(SIZES), st.sampled_from(SIZES), st.sampled_from(FORMS))
def test_tiles_that_were_used_explain_every_grid(blk_m: int, blk_n: int, form: str) -> None:
    each = layers(40)
    blocks = grid_size(each, blk_m, blk_n, form)
    found = fit_tiles(each, blocks)
    assert found.exact == 1.0
    assert np.array_equal(found.blocks(each), blocks)


def test_a_grid_grows_monotonically_by_tiles() -> None:
    sweep = Convolutions([convolution({"N": 4, "C": 64, "H": 28, "K": k, "R": 3}) for k in range(1, 300)])
    blocks = grid_size(sweep, 128, 64)
    assert set(np.flatnonzero(np.diff(blocks)) % 64) == {63}
    assert np.all(np.diff(blocks) >= 0)


def test_tiles_of_every_kernel_are_found_from_grids() -> None:
    each = layers()
    names, blocks, _ = profile(each)
    for name, model in KERNELS.items():
        own = names == name
        found = fit_tiles(each[own], blocks[own])
        assert (found.blk_m, found.blk_n, found.form) == (model.tiles.blk_m, model.tiles.blk_n, "flat")


def test_ties_are_counted() -> None:
    small = Convolutions([convolution({"C": 8, "H": 2, "K": 4, "R": 1})])
    assert fit_tiles(small, np.array([1])).ties > 50


@pytest.mark.parametrize("relative", [True, False])
def test_coefficients_are_found_again(relative: bool) -> None:
    each = layers()
    names, blocks, us = profile(each, noise=0.0)
    for name, model in KERNELS.items():
        own = names == name
        found = KernelFit(waves=False, relative=relative).kernel(each[own], blocks[own], us[own])
        assert found.t_k == pytest.approx(model.t_k, rel=1e-3)
        assert found.gamma == pytest.approx(model.gamma, rel=2e-2)
        np.testing.assert_allclose(found.predict(each[own]), us[own], rtol=2e-3)


def test_outliers_do_not_move_the_coefficients() -> None:
    each = layers()
    names, blocks, us = profile(each, noise=0.0)
    own = names == "sgemm_128x128"
    spoilt = us[own].copy()
    spoilt[::10] *= 5
    found = KernelFit(waves=False).kernel(each[own], blocks[own], spoilt)
    assert found.t_k == pytest.approx(KERNELS["sgemm_128x128"].t_k, rel=1e-3)


def test_waves_of_a_library_are_found() -> None:
    each = layers()
    tiles = KERNELS["sgemm_64x64"].tiles
    blocks = tiles.blocks(each)
    us = np.ceil(blocks / (132 * 3)) * each.k * 0.02 + 2.0
    found = KernelFit().kernel(each, blocks, us)
    assert found.resident == 3
    np.testing.assert_allclose(found.predict(each), us, rtol=1e-3)
    linear = KernelFit(waves=False).kernel(each, blocks, us)
    assert np.median(np.abs(linear.predict(each) / us - 1)) > 0.02


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=3))
def test_least_deviations_of_exact_data_are_the_coefficients(truth: list[float]) -> None:
    a = np.random.default_rng(0).uniform(0.1, 1, (30, 3)) * np.array([1e8, 1.0, 1e-4])
    coefficients = np.array(truth) * np.array([1e-8, 1.0, 1e4])
    np.testing.assert_allclose(least_deviations(a, a @ coefficients), coefficients, rtol=1e-5)
