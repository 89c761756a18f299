"""Activations in 8 bits: constant scales round values that multiply weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.compile.build import build
from cuts.compile.loading import load_spec, quantise_model
from cuts.ir import DType, Graph, Node, TensorType, UsageError, as_dtype
from cuts.numerics.comparison import mean_error
from cuts.tests.needs import needs_opencl

RNG = np.random.default_rng(0)
LARGEST_NUMBERS = {"fp8": 448.0, "int8": 127.0}
KINDS = {"fp8": DType.F8E4M3, "int8": DType.I8}


def two_layers() -> Graph:
    """Return two products of one input, and a third of their sum."""
    shapes = {"x": (4, 64), "v": (64, 32), "w": (64, 32), "u": (32, 32)}
    shapes |= dict.fromkeys(("p", "q", "s", "y"), (4, 32))
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    constants = {name: RNG.standard_normal(shapes[name]).astype(np.float32) for name in "uvw"}
    nodes = (
        Node("p", "matmul", ("x", "v"), ("p",), {}), Node("q", "matmul", ("x", "w"), ("q",), {}),
        Node("s", "add", ("p", "q"), ("s",), {}), Node("y", "matmul", ("s", "u"), ("y",), {}),
    )  # fmt: skip
    return Graph("g", ("x",), ("y",), types, nodes, constants)


def round_by_size(array: Any, name: str, size: float) -> Any:
    """Round an array to a format, by its largest size."""
    divided = np.asarray(array, np.float64) * (LARGEST_NUMBERS[name] / size)
    whole = np.rint(divided) if name == "int8" else divided
    return as_dtype(np.clip(whole, -LARGEST_NUMBERS[name], LARGEST_NUMBERS[name]), KINDS[name].numpy).astype(
        np.float64
    ) * (size / LARGEST_NUMBERS[name])


def by_columns(array: Any, name: str) -> Any:
    return np.stack([round_by_size(column, name, float(np.abs(column).max())) for column in array.T], 1)


@needs_opencl
@pytest.mark.parametrize("name", LARGEST_NUMBERS)
def test_products_are_those_of_rounded_factors(name: str) -> None:
    graph, x = two_layers(), RNG.standard_normal((4, 64)).astype(np.float32)
    plan = build(graph, target="opencl", weights=name, calibration=[{"x": x}])  # type: ignore[call-overload]
    weights = {n: by_columns(graph.constants[n], name) for n in "uvw"}
    given = round_by_size(x, name, float(np.abs(x).max()))
    exact = x.astype(np.float64) @ (graph.constants["v"] + graph.constants["w"]).astype(np.float64)
    total = round_by_size(given @ weights["v"] + given @ weights["w"], name, float(np.abs(exact).max()))
    found = plan.run({"x": x})["y"]
    assert mean_error(found, total @ weights["u"]) < 2e-2
    assert all(check.ok for check in plan.verify({"x": x}))


def test_values_are_rounded_once_for_products_only() -> None:
    made = quantise_model(two_layers(), load_spec(()), "fp8", {"x": 4.0, "s": 16.0})
    ops = [node.op for node in made.nodes]
    assert (ops.count("quantize"), ops.count("dequantize")) == (2, 5)
    sums = next(node for node in made.nodes if node.op == "add")
    assert made.types[sums.outputs[0]].dtype is DType.F32
    scales = [made.constants[n.operands[1]] for n in made.nodes if n.op == "quantize"]
    assert [float(s) for s in scales] == pytest.approx([4 / 448, 16 / 448])


def test_missing_sizes_and_grouped_formats_are_errors() -> None:
    with pytest.raises(UsageError, match=r"no size of activation 's'"):
        quantise_model(two_layers(), load_spec(()), "fp8", {"x": 4.0})
    with pytest.raises(UsageError, match=r"activations in 'int4'"):
        quantise_model(two_layers(), load_spec(()), "int4", {"x": 4.0, "s": 1.0})


def test_matrix_instructions_multiply_the_narrow_numbers() -> None:
    shapes = {"x": (4096, 1024), "w": (1024, 1024), "y": (4096, 1024)}
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    constants = {"w": RNG.standard_normal(shapes["w"]).astype(np.float32)}
    graph = Graph("g", ("x",), ("y",), types, (Node("y", "matmul", ("x", "w"), ("y",), {}),), constants)
    plan = build(graph, target="cuda:h200", weights="fp8", calibration={"x": 4.0})
    assert any("k32_f8e4m3(" in kernel.source for kernel in plan.kernels)
