"""Texts and tables of `bench/operators/products.py` without a GPU."""

from __future__ import annotations

from cuts.bench.operators.products import FORMATS, describe_schedule, listed_shapes, product_group, table
from cuts.ir.types import DType
from cuts.tests.hand_points import HandPoint


def test_a_schedule_in_words_names_its_instruction() -> None:
    group = product_group(FORMATS["bf16"], (1, 4096, 4096, 4096), DType.F32)
    assert "m16n8k16_bf16 128/8x256/16 k64 x3" in describe_schedule(
        HandPoint((2, 4), (4, 8), 128, 3, 1).schedule(group, "bf16")
    )


def test_the_list_has_batched_skinny_and_odd_products() -> None:
    shapes = dict(listed_shapes())
    assert shapes["bert scores s128 b64"] == (768, 128, 128, 64)
    assert shapes["odd 2049x2047x2051 b1"] == (1, 2049, 2047, 2051)


def test_the_table_compares_best_point_and_library() -> None:
    common = {"product": "square 64", "format": "bf16", "us": 10.0, "tflops": 1.0, "error": None}
    rows = [
        common | {"point": "torch", "over_torch": 1.0},
        common | {"point": "first", "over_torch": 0.5, "model_us": 9.0, "error": 1e-3},
        common | {"point": "model 0", "over_torch": 0.8},
    ]
    text = table(rows)
    assert "error 1.00e-03  first" in text
    assert text.splitlines()[-1] == "bf16: best points over torch, geometric mean of 1: 0.800"
