"""Blocked variance.

Sums of squares about means are combined from those of parts.
"""

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
from cuts.passes.fusion.sums.blocked_variance import block_variances
from cuts.passes.fusion.sums.reduction_cse import eliminate_common_reductions
from cuts.passes.inspection.verify import verify_programs

from ..needs import needs_opencl
from .build import REGISTRY, graph, op


def deviations(shape: tuple[int, ...], axes: tuple[int, ...], out: str = "s") -> Graph:
    """Return sums of squares about the mean of some axes.

    They are PyTorch's variances.
    """
    return graph(
        {"x": shape},
        op("m", "reduce_mean", "x", axes=axes, keepdims=True),
        op("d", "sub", "x", "m"),
        op("s", "reduce_sum_square", "d", axes=axes, keepdims=False),
        out=out,
    )


def divide_programs(whole: Graph) -> tuple[Programs, Programs]:
    before = eliminate_common_reductions(build_programs(whole, REGISTRY))
    after = block_variances(before)
    verify_programs(after)
    return before, after


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((8192, 3), (0,)),
        ((3, 40000), (1,)),
        ((64, 3, 20, 30), (0, 2, 3)),
        ((200, 400), (0, 1)),
        ((4, 2, 90, 101), (0, 2, 3)),
    ],
)
@pytest.mark.parametrize("out", ["s", "s m"])
def test_parts_of_long_rows_mean_the_same(shape: tuple[int, ...], axes: tuple[int, ...], out: str) -> None:
    whole = deviations(shape, axes, out)
    before, after = divide_programs(whole)
    assert len(after.units) == len(before.units)  # the differences are gone, the parts are there
    assert "d" not in {t for unit in after.units for t in unit.writes}
    statements = tuple(s for unit in after.units for s in unit.statements)
    x = np.random.default_rng(0).standard_normal(shape) + 100.0
    found = evaluate(Program(after.types, whole.inputs, whole.outputs, statements, after.tables), {"x": x})
    for name, expected in evaluate_graph(whole, REGISTRY, {"x": x}).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("shape", "axes", "out"),
    [
        ((512, 3), (0,), "s"),  # a block holds the rows
        ((3, 4000), (1,), "s"),
        ((8192, 3), (0,), "s d"),  # the remainder of the mean is an output as well
        ((8191, 3), (0,), "s"),  # no parts without rest
    ],
)
def test_other_rows_stay_whole(shape: tuple[int, ...], axes: tuple[int, ...], out: str) -> None:
    before, after = divide_programs(deviations(shape, axes, out))
    assert after is before


@pytest.mark.parametrize("again", [False, True])
def test_rows_with_other_readers_are_left_to_clusters(again: bool) -> None:
    whole = graph(
        {"x": (3, 40000)},
        op("m", "reduce_mean", "x", axes=(1,), keepdims=True),
        op("d", "sub", "x", "m"),
        op("s", "reduce_sum_square", "d", axes=(1,), keepdims=False),
        op("y", "exp", "x"),
        out="s y" if again else "s",
    )
    whole = whole if again else deviations((3, 40000), (1,))
    before = eliminate_common_reductions(build_programs(whole, REGISTRY))
    assert (block_variances(before, 8) is before) == again


@needs_opencl
@pytest.mark.parametrize(("shape", "axes"), [((8192, 4), (0,)), ((16, 4, 56, 56), (0, 2, 3))])
def test_small_deviations_of_large_numbers_are_right(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = (np.random.default_rng(1).standard_normal(shape) + 3e4).astype(np.float32)
    plan = build_graph(deviations(shape, axes), load_spec([]), find_target("opencl"), CompileOptions())
    expected = x.size / 4 * x.astype(np.float64).var(axis=axes)
    np.testing.assert_allclose(plan.run({"x": x})["s"], expected, rtol=1e-5)


def channels_last_norm(kind: DType) -> Graph:
    """Return variances of a permuted input, converted before each use."""
    converted = {"to": "f32"} if kind is not DType.F32 else None
    lines = [op("v", "transpose", "x", perm=(0, 3, 1, 2))]
    lines += [op(c, "cast", "v", **converted) if converted else op(c, "identity", "v") for c in ("c", "e")]
    lines += [op("m", "reduce_mean", "c", axes=(0, 2, 3), keepdims=True), op("d", "sub", "e", "m"),
              op("s", "reduce_sum_square", "d", axes=(0, 2, 3), keepdims=False)]  # fmt: skip
    return graph({"x": TensorType(kind, (4, 64, 56, 8))}, *lines, out="s")


def test_channels_last_parts_are_columns() -> None:
    made = channels_last_norm(DType.BF16)
    before, after = divide_programs(made)
    assert len(after.units) == len(before.units)
    (part,) = (s for u in after.units for s in u.statements if s.target.endswith("squares_of_part"))
    assert [r.extent for r in part.reduce] == [56], "of 64 elements at most, as rows across memory have"


@needs_opencl
@pytest.mark.parametrize("kind", [DType.F32, DType.F16])
def test_variances_of_converted_values_are_right(kind: DType) -> None:
    made = channels_last_norm(kind)
    x = (np.random.default_rng(1).standard_normal((4, 64, 56, 8)) + 30).astype(np.float32)
    held = x.astype(kind.numpy)
    found = build_graph(made, load_spec([]), find_target("opencl"), CompileOptions()).run({"x": held})["s"]
    expected = evaluate_graph(made, REGISTRY, {"x": held})["s"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
