"""Transposed constants: an attribute's other order becomes a turned constant.

Nothing else is turned.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.compile.loading import Spec
from cuts.compile.selection.cached_decisions import canonical_form
from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.passes.graph.simplification.canonicalise import Canonicalise
from cuts.passes.graph.simplification.transpose_constants import TransposeConstants
from cuts.search.tasks.decisions import structure_of
from cuts.tests.frontends.strategies import GraphBuilder
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR
from cuts.tests.operations_graph import bench_of, with_constants

INSTANCES = Registry.builtin().instances


def product(*, trans_a: bool, trans_b: bool, constant_a: bool) -> Graph:
    """Return a product of matrices, one or both of them constants."""
    build = GraphBuilder(0)
    shape_a, shape_b = (3, 4)[:: -1 if trans_a else 1], (4, 5)[:: -1 if trans_b else 1]
    a = build.constant(shape_a) if constant_a else build.input(shape_a)
    b = build.input(shape_b) if constant_a else build.constant(shape_b)
    flags = {name: True for name, value in (("trans_a", trans_a), ("trans_b", trans_b)) if value}
    return build.graph(build.node("gemm", a, b, **flags))


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("constant_a", [False, True])
def test_a_turned_constant_replaces_the_attribute(trans_a: bool, trans_b: bool, constant_a: bool) -> None:
    graph = product(trans_a=trans_a, trans_b=trans_b, constant_a=constant_a)
    turned = TransposeConstants(INSTANCES).run(graph)
    (node,) = turned.nodes
    left = {"trans_b" for _ in "b" if trans_b and constant_a} | {"trans_a" for _ in "a" if trans_a and not constant_a}
    assert set(node.attributes) == left, "what says how an input is read stays"
    rng = np.random.default_rng(0)
    given = {v: rng.standard_normal(graph.types[v].shape).astype(np.float32) for v in graph.inputs}
    expected, found = (evaluate_graph(g, Registry.builtin(), given) for g in (graph, turned))
    for value in graph.outputs:
        np.testing.assert_array_equal(found[value], expected[value])


def test_who_else_reads_the_constant_still_does() -> None:
    build = GraphBuilder(0)
    x, w = build.input((5, 4)), build.constant((5, 4))
    both = build.graph(build.node("gemm", x, w, trans_b=True), build.node("add", x, w))
    turned = TransposeConstants(INSTANCES).run(both)
    assert w in turned.constants and len(turned.constants) == 2
    assert TransposeConstants(INSTANCES).run(turned) == turned


def test_one_run_turns_all_of_a_node() -> None:
    build = GraphBuilder(0)
    both = build.graph(build.node("gemm", build.constant((4, 3)), build.constant((5, 4)), trans_a=True, trans_b=True))
    turned = TransposeConstants(INSTANCES).run(both)
    assert not turned.nodes[0].attributes and len(turned.constants) == 2


def test_large_constants_stay() -> None:
    graph = product(trans_a=False, trans_b=True, constant_a=False)
    assert TransposeConstants(INSTANCES, max_elements=19).run(graph) == graph


def test_indices_stay_in_their_order() -> None:
    """Attributes without effect can be left out in any order."""
    build = GraphBuilder(0)
    x, updates = build.input((4, 4, 7)), build.input((2, 2, 1))
    places = build.constant((2, 2, 1))
    build.constants[places] = np.array([[[1], [2]], [[3], [5]]])
    build.types[places] = TensorType(DType.I64, (2, 2, 1))
    graph = build.graph(build.node("scatter_elements", x, places, updates, axis=2, atomic=True))
    given = {v: np.random.default_rng(0).standard_normal(graph.types[v].shape) for v in graph.inputs}
    passed = TransposeConstants(INSTANCES).run(graph)
    expected, found = (evaluate_graph(g, Registry.builtin(), given) for g in (graph, passed))
    np.testing.assert_array_equal(found[graph.outputs[0]], expected[graph.outputs[0]])


def test_a_model_is_one_for_all_exporters() -> None:
    """One exporter transposes weights by a node and omits defaults.

    The other one does neither.
    """
    build = GraphBuilder(0)
    x, w, bias = build.input((3, 4)), build.constant((5, 4)), build.constant((5,))
    one = build.graph(build.node("gemm", x, w, bias, trans_b=True, alpha=1.0, beta=1.0, trans_a=False))
    build = GraphBuilder(0)
    x, w, bias = build.input((3, 4)), build.constant((5, 4)), build.constant((5,))
    other = build.graph(build.node("gemm", x, build.node("transpose", w, perm=[1, 0]), bias))
    spec = Spec(Registry.builtin())
    assert structure_of(one) != structure_of(other)
    assert structure_of(canonical_form(one, spec)) == structure_of(canonical_form(other, spec))
    assert canonical_form(one, spec) is canonical_form(one, spec)
    assert canonical_form(one, Spec(Registry.builtin())) is not canonical_form(one, spec), "a vocabulary of its own"
    assert Canonicalise(INSTANCES).run(one) != one


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("constants", [False, True])
def test_every_operation_has_a_canonical_form(backward: bool, constants: bool) -> None:
    """Attributes are element types, axes, lists, texts."""
    bench = bench_of([*DIFFERENTIABLE, *SCALAR, *([] if backward else FLAT)], backward)
    bench = with_constants(bench) if constants else bench
    canonical = canonical_form(bench.graph, bench.spec)
    assert canonical.outputs == bench.graph.outputs
    assert canonical_form(canonical, bench.spec) == canonical
