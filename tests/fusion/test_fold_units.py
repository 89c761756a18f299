"""Constant folding of computations without inputs in a declaration."""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from cuts.ir import DType, Graph, Node, Source, TensorType
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.passes.fusion import build_programs, fold_units
from cuts.passes.fusion.programs import Programs
from cuts.tests.needs import needs_opencl

_TEXT = """
op smooth "a mean along the last axis, weighted by a bell curve that sums to 1" {
  in x: f32[N, M]
  attr width: int = 5
  temp bell: f32[width], total: f32[1]
  out y: f32[N, M]
  bell[k] = exp(-(f32(k - width // 2) * f32(k - width // 2)) / 2)
  total[0] = sum[k < width] bell[k]
  y[n, i] = sum[k < width] x[n, i + k - width // 2] outside 0 * (bell[k] / total[0])
}
"""
REGISTRY = Registry.builtin().extend(Source("smooth.cuts", _TEXT))
X = TensorType(DType.F32, (3, 8))


def smooth(**types: TensorType) -> Graph:
    return Graph("g", ("x",), ("y",), {"x": X, "y": X, **types}, (Node("n", "smooth", ("x",), ("y",), {}),))


def fold_programs(graph: Graph) -> Programs:
    return fold_units(build_programs(graph, REGISTRY))


def test_weights_are_constants():
    programs = fold_programs(smooth())
    assert all("x" in unit.reads for unit in programs.units)
    k = np.arange(5.0) - 2
    values = {name: array for name, array in programs.graph.constants.items() if array.shape == (1,)}
    (total,) = values.values()
    np.testing.assert_allclose(total, np.exp(-k * k / 2).sum(), rtol=1e-7)


def test_what_is_an_output_stays_a_kernel():
    graph = Graph(
        "g", (), ("y",), {"a": X, "y": X}, (Node("n", "relu", ("a",), ("y",), {}),), {"a": np.ones((3, 8), np.float32)}
    )
    assert [unit.op for unit in fold_programs(graph).units] == ["relu"]


def test_large_results_stay_kernels():
    size = TensorType(DType.F32, (1 << 23,))
    text = (
        'op count "numbers" { out y: f32[8388608]  temp z: f32[8388608]  z[i] = exp(f32(i))  '
        "y[i] = sum[j < 2] z[i // 2 + j] outside 0 }"
    )
    registry = Registry().extend(Source("count.cuts", text))
    graph = Graph("g", (), ("y",), {"y": size}, (Node("n", "count", (), ("y",), {}),))
    programs = build_programs(graph, registry)
    assert fold_units(programs) is programs


def test_a_condition_that_holds_everywhere_chooses():
    """One that holds for all elements but one stays."""
    types = {"m": TensorType(DType.BOOL, (3, 8)), "x": X, "z": X, "y": X}
    node = Node("n", "where", ("m", "x", "z"), ("y",), {})
    for mask in (np.ones((3, 8), np.bool_), np.arange(24).reshape(3, 8) != 7):
        programs = fold_programs(Graph("g", ("x", "z"), ("y",), types, (node,), {"m": mask}))
        (unit,) = programs.units
        assert unit.reads == (("x",) if mask.all() else ("m", "x", "z"))


@needs_opencl
def test_the_plan_computes_the_reference(tmp_path):
    spec = tmp_path / "smooth.cuts"
    spec.write_text(_TEXT)
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    wanted = evaluate_graph(smooth(), REGISTRY, {"x": x})["y"]
    plan = cuts.build(smooth(), "opencl", spec=[spec])
    np.testing.assert_allclose(plan.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "tables"), [(16, 1), (2, 0)])
def test_angles_that_are_read_often_are_a_table(rows: int, tables: int) -> None:
    text = (
        'op wave "a signal times cosines" { in x: f32[N, M]  temp w: f32[M]  out y: f32[N, M]  '
        "w[j] = cos(f32(j))  y[n, j] = x[n, j] * w[j] }"
    )
    type_ = TensorType(DType.F32, (rows, 8))
    graph = Graph("g", ("x",), ("y",), {"x": type_, "y": type_}, (Node("n", "wave", ("x",), ("y",), {}),))
    programs = fold_units(build_programs(graph, Registry().extend(Source("wave.cuts", text))))
    assert [a.shape for a in programs.graph.constants.values()] == [(8,)] * tables
    assert [unit.op for unit in programs.units] == ["wave"]
