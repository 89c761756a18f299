"""Deferred normalisation.

Weights that add up to one are divided after the product that they weigh.
"""

from __future__ import annotations

from typing import Any

import cuts
import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph, compile_model
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph
from cuts.ir.statement import Program
from cuts.ir.types import DType, TensorType
from cuts.ops.reference import evaluate, evaluate_graph
from cuts.passes.fusion.normalise import Illegal, normalise
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.sums.deferred_normalisation import defer_normalisation
from cuts.passes.inspection.verify import verify_programs

from ..needs import needs_opencl
from .build import REGISTRY, graph, op


def attention(queries: int = 5, keys: int = 19, dtype: DType = DType.F32, masked: bool = False, **how: bool) -> Graph:
    """Return attention as one operation."""
    q, k = (TensorType(dtype, (2, 3, rows, 8)) for rows in (queries, keys))
    given = {"q": q, "k": k, "v": k} | ({"mask": TensorType(dtype, (queries, keys))} if masked else {})
    return graph(given, op("y", "attention", *given, **how), out="y")


def in_parts(out: str = "y", weights: str = "softmax", axis: int = -1, keys: int = 19) -> Graph:
    """Return attention as operations, as other frameworks write it."""
    return graph(
        {"q": (2, 5, 8), "k": (2, 8, keys), "v": (2, keys, 8)},
        op("z", "matmul", "q", "k"),
        op("w", weights, "z", axis=axis),
        op("y", "matmul", "w", "v"),
        *([op("u", "relu", "w")] if "u" in out else []),
        out=out,
    )


def divide_programs(whole: Graph) -> tuple[Programs, Programs]:
    before = build_programs(whole, REGISTRY)
    after = defer_normalisation(before)
    verify_programs(after)
    return before, after


def inputs_of(whole: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {t: rng.standard_normal(whole.types[t].shape).astype(whole.types[t].dtype.numpy) for t in whole.inputs}


@pytest.mark.parametrize(
    "whole",
    [attention(), attention(19, 19, causal=True), attention(masked=True), attention(dtype=DType.F64), in_parts()],
    ids=["plain", "causal", "masked", "f64", "in parts"],
)
def test_sums_are_divided_after_the_product(whole: Graph) -> None:
    before, after = divide_programs(whole)
    assert len(after.units) == len(before.units) + 1
    (weighting,) = (unit for unit in after.units if unit.name.endswith(".weights"))
    (weights,) = weighting.statements
    assert weights.is_pointwise
    statements = tuple(s for unit in after.units for s in unit.statements)
    inputs = inputs_of(whole)
    found = evaluate(Program(after.types, whole.inputs, whole.outputs, statements, after.tables), inputs)
    for name, expected in evaluate_graph(whole, REGISTRY, inputs).items():
        np.testing.assert_allclose(np.asarray(found[name], float), np.asarray(expected, float), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    "whole",
    [
        attention(dtype=DType.F16),  # the rows' numbers would be rounded
        attention(keys=15),  # short rows
        in_parts(out="y w"),  # the weights are wanted themselves
        in_parts(out="y u"),  # another operation reads them
        in_parts(weights="log_softmax"),
        in_parts(axis=1),  # the sum runs along another axis
    ],
    ids=["half", "short", "output", "read", "logarithms", "columns"],
)
def test_other_weights_stay(whole: Graph) -> None:
    before, after = divide_programs(whole)
    assert after is before


@pytest.mark.parametrize("target", ["cuda:h200", "opencl"])
def test_a_training_step_keeps_what_its_gradient_reads(target: str) -> None:
    """The scores are outputs.

    The unit without weights needs a normal form.
    """
    whole = attention(19, 19)
    training = cuts.grad(cuts.with_loss(whole, "mse_loss", prediction="y"), loss="loss", wrt=["q", "k", "v"])
    programs = build_programs(training.graph, training.spec.registry)
    rewritten = defer_normalisation(programs)
    verify_programs(rewritten)
    for unit in rewritten.units:
        form = normalise(unit.statements, rewritten.types, unit.writes, rewritten.tables)
        assert not isinstance(form, Illegal), form
    assert compile_model(training.graph, training.spec, find_target(target), CompileOptions()).steps


@needs_opencl
@pytest.mark.parametrize("whole", [attention(40, 70, masked=True), in_parts(keys=40)], ids=["masked", "in parts"])
def test_weighted_sums_are_right(whole: Graph) -> None:
    inputs = inputs_of(whole)
    if "mask" in inputs:
        inputs["mask"][:, ::3] = -np.inf  # some weights are nothing
        inputs["mask"][3] = -np.inf  # no number weighs anything: there is no mean
    plan = build_graph(whole, load_spec([]), find_target("opencl"), CompileOptions())
    found, expected = plan.run(inputs)["y"], evaluate_graph(whole, REGISTRY, inputs)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert "mask" not in inputs or not (found[..., 3, :].any() or expected[..., 3, :].any())
