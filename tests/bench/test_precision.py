"""What policies cost: errors are those of rounding, in the order of the policies' digits, and the table says so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cuts.bench.precision import RESULTS, by_rounding, compared, markdown, rounded
from cuts.ir.functions import FUNCTIONS
from cuts.ir.precision import PRECISIONS
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry, evaluate, evaluate_graph
from cuts.tests.fusion.build import graph, op

REGISTRY = Registry.builtin()
MADE = graph({"x": (8, 64), "w": (64, 32), "v": (32, 4)}, op("m", "matmul", "x", "w"), op("r", "relu", "m"),
             op("y", "matmul", "r", "v"), out="y")  # fmt: skip


def drawn(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {n: generator.standard_normal(MADE.types[n].shape).astype(np.float32) for n in MADE.inputs}


def test_fewer_digits_cost_more() -> None:
    feeds = drawn()
    exact = [evaluate_graph(MADE, REGISTRY, feeds)]
    found = {name: compared([by_rounding(MADE, REGISTRY, policy)(feeds)], exact) for name, policy in PRECISIONS.items()}
    error = {name: each.error for name, each in found.items()}
    assert max(error["fp32"], error["fp32x3"]) < 1e-6 < error["tf32"] < 2e-3 < error["bf16"] < 2e-2
    assert 1e-4 < error["fp16"] < 2e-3
    assert all(each.angle <= 2 * each.error for each in found.values())


@pytest.mark.parametrize("name", ["tf32", "fp32x3"])
def test_operands_of_contractions_are_cut_and_nothing_else(name: str) -> None:
    types = [TensorType(DType.F32, (4, 16)), TensorType(DType.F32, (16, 4))]
    feeds = {"a": drawn()["x"][:4, :16], "b": drawn()["w"][:16, :4]}
    program = REGISTRY["matmul"].instantiate(types, {}).program
    (found,) = evaluate(rounded(program, PRECISIONS[name]), feeds).values()
    parts = ("tf32", "tf32_rest") if name == "fp32x3" else ("tf32_near",)
    cut = [sum(FUNCTIONS["tf32_cut"].numpy(FUNCTIONS[part].numpy(x.astype(np.float64))) for part in parts)
           for x in feeds.values()]  # fmt: skip
    np.testing.assert_allclose(found, cut[0] @ cut[1], rtol=1e-12)
    softmax = REGISTRY["softmax"].instantiate(types[:1], {}).program
    assert rounded(softmax, PRECISIONS[name]) == softmax
    assert rounded(program, PRECISIONS["bf16"]) is program


def test_a_decision_is_changed_where_another_element_is_the_greatest() -> None:
    exact = [{"y": np.array([[1.0, 2.0]])}, {"y": np.array([[3.0, 2.0]])}]
    found = [{"y": np.array([[2.0, 1.9]])}, {"y": np.array([[3.0, 2.0]])}]
    errors = compared(found, exact)
    assert (errors.error, errors.changed) == (0.5, 1)
    assert errors.angle == pytest.approx(1 - (2.0 + 3.8) / np.sqrt(5 * (4 + 1.9**2)))


def test_the_table_has_a_line_for_each_model_and_a_column_for_each_policy() -> None:
    found = (("resnet50", "fp32", 1e-7, 0), ("lstm", "bf16", 1e-2, 1), ("resnet50", "bf16", 2e-2, 0))
    rows = [{"class": "reference", "name": n, "precision": p, "error": e, "angle": 0.0, "changed": c, "draws": 3}
            for n, p, e, c in found]  # fmt: skip
    assert markdown(rows).splitlines() == [
        "`reference`:", "", "| model | `fp32` | `bf16` |", "|---|---|---|",
        "| resnet50 | 1.0e-07 | 2.0e-02 |", "| lstm | - | 1.0e-02 (1 of 3 changed) |",
    ]  # fmt: skip


def test_the_kept_results_cover_ten_models_under_every_policy() -> None:
    rows = json.loads((RESULTS / "precision.json").read_text())["rows"]
    covered = {(row["name"], row["precision"]) for row in rows if row["class"] == "reference" and "failure" not in row}
    assert len({name for name, _ in covered}) >= 10
    assert {policy for _, policy in covered} == set(PRECISIONS)
