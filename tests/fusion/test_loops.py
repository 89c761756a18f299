"""Recurrences as loops: iterations, residence of tensors, and results of plans."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.ir import CompileOptions, Graph, Mode, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry, evaluate_graph
from cuts.ops.gradient.gradients import Gradients
from cuts.ops.language import assignment
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion import (
    GroupBuilder,
    Partitioner,
    Policy,
    Views,
    build_programs,
    find_views,
    fold_units,
    partition,
)
from cuts.passes.inspection.verify import verify_groups, verify_programs
from cuts.tests.amounts import examples
from hypothesis import assume, given, settings

from ..needs import needs_opencl
from ..ops.recurrences import Recurrence, recurrences
from .build import run_groups

REGISTRY = Registry.builtin()


def recurrent(op: str, gates: int, steps: int, both: bool = False, **attributes: bool | str) -> Graph:
    """Return a graph of one recurrent operation of the vocabulary.

    It has two sequences of three features.
    """
    d = 2 if both else 1
    attributes |= {"direction": "bidirectional"} if both else {}
    shapes = {
        "x": (steps, 2, 3), "w": (d, gates * 4, 3), "r": (d, gates * 4, 4), "b": (d, 8 * gates), "y": (steps, d, 2, 4),
        "last": (d, 2, 4),
    }  # fmt: skip
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    node = Node("rec", op, ("x", "w", "r", "b"), ("y", "last"), attributes)
    return Graph("g", ("x", "w", "r", "b"), ("y", "last"), types, (node,))


def graph_of(case: Recurrence) -> Graph:
    x, r, i = case.types
    types = {"x": x, "r": r, "i": i, "y": x, "z": TensorType(DType.F32, x.shape[1:])}
    return Graph("g", ("x", "r", "i"), ("y", "z"), types, (Node("rec", "t", ("x", "r", "i"), ("y", "z")),))


def inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    types = {name: graph.types[name] for name in graph.inputs}
    return {
        name: rng.integers(0, type_.shape[0], type_.shape).astype(np.int32)
        if type_.dtype.is_int
        else rng.standard_normal(type_.shape).astype(np.float32) / 2
        for name, type_ in types.items()
    }


def views(graph: Graph, registry: Registry = REGISTRY) -> Views:
    return find_views(build_programs(graph, registry))


def test_states_rotate_and_temporaries_are_single() -> None:
    found = views(recurrent("lstm", 4, 400))
    (loop,) = [u for u in found.programs.units if u.repeat is not None]
    assert loop.repeat is not None
    assert loop.repeat.step.extent == 400
    assert dict(found.programs.rotating) == {"rec.c": 2}  # every h is kept: it is the result
    before, after = found.storages["rec.c[t]"], found.storages["rec.c[t + 1]"]
    assert [before.start(turn) for turn in range(4)] == [0, 8, 0, 8]
    assert [after.start(turn) for turn in range(4)] == [8, 0, 8, 0]
    assert found.storages["rec.g[t]"].start(7) == 7 * 32
    assert found.storages["rec.u[t]"].buffer == "rec.c"  # computed where the next turn finds it
    assert found.storages["rec.c[400]"].offset == 0


def test_an_initial_state_is_copied_to_loop_memory() -> None:
    graph = recurrent("rnn", 1, 50)
    types = {**graph.types, "h0": TensorType(DType.F32, (1, 2, 4))}
    node = Node("rec", "rnn", ("x", "w", "r", "b", None, "h0"), ("y", "last"))
    found = views(Graph("g", (*graph.inputs, "h0"), graph.outputs, types, (node,)))
    assert not any(u.free for u in found.programs.units if "h0" in u.reads)


def test_turns_without_reductions_are_taken_together() -> None:
    lines = "h[0][n] = 0  each t < S { h[t + 1][n] = r[0, n] * h[t][N - 1 - n] + x[t, n] }  y = x  z = h[S]"
    head = "in x: f32[S, N], r: f32[N, N], i: i32[S]  out y: f32[S, N], z: f32[N]"
    case = Recurrence(f'op t "t" {{ {head}  temp h[t < S + 1]: f32[N]  {lines} }}', 400)
    found = views(graph_of(case), case.registry)
    (loop,) = [u for u in found.programs.units if u.repeat is not None]
    assert loop.repeat is not None
    assert (loop.repeat.step.extent, len(loop.repeat.units)) == (20, 1)
    assert dict(found.programs.rotating) == {"rec.h": 40}
    (kept,) = loop.repeat.kept
    assert [found.storages[kept].start(turn) // 3 for turn in range(4)] == [20, 0, 20, 0]


@given(recurrences())
def test_programs_of_recurrences_are_sound(case: Recurrence) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "MAX_UNROLLED_ASSIGNMENTS", 0)
        verify_programs(views(graph_of(case), case.registry).programs)


@pytest.mark.parametrize("mode", ["no-fusion", "mixed"])
@settings(max_examples=examples(8, 200))
@given(case=recurrences())
def test_groups_of_recurrences_compute_the_reference(mode: Mode, case: Recurrence) -> None:
    graph, policy = graph_of(case), Policy(shared_bytes=1 << 14)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "MAX_UNROLLED_ASSIGNMENTS", 0)
        found = find_views(fold_units(build_programs(graph, case.registry)))
    groups = partition(Partitioner(GroupBuilder(found, policy), Roofline(find_target("cuda:sm_90"))), mode)
    verify_groups(groups, found)
    values = inputs(graph)
    results = run_groups(groups, found, {**values, **found.programs.graph.constants})
    for name, expected in evaluate_graph(graph, case.registry, values).items():
        np.testing.assert_allclose(results[name], expected, rtol=1e-6, atol=1e-6)


def backward(case: Recurrence) -> tuple[Graph, Registry]:
    """Return a graph of the gradients of x and r.

    The gradients of the results are inputs.
    """
    gradients = Gradients(case.registry)
    instance = case.registry["t"].instantiate(case.types, {})
    nodes = gradients.steps(instance, ["x", "r"], ["y", "z"])
    assume(nodes)  # some depend on neither
    (node,) = nodes
    x, r, i = case.types
    known = {"x": x, "r": r, "i": i, "y": x, "z": TensorType(DType.F32, x.shape[1:]), "dx": x, "dr": r}
    types = {v: known.get(v) or known[v[1:]] for v in (*node.operands, *node.outputs)}
    return Graph("g", node.operands, node.outputs, types, (node,)), gradients.registry


@settings(max_examples=examples(6, 150))
@given(recurrences())
def test_groups_of_recurrence_gradients_equal_the_reference(case: Recurrence) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "MAX_UNROLLED_ASSIGNMENTS", 0)
        graph, registry = backward(case)
        found = find_views(fold_units(build_programs(graph, registry)))
        verify_programs(found.programs)
    partitioner = Partitioner(GroupBuilder(found, Policy(shared_bytes=1 << 14)), Roofline(find_target("cuda:sm_90")))
    groups = partition(partitioner, "mixed")
    verify_groups(groups, found)
    values = inputs(graph)
    results = run_groups(groups, found, {**values, **found.programs.graph.constants})
    for name, expected in evaluate_graph(graph, registry, values).items():
        np.testing.assert_allclose(results[name], expected, rtol=1e-6, atol=1e-6)


@needs_opencl
@settings(max_examples=examples(6, 120))
@given(recurrences())
def test_a_plan_of_a_recurrence_computes_the_reference(case: Recurrence) -> None:
    graph = graph_of(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "MAX_UNROLLED_ASSIGNMENTS", 0)
        spec = Spec(case.registry, {"recurrence.cuts": case.text})
        loop = build_graph(graph, spec, find_target("opencl"), CompileOptions())
        patch.setattr(assignment, "MAX_UNROLLED_ASSIGNMENTS", 10**9)
        values = inputs(graph)
        expected = evaluate_graph(graph, case.registry, values)
    for _ in range(2):  # the state after a run does not matter to the next
        for name, found in loop.run(values).items():
            np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-5)
