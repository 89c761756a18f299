"""Hierarchical reduction: totals of row results are summed row by row first."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph
from cuts.ir.statement import Program
from cuts.ir.types import DType, TensorType
from cuts.ops.reference import evaluate, evaluate_graph
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.sums.hierarchical_reduction import sum_rows_first
from cuts.passes.inspection.verify import verify_programs

from ..needs import needs_opencl
from .build import REGISTRY, graph, op


def total_of_rows(shape: tuple[int, ...], axis: int, combine: str = "reduce_sum", dtype: DType = DType.F32) -> Graph:
    """Return a total of products of two softmaxes' results."""
    type_ = TensorType(dtype, shape)
    return graph(
        {"x": type_, "y": type_},
        op("p", "softmax", "x", axis=axis),
        op("q", "log_softmax", "y", axis=axis),
        op("z", "mul", "p", "q"),
        op("t", combine, "z", axes=tuple(range(len(shape))), keepdims=False),
        out="t",
    )


def divide_programs(whole: Graph) -> tuple[Programs, Programs]:
    before = build_programs(whole, REGISTRY)
    after = sum_rows_first(before)
    verify_programs(after)
    return before, after


def sums(programs: Programs) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return extents of places and of terms in the statements of totals."""
    found = [s for unit in programs.units for s in unit.statements if s.target.startswith("t")]
    return [(tuple(a.extent for a in s.axes), tuple(r.extent for r in s.reduce)) for s in found]


@pytest.mark.parametrize(
    ("shape", "axis", "parts"),
    [
        ((5, 33), 1, [((5,), (33,)), ((), (5,))]),
        ((33, 5), 0, [((5,), (33,)), ((), (5,))]),
        ((2, 7, 4), 1, [((2, 4), (7,)), ((), (2, 4))]),
    ],
)
@pytest.mark.parametrize("combine", ["reduce_sum", "reduce_max", "reduce_prod"])
def test_rows_are_summed_first(
    shape: tuple[int, ...], axis: int, parts: list[tuple[tuple[int, ...], tuple[int, ...]]], combine: str
) -> None:
    whole = total_of_rows(shape, axis, combine)
    _, after = divide_programs(whole)
    assert sums(after) == parts
    statements = tuple(s for unit in after.units for s in unit.statements)
    inputs = {t: np.random.default_rng(n).standard_normal(shape) for n, t in enumerate("xy")}
    found = evaluate(Program(after.types, whole.inputs, whole.outputs, statements, after.tables), inputs)
    for name, expected in evaluate_graph(whole, REGISTRY, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-9)


@pytest.mark.parametrize(
    "whole",
    [
        total_of_rows((1, 33), 1),  # one row is all there is
        total_of_rows((3, 70000), 1),  # no block keeps a row
        total_of_rows((5, 33), 1, dtype=DType.F16),  # the rows' sums would be rounded
        graph({"x": (5, 33)}, op("e", "exp", "x"), op("t", "reduce_sum", "e", axes=(0, 1), keepdims=False), out="t"),
        graph(  # a value for each row that no reduction over the row left
            {"x": (5, 33), "w": (5, 7)},
            op("m", "reduce_max", "w", axes=(1,), keepdims=True),
            op("z", "mul", "x", "m"),
            op("t", "reduce_sum", "z", axes=(0, 1), keepdims=False),
            out="t",
        ),
    ],
)
def test_other_totals_stay_whole(whole: Graph) -> None:
    before, after = divide_programs(whole)
    assert after is before


@needs_opencl
@pytest.mark.parametrize("bad", [0.0, np.inf, np.nan])
def test_totals_of_rows_are_right(bad: float) -> None:
    whole = total_of_rows((70, 100), 1)
    inputs = {t: np.random.default_rng(n).standard_normal((70, 100)).astype(np.float32) for n, t in enumerate("xy")}
    inputs["x"][3, 5] += np.float32(bad)
    plan = build_graph(whole, load_spec([]), find_target("opencl"), CompileOptions())
    expected = np.asarray(evaluate_graph(whole, REGISTRY, inputs)["t"], float)
    np.testing.assert_allclose(plan.run(inputs)["t"], expected, rtol=1e-5)
