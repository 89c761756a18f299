"""Rematerialisation of light values between long reductions, and of nothing else."""

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
from cuts.passes.fusion.sums.reduction_cse import eliminate_common_reductions
from cuts.passes.fusion.sums.rematerialisation import rematerialise
from cuts.passes.inspection.verify import verify_programs

from ..needs import needs_opencl
from .build import REGISTRY, Line, graph, op

#: Rows of 36864 elements that are the channels of images, as many as make a value of a megabyte.
SHAPE = (4, 8, 96, 96)
ROWS = {"axes": (0, 2, 3), "keepdims": True}
DEVIATION: list[Line] = [
    op("m", "reduce_mean", "x", **ROWS),
    op("d", "sub", "x", "m"),
    op("s", "reduce_sum_square", "d", **ROWS),
    op("r", "rsqrt", "s"),
]
NORM = [*DEVIATION, op("y", "mul", "d", "r")]


def written_again(whole: Graph) -> tuple[Programs, Programs]:
    before = eliminate_common_reductions(build_programs(whole, REGISTRY))
    after = rematerialise(before)
    verify_programs(after)
    return before, after


@pytest.mark.parametrize("shape", [SHAPE, (2, 128, 160, 160)], ids=["few rows", "many rows"])
def test_a_difference_is_rematerialised_after_its_square_sum(shape: tuple[int, ...]) -> None:
    whole = graph({"x": shape}, *NORM, out="y")
    before, after = written_again(whole)
    assert len(after.units) == len(before.units) + 1
    values = {"x": np.random.default_rng(0).standard_normal(shape) + 3.0}
    program = Program(
        after.types, whole.inputs, whole.outputs, tuple(s for u in after.units for s in u.statements), after.tables
    )
    expected = evaluate_graph(whole, REGISTRY, values)
    np.testing.assert_allclose(evaluate(program, values)["y"], expected["y"], rtol=1e-12)


def test_a_difference_is_rematerialised_for_sums_over_rows() -> None:
    """Sums of columns and of rows are kernels of their own."""
    rows, columns = {"axes": (1,), "keepdims": True}, {"axes": (0,), "keepdims": False}
    deviation = [
        op("m", "reduce_mean", "x", **rows),
        op("d", "sub", "x", "m"),
        op("s", "reduce_sum_square", "d", **rows),
    ]
    whole = graph({"x": (8192, 64)}, *deviation, op("t", "reduce_sum", "d", **columns), out="s t")
    before, after = written_again(whole)
    assert len(after.units) == len(before.units) + 1
    values = {"x": np.random.default_rng(0).standard_normal((8192, 64))}
    program = Program(
        after.types, whole.inputs, whole.outputs, tuple(s for u in after.units for s in u.statements), after.tables
    )
    found, expected = evaluate(program, values), evaluate_graph(whole, REGISTRY, values)
    for name in ("s", "t"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, atol=1e-9)


STORED_CASES: dict[str, tuple[dict[str, tuple[int, ...]], list[Line], str]] = {
    "a block holds the rows": ({"x": (4, 64, 32, 32)}, NORM, "y"),
    "blocks hold many rows": ({"x": (2, 128, 64, 64)}, NORM, "y"),
    "it is a result": ({"x": SHAPE}, NORM, "y d"),
    "no sum is between its readers": ({"x": SHAPE}, [*DEVIATION, op("y", "relu", "d")], "y s"),
    "a product of matrices reads it": ({"x": SHAPE, "w": (96, 96)}, [*NORM, op("z", "matmul", "d", "w")], "y z"),
    "its operands are as large as two of it": (
        {"x": (8192, 64), "w": (8192, 64)},
        [op("d", "mul", "x", "w"), op("e", "exp", "d"), op("s", "reduce_sum", "d", axes=(0,)), op("y", "relu", "e")],
        "y s",
    ),
    "it is dear": ({"x": SHAPE}, [op("d", "gelu", "x"), *DEVIATION[2:], op("y", "mul", "d", "r")], "y"),
}


@pytest.mark.parametrize("name", STORED_CASES)
def test_stored_or_shared_values_are_computed_once(name: str) -> None:
    inputs, lines, outs = STORED_CASES[name]
    before, after = written_again(graph(inputs, *lines, out=outs))
    assert after is before


def test_readers_widen_halves_and_compute_masks() -> None:
    """Values in f32 take twice the bytes, masks those of all pairs."""
    half, integers = TensorType(DType.F16, (64, 256)), TensorType(DType.I64, (256, 1))
    lines = [
        op("c", "cast", "x", to="f32"),
        op("s", "reduce_sum_square", "c", axes=(1,), keepdims=True),
        op("y", "mul", "c", "s"),
        op("m", "less_or_equal", "p", "q"),
        op("z", "where", "m", "u", "v"),
        op("w", "where", "m", "v", "u"),
    ]
    rest = {"q": TensorType(DType.I64, (1, 1024)), "u": (8, 256, 1024), "v": (8, 256, 1024)}
    whole = graph({"x": half, "p": integers, **rest}, *lines, out="y z w")
    before, after = written_again(whole)
    assert len(after.units) == len(before.units) + 2
    assert all(sum(t in u.reads for u in after.units) == 1 for t in ("c", "c.again", "m", "m.again"))


def test_small_and_wide_operands_are_converted_once() -> None:
    """Narrowing conversions, and pairs of operands as large as their value."""
    lines = [op("c", "cast", "x", to="f16"), op("y", "neg", "c"), op("z", "relu", "c")]
    before, after = written_again(graph({"x": (64, 256)}, *lines, out="y z"))
    assert after is before


@needs_opencl
def test_norms_of_long_rows_are_right_on_devices() -> None:
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32) + np.float32(3.0)
    whole = graph({"x": SHAPE}, *NORM, out="y")
    plan = build_graph(whole, load_spec([]), find_target("opencl"), CompileOptions())
    np.testing.assert_allclose(plan.run({"x": x})["y"], evaluate_graph(whole, REGISTRY, {"x": x})["y"], atol=1e-7)
