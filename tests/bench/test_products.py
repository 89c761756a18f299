"""Points and tables of `bench/operators/products.py` without a GPU."""

from __future__ import annotations

import pytest
from cuts.backends.devices import find_target
from cuts.bench.operators.products import (
    FORMATS,
    PROMOTED_POINTS,
    WIDE_POINTS,
    describe_schedule,
    listed_shapes,
    product_group,
    table,
)
from cuts.ir.types import DType
from cuts.passes.schedule import check_schedule

H200 = find_target("cuda:h200")


@pytest.mark.parametrize("name", FORMATS)
def test_points_written_by_hand_are_legal(name: str) -> None:
    group = product_group(FORMATS[name], (1, 4096, 4096, 4096), DType.F32)
    for point in PROMOTED_POINTS if name == "fp32x3" else WIDE_POINTS:
        schedule = point.schedule(group, FORMATS[name])
        assert check_schedule(group, schedule, H200) == []
        assert f"ahead {point.ahead}" in describe_schedule(schedule)


def test_the_list_has_batched_skinny_and_odd_products() -> None:
    shapes = dict(listed_shapes())
    assert shapes["bert scores s128 b64"] == (768, 128, 128, 64)
    assert shapes["odd 2049x2047x2051 b1"] == (1, 2049, 2047, 2051)


def test_the_table_compares_best_point_and_library() -> None:
    common = {"product": "square 64", "format": "bf16", "us": 10.0, "tflops": 1.0, "error": None}
    rows = [
        common | {"point": "torch", "over_torch": 1.0},
        common | {"point": "hand", "over_torch": 0.5, "model_us": 9.0, "error": 1e-3},
        common | {"point": "model 0", "over_torch": 0.8},
    ]
    text = table(rows)
    assert "error 1.00e-03  hand" in text
    assert text.splitlines()[-1] == "bf16: best points over torch, geometric mean of 1: 0.800"
