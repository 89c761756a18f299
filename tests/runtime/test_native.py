"""Plans run by the C library: equal bits, state, threads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.compile import CompiledPlan
from cuts.ir import CutsError, DType, Graph, Interface, Node, StateTensor, TensorType, verify_graph
from cuts.ir.compiled import CompiledGraph, Step, Storage
from cuts.runtime import Plan, Session, make_concurrent, make_plan
from cuts.runtime.native import pack_plan
from cuts.runtime.native.interface_copies import direct_tensors
from cuts.runtime.native.packing import MIN_SWAPPED_BYTES, layout_of
from cuts.tests import models
from cuts.tests.fuzz.graphs import graphs
from cuts.tests.needs import needs_c_compiler, needs_opencl
from hypothesis import given, settings

from .handmade import COLUMNS, ROWS, example, example_plan, f32, kernel, random_x
from .native_runner import NativePlan
from .test_state import ONES, running_sum

pytestmark = [pytest.mark.as_users_build, needs_c_compiler()]
EXAMPLES = Path(__file__).parents[2] / "examples"


def assert_same_bits(plan: Plan, inputs: dict[str, Any], times: int = 2) -> None:
    """Compare runs of the C library with those of a session."""
    native, session = NativePlan(pack_plan(plan)), Session(plan)
    for _ in range(times):
        found, results = native.run(inputs), session.run(inputs)
        expected = {name: results[name] for name in plan.interface.caller_outputs(plan.outputs)}
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert found[name].tobytes() == value.tobytes(), name
    native.close()


def build(model: Any, **options: Any) -> CompiledPlan:
    return cuts.build(model, "opencl", **options)


@needs_opencl
@pytest.mark.parametrize("name", ["rms", "perceptron", "distance", "shift"])
def test_examples_compute_the_same_bits(name: str) -> None:
    specs = [str(path) for path in EXAMPLES.glob("*.cuts")]
    plan = build(str(EXAMPLES / f"{name}.json"), spec=specs)
    assert_same_bits(plan.plan, dict(plan.random_inputs(seed=3)))


@needs_opencl
@pytest.mark.parametrize("name", ["recurrent", "text_direction_classifier", "mobilenet_v2"])
def test_models_compute_the_same_bits(name: str) -> None:
    path = models.recurrent("LSTM") if name == "recurrent" else getattr(models, name)()
    plan = build(str(path), shapes={"x": (1, 3, 48, 192)} if name == "text_direction_classifier" else None)
    assert_same_bits(plan.plan, dict(plan.random_inputs(seed=3)))


@needs_opencl
@settings(max_examples=12)
@given(graphs())
def test_drawn_graphs_compute_the_same_bits(graph: Graph) -> None:
    plan = build(graph)
    assert_same_bits(plan.plan, dict(plan.random_inputs(seed=5)), times=1)


@needs_opencl
@pytest.mark.parametrize("shape", [(3, 5), (0, 4), ()], ids=str)
def test_every_element_type_passes(shape: tuple[int, ...]) -> None:
    types = {f"{role}_{dtype}": TensorType(dtype, shape) for role in "xwy" for dtype in DType}
    ops = {d: "logical_or" if d is DType.BOOL else "max" for d in DType}
    nodes = [Node(f"n_{d}", ops[d], (f"x_{d}", f"w_{d}"), (f"y_{d}",)) for d in DType]
    weights = {name: np.ones(shape, type_.dtype.numpy) for name, type_ in types.items() if name.startswith("w_")}
    inputs, outputs = (tuple(f"{role}_{dtype}" for dtype in DType) for role in "xy")
    plan = build(verify_graph(Graph("all", inputs, outputs, types, tuple(nodes), weights)))
    assert_same_bits(plan.plan, dict(plan.random_inputs(seed=1)))


@needs_opencl
def test_outputs_that_share_a_buffer_are_copied() -> None:
    plan = example_plan()
    assert direct_tensors(plan) == ({"x"}, {"y"})  # `left` is a part of `y`
    assert_same_bits(plan, {"x": random_x()})


@needs_opencl
def test_inputs_inside_another_tensor_are_copied() -> None:
    compiled, graph = example()
    storages = {**compiled.storages, "x": Storage("room", 3, (2 * COLUMNS, 2)), "room": Storage("room", 0, (1,))}
    double = kernel(
        "opencl", "k_spread", [("a", False), ("c", True)],
        f"c[i] = a[(i / {COLUMNS}) * {2 * COLUMNS} + (i % {COLUMNS}) * 2] + 1.0f;",
    )  # fmt: skip
    nodes = (Node("double", "relu", ("x",), ("h",)),)
    types = {"x": f32(ROWS, COLUMNS), "h": f32(ROWS, COLUMNS)}
    inner = evolve(graph, inputs=("x",), outputs=("h", "x"), nodes=nodes, types=types, constants={})
    made = CompiledGraph(inner, (double,), (Step(0, ("x", "h")),), {"x": storages["x"]}, ())
    plan = make_plan(made, example_plan().target)
    assert direct_tensors(plan) == (set(), {"h"})
    assert_same_bits(plan, {"x": random_x()})


@needs_opencl
def test_concurrent_launches_compute_the_same_bits() -> None:
    plan = build(str(EXAMPLES / "distance.json"), spec=[str(EXAMPLES / "distance.cuts")]).plan
    branched = make_concurrent(example_plan())
    assert_same_bits(branched or plan, {"x": random_x()} if branched else {})


@needs_opencl
def test_state_goes_on_and_is_set_and_reset() -> None:
    plan = build(running_sum())
    native = NativePlan(pack_plan(plan.plan))
    for run in range(3):
        np.testing.assert_array_equal(native.run({"x": ONES})["y"], 2 * ONES * (run + 1.5))
        np.testing.assert_array_equal(native.state(0), ONES * (run + 1.5))
    native.set_state(0, ONES * 7)
    np.testing.assert_array_equal(native.run({"x": ONES})["y"], ONES * 16)
    native.reset_state()
    np.testing.assert_array_equal(native.run({"x": ONES})["y"], ONES * 3)
    native.close()


@needs_opencl
def test_large_state_is_not_copied() -> None:
    size = MIN_SWAPPED_BYTES // 4
    plan, x = build(running_sum(size)), np.ones(size, np.float32)
    assert layout_of(plan.plan).after == ()
    native = NativePlan(pack_plan(plan.plan))
    for run in range(3):
        assert np.all(native.run({"x": x})["y"] == 2 * (run + 1.5))
        assert np.all(native.state(0) == run + 1.5)
    native.set_state(0, 7 * x)
    assert np.all(native.run({"x": x})["y"] == 16)
    native.reset_state()
    assert np.all(native.state(0) == 0.5)
    assert np.all(native.run({"x": x})["y"] == 3)
    native.close()


def exchanged_state() -> Graph:
    """Return a graph whose two states exchange their values."""
    type_ = TensorType(DType.F32, (4,))
    state = {
        "first": StateTensor("a", "b.next", np.arange(4, dtype=np.float32)),
        "second": StateTensor("b", "a.next", np.full(4, 9, np.float32)),
    }
    nodes = (
        Node("keep", "identity", ("b",), ("b.next",)),
        Node("move", "identity", ("a",), ("a.next",)),
        Node("add", "add", ("a", "x"), ("y",)),
    )
    types = dict.fromkeys(("x", "a", "b", "a.next", "b.next", "y"), type_)
    return verify_graph(
        Graph("exchange", ("x", "a", "b"), ("y", "a.next", "b.next"), types, nodes, {}, Interface(state))
    )


@needs_opencl
def test_states_exchange_their_values() -> None:
    plan = build(exchanged_state())
    assert_same_bits(plan.plan, {"x": ONES}, times=4)


@needs_opencl
def test_sessions_run_concurrently() -> None:
    plan = build(running_sum(1000))
    native = NativePlan(pack_plan(plan.plan))
    x = np.ones(1000, np.float32)
    found: list[Any] = []

    def work() -> None:
        session = native.new_session()
        found.append([native.run({"x": x}, session)["y"][0] for _ in range(20)])
        native.library.cuts_session_destroy(session)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    native.close()
    assert found == [[2 * (n + 1.5) for n in range(20)]] * 4


@needs_opencl
def test_a_plan_is_freed_after_its_last_session() -> None:
    native = NativePlan(pack_plan(build(running_sum()).plan))
    native.library.cuts_plan_close(native.plan)
    np.testing.assert_array_equal(native.run({"x": ONES})["y"], 3 * ONES)
    native.library.cuts_session_destroy(native.session)


@needs_opencl
def test_a_file_is_opened_without_python(tmp_path: Path) -> None:
    path = tmp_path / "example.cutsplan"
    path.write_bytes(pack_plan(example_plan()))
    native = NativePlan(path)
    assert native.run({"x": random_x()})["y"].shape == (ROWS, 2 * COLUMNS)
    native.close()


def test_plans_that_need_python_are_refused() -> None:
    with pytest.raises(CutsError, match="launches no kernels"):
        pack_plan(evolve(example_plan(), target=evolve(example_plan().target, dialect="reference")))
    routine = evolve(example_plan().kernels[0], name="cublas_1", dialect="library", info={"library": "cublas 13.0"})
    plan = evolve(example_plan(), kernels=(routine, example_plan().kernels[1]))
    with pytest.raises(CutsError, match=r"the routine cublas_1 of cublas 13\.0, which cannot be called without Python"):
        pack_plan(plan)
