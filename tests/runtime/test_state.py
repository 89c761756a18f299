"""State of a plan.

Kept between runs, read, set and reset; sessions, threads and folders.
"""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.frontends.graph_json import graph_to_json
from cuts.ir import (
    DType,
    FixedResult,
    Graph,
    Interface,
    Node,
    StateTensor,
    TensorType,
    UsageError,
    parse_graph,
    print_graph,
    verify_graph,
)
from cuts.runtime import Plan, Session
from cuts.tests.needs import needs_opencl, opencl_reason
from cuts.tests.runtime.handmade import example_plan, expected_outputs, random_x

VECTOR = TensorType(DType.F32, (4,))
ONES = np.ones(4, np.float32)
_KERNELS = (pytest.mark.opencl, pytest.mark.skipif(bool(opencl_reason()), reason=opencl_reason()))
TARGETS = ["reference", pytest.param("opencl", marks=_KERNELS)]


def running_sum(size: int = 4) -> Graph:
    """Return a graph that adds its input to a sum.

    It returns twice the sum.
    """
    type_ = TensorType(DType.F32, (size,))
    nodes = (Node("add", "add", ("sum", "x"), ("sum.next",)), Node("double", "add", ("sum.next", "sum.next"), ("y",)))
    types = dict.fromkeys(("x", "sum", "sum.next", "y"), type_)
    state = {"total": StateTensor("sum", "sum.next", np.full(size, 0.5, np.float32))}
    interface = Interface(state, {"number": FixedResult(0, 3), "nothing": FixedResult(2, None)})
    return verify_graph(Graph("running", ("x", "sum"), ("y", "sum.next"), types, nodes, {}, interface))


@pytest.mark.parametrize("target", TARGETS)
def test_runs_go_on_from_the_state(target: str) -> None:
    plan = cuts.build(running_sum(), target)
    assert (list(plan.inputs), list(plan.outputs), list(plan.random_inputs())) == (["x"], ["y"], ["x"])
    for run in range(3):
        found = plan.run({"x": ONES})
        assert list(found) == ["number", "y", "nothing"]
        assert (found["number"], found["nothing"]) == (3, None)
        np.testing.assert_array_equal(found["y"], 2 * ONES * (run + 1.5))
        np.testing.assert_array_equal(plan.state["total"], ONES * (run + 1.5))


@pytest.mark.parametrize("target", TARGETS)
def test_state_is_set_and_reset(target: str) -> None:
    plan = cuts.build(running_sum(), target)
    given = ONES * 7
    plan.set_state({"total": given})
    given[:] = 0
    plan.state["total"][:] = 0  # a copy
    np.testing.assert_array_equal(plan.run({"x": ONES})["y"], ONES * 16)
    plan.set_state({})
    plan.set_state({"total": [1, 2, 3, 4]})
    np.testing.assert_array_equal(plan.state["total"], [1, 2, 3, 4])
    plan.reset_state()
    np.testing.assert_array_equal(plan.run({"x": ONES})["y"], ONES * 3)


@pytest.mark.parametrize("target", TARGETS)
def test_wrong_state_changes_nothing(target: str) -> None:
    plan = cuts.build(running_sum(), target)
    with pytest.raises(UsageError, match=r"there is no state 'sum'.*state is: 'total'"):
        plan.set_state({"total": ONES, "sum": ONES})
    with pytest.raises(UsageError, match=r"state 'total': expected f32\[4\], found float64\[4\]"):
        plan.set_state({"total": ONES.astype(np.float64)})
    with pytest.raises(UsageError, match="expected arrays by the name of state, found list"):
        plan.set_state([ONES])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no input 'sum'"):
        plan.run({"x": ONES, "sum": ONES})
    with pytest.raises(UsageError, match="input 'x' is missing"):
        plan.run({})
    np.testing.assert_array_equal(plan.state["total"], ONES * 0.5)


@pytest.mark.parametrize("target", TARGETS)
def test_verification_leaves_the_state(target: str) -> None:
    plan = cuts.build(running_sum(), target)
    plan.run({"x": ONES})
    assert {(result.tensor, result.ok) for result in plan.verify()} == {("y", True), ("sum.next", True)}
    np.testing.assert_array_equal(plan.reference({"x": ONES})["y"], ONES * 5)
    assert [result.tensor for result in plan.verify({"x": ONES}, {"y": ONES * 5})] == ["y"]
    np.testing.assert_array_equal(plan.state["total"], ONES * 1.5)


@pytest.mark.parametrize("target", TARGETS)
def test_a_folder_has_the_initial_state(target: str, tmp_path: Path) -> None:
    plan = cuts.build(running_sum(200), target)
    x = np.ones(200, np.float32)
    plan.run({"x": x})
    plan.save(tmp_path / "plan")
    again: Any = cuts.load(tmp_path / "plan")
    np.testing.assert_array_equal(again.state["total"], x * 0.5)
    found = again.run({"x": x})
    assert list(found) == ["number", "y", "nothing"]
    np.testing.assert_array_equal(found["y"], x * 3)


@needs_opencl
def test_sessions_have_a_state_of_their_own() -> None:
    plan = cuts.build(running_sum(), "opencl")
    first, second = Session(plan.plan), Session(plan.plan)
    first.run({"x": ONES})
    first.time_compute(warmup=1, repeats=2)
    list(first.trace({"x": ONES}))
    np.testing.assert_array_equal(first.state["total"], ONES * 1.5)
    np.testing.assert_array_equal(second.state["total"], ONES * 0.5)
    second.set_state({"total": ONES})
    np.testing.assert_array_equal(second.run({"x": ONES})["y"], ONES * 4)
    np.testing.assert_array_equal(first.run({"x": ONES})["y"], ONES * 5)
    first.reset_state()
    np.testing.assert_array_equal(np.asarray(first.run({"x": ONES})["y"]), ONES * 3)


@pytest.mark.parametrize("target", TARGETS)
def test_no_run_of_a_thread_is_lost(target: str) -> None:
    plan = cuts.build(running_sum(), target)
    threads = [threading.Thread(target=lambda: [plan.run({"x": ONES}) for _ in range(8)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(plan.state["total"], ONES * 32.5)


@needs_opencl
def test_a_failed_check_leaves_the_state() -> None:
    types = {"table": TensorType(DType.F32, (3, 2)), "at": TensorType(DType.I64, (1,))}
    types |= {"row": TensorType(DType.F32, (1, 2)), "table.next": types["table"]}
    nodes = (Node("row", "gather", ("table", "at"), ("row",)), Node("add", "add", ("table", "row"), ("table.next",)))
    state = {"table": StateTensor("table", "table.next", np.ones((3, 2), np.float32))}
    graph = Graph("rows", ("table", "at"), ("row", "table.next"), types, nodes, {}, Interface(state))
    plan = cuts.build(graph, "opencl", debug=True)
    plan.run({"at": [1]})
    with pytest.raises(cuts.CutsError, match="expected indices from -3 to 2, found 5"):
        plan.run({"at": [5]})
    np.testing.assert_array_equal(plan.state["table"], np.full((3, 2), 2.0))


def test_the_text_of_a_graph_has_its_state() -> None:
    for size in (4, 200):
        graph = running_sum(size)
        start = graph.interface.state["total"].initial
        varied = evolve(graph.interface.state["total"], initial=start + np.arange(size, dtype=np.float32))
        graph = evolve(graph, interface=evolve(graph.interface, state={"total": varied}))
        text = print_graph(graph)
        again = parse_graph(text, {"sum": varied.initial})
        assert print_graph(again) == text
        assert again.interface == graph.interface
        np.testing.assert_array_equal(again.interface.state["total"].initial, varied.initial)
    with pytest.raises(UsageError, match=r"holds no state .*'total', 'number', 'nothing'"):
        graph_to_json(running_sum())


def test_state_has_its_own_input_and_output() -> None:
    graph = running_sum()
    for tensor, message in (
        (StateTensor("y", "sum.next", ONES), "expected an input of its own, found 'y'"),
        (StateTensor("sum", "x", ONES), "expected an output of its own, found 'x'"),
        (StateTensor("sum", "sum.next", ONES[:2]), r"its input is f32\[4\], its initial value is float32\[2\]"),
    ):
        with pytest.raises(cuts.CutsError, match=message):
            verify_graph(evolve(graph, interface=Interface({"total": tensor})))


def test_training_carries_state() -> None:
    graph = evolve(running_sum(), interface=Interface(running_sum().interface.state))
    nodes = (*graph.nodes, Node("mean", "reduce_sum", ("y",), ("loss",), {"axes": (0,), "keepdims": False}))
    graph = evolve(graph, nodes=nodes, types={**graph.types, "loss": TensorType(DType.F32, ())})
    graph = evolve(graph, outputs=("loss", "sum.next"))
    training = cuts.grad(graph, wrt=["x"])
    assert training.carried["sum"] == "sum.next"
    np.testing.assert_array_equal(training.initial["sum"], ONES * 0.5)


def with_state(plan: Plan, given: str, found: str) -> Plan:
    """Return a plan with an output as an input's next value."""
    assert plan.model is not None
    interface = Interface({"kept": StateTensor(given, found, random_x(1))})
    return evolve(plan, model=evolve(plan.model, graph=evolve(plan.model.graph, interface=interface)))


@needs_opencl
def test_state_need_not_lie_dense() -> None:
    session = Session(with_state(example_plan(), "x", "left"))
    assert not session.is_dense("left")
    state = random_x(1)
    for _ in range(3):
        want = expected_outputs(state)
        np.testing.assert_allclose(session.run({})["y"], want["y"], rtol=1e-5, atol=1e-5)
        state = session.state["kept"]
        np.testing.assert_allclose(state, want["left"], rtol=1e-5, atol=1e-5)
    plan = evolve(example_plan(), inputs=("left", "right"), outputs=("y", "right"), steps=(), groups=())
    session, rows = Session(with_state(plan, "left", "right")), [random_x(seed) for seed in (1, 2, 3)]
    for before, after in pairwise(rows):
        found = session.run({"right": after})
        assert list(found) == ["y"]
        assert np.array_equal(found["y"], np.concatenate([before, after], axis=1))
