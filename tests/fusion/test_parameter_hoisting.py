"""Hoisting of parameters' values out of large statements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir import DType, Graph, Statement, TensorType
from cuts.ir.compiled import CompileOptions
from cuts.ir.statement import Program
from cuts.ops.reference import evaluate, evaluate_graph
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.sums.parameter_hoisting import hoist_parameters
from cuts.passes.inspection.verify import verify_programs

from ..needs import needs_opencl
from .build import REGISTRY, Line, graph, op

CHANNELS, SIZE = 16, 12
NORM = ("scale", "bias", "mean", "var")
SHAPES = {"x": (2, CHANNELS, SIZE, SIZE), **dict.fromkeys(NORM, (CHANNELS,))}
NORM_LINES = [op("y", "batch_norm", "x", *NORM)]
CONVOLUTION_LINES = [op("y", "conv", "x", "w", pads=(1, 1, 1, 1), groups=CHANNELS)]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are hoisted out of small statements."""
    monkeypatch.setattr("cuts.passes.fusion.sums.parameter_hoisting.MIN_RESULTS", 1 << 10)
    monkeypatch.setattr("cuts.passes.fusion.sums.parameter_hoisting.MIN_RESULTS_PER_VALUE", 1 << 4)


def types_of(shapes: Mapping[str, tuple[int, ...]], dtype: DType) -> dict[str, TensorType]:
    """Return types of some shapes."""
    return {name: TensorType(dtype, shape) for name, shape in shapes.items()}


def hoist(whole: Graph) -> tuple[Programs, list[Statement]]:
    """Return the rewritten programs and the statements of hoisted values."""
    after = hoist_parameters(build_programs(whole, REGISTRY))
    verify_programs(after)
    return after, [s for unit in after.units if unit.hoisted for s in unit.statements]


def values_of(whole: Graph) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    kinds = {t: (whole.types[t].shape, whole.types[t].dtype.numpy) for t in whole.inputs}
    return {t: (random.random(shape) + 0.5).astype(kind) for t, (shape, kind) in kinds.items()}


def test_the_scale_of_a_norm_is_computed_once() -> None:
    whole = graph(SHAPES, *NORM_LINES, out="y")
    after, (scale,) = hoist(whole)
    assert after.types[scale.target].shape == (CHANNELS,)
    assert {r.tensor for r in scale.reads} == {"scale", "var"}
    program = Program(after.types, whole.inputs, whole.outputs, tuple(s for u in after.units for s in u.statements))
    values = values_of(whole)
    expected = evaluate_graph(whole, REGISTRY, values)["y"]
    np.testing.assert_allclose(evaluate(program, values)["y"], expected, rtol=1e-12)


def test_values_of_half_types_stay() -> None:
    _, hoisted = hoist(graph(types_of(SHAPES, DType.F16), *NORM_LINES, out="y"))
    assert not hoisted


def test_depthwise_weights_are_stored_with_channels_innermost() -> None:
    whole = graph(types_of({"x": SHAPES["x"], "w": (CHANNELS, 1, 3, 3)}, DType.F16), *CONVOLUTION_LINES, out="y")
    after, (weights,) = hoist(whole)
    assert str(after.types[weights.target]) == f"f16[3, 3, {CHANNELS}]"


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=str)
def test_large_values_are_those_without_hoisting(dtype: DType) -> None:
    """Scales beyond f16, an infinite one, and NaN."""
    whole = graph(types_of(SHAPES, dtype), op("y", "batch_norm", "x", *NORM, epsilon=1e-4), out="y")
    values = values_of(whole)
    values["x"][:] = (values["x"] - 1) / 64
    values["scale"][:3], values["var"][:3] = 2000, 0
    values["scale"][3], values["var"][4] = np.inf, np.nan
    values["mean"][:], values["bias"][:] = 0, 1
    plan = build_graph(whole, load_spec(()), find_target("opencl"), CompileOptions())
    with np.errstate(all="ignore"):
        expected = evaluate_graph(whole, REGISTRY, {t: v.astype(np.float64) for t, v in values.items()})["y"]
    np.testing.assert_allclose(plan.run(values)["y"], expected, rtol=2e-5 if dtype is DType.F32 else 2e-3)


UNCHANGED_CASES: dict[str, tuple[dict[str, tuple[int, ...]], list[Line]]] = {
    "computed statistics": (SHAPES, [op("v", "relu", "var"), op("y", "batch_norm", "x", "scale", "bias", "mean", "v")]),
    "few results": ({**SHAPES, "x": (1, CHANNELS, 4, 4)}, NORM_LINES),
    "a value of each row": ({"x": (4, 1024), "m": (4, 1024)}, [op("e", "exp", "m"), op("y", "mul", "x", "e")]),
    "a plain factor": ({"x": SHAPES["x"], "s": (CHANNELS, 1, 1)}, [op("y", "mul", "x", "s")]),
    "weights of products": ({"x": SHAPES["x"], "w": (8, CHANNELS, 1, 1)}, [op("y", "conv", "x", "w")]),
}


@pytest.mark.parametrize("case", UNCHANGED_CASES)
def test_other_values_stay(case: str) -> None:
    shapes, lines = UNCHANGED_CASES[case]
    programs = build_programs(graph(shapes, *lines, out="y"), REGISTRY)
    assert hoist_parameters(programs) is programs


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=str)
def test_kernels_read_hoisted_values(dtype: DType) -> None:
    shapes = {**SHAPES, "w": (CHANNELS, 1, 3, 3), **{f"{n}2": (CHANNELS,) for n in NORM}}
    second = tuple(f"{n}2" for n in NORM)
    lines = [op("a", "batch_norm", "x", *NORM), op("r", "relu", "a")]
    lines += [op("c", "conv", "r", "w", pads=(1, 1, 1, 1), groups=CHANNELS), op("y", "batch_norm", "c", *second)]
    whole = graph(types_of(shapes, dtype), *lines, out="y")
    plan = build_graph(whole, load_spec(()), find_target("opencl"), CompileOptions())
    values = values_of(whole)
    expected = evaluate_graph(whole, REGISTRY, {t: v.astype(np.float64) for t, v in values.items()})["y"]
    np.testing.assert_allclose(plan.run(values)["y"], expected, rtol=2e-5 if dtype is DType.F32 else 2e-2)
