"""Sizes and ranges of the command line."""

from __future__ import annotations

import pytest
from cuts.ir.errors import UsageError
from cuts.latency.sweeps import sweep


def test_one_layer_is_a_curve_of_one_size() -> None:
    (curve,) = sweep(["N=16", "C=64", "H=56", "K=128", "R=3"])
    assert (curve.along, curve.sizes, len(curve.layers)) == ("K", (128,), 1)


def test_the_last_range_varies_along_sampled_curves() -> None:
    curves = sweep(["N=16", "C=64..512", "H=56", "K=64..1024", "R=3"])
    assert [curve.fixed["C"] for curve in curves] == [64, 213, 363, 512]
    assert curves[0].sizes == tuple(range(64, 1025))
    assert list(curves[1].layers.column("C")) == [213] * 961


def test_steps_and_lists_are_taken_as_they_are() -> None:
    curves = sweep(["C=16..64:16", "H=14,28", "K=8..20:8", "R=1"])
    assert [(curve.fixed["C"], curve.fixed["H"]) for curve in curves] == [
        (c, h) for c in (16, 32, 48, 64) for h in (14, 28)
    ]
    assert curves[0].sizes == (8, 16, 20)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["C"], "expected sizes like C=64"),
        (["C=x"], "expected whole numbers"),
        (["C=1..2..3"], "expected whole numbers"),
        (["C=64..8"], "the range of 'C=64..8' is empty"),
        (["C=8..64:0"], "the range of 'C=8..64:0' is empty"),
        (["C=8", "C=9"], "size 'C' is given twice"),
        (["C=8", "H=7", "R=1"], "size 'K' of a convolution is missing"),
        (["C=1..99999999", "H=7", "R=1", "K=1"], "has more than 20,000 values"),
        (["C=1..200:1", "K=1..900:1", "H=7", "R=1"], "180,000 convolutions are too many"),
        (["C=8", "K=8", "H=7", "R=1", "Z=1..3"], "unknown size 'Z'"),
    ],
)
def test_bad_sizes_are_refused(tokens: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sweep(tokens)
