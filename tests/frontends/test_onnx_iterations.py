"""Scans and loops of ONNX: uniform steps become one operation.

Other steps are unrolled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

onnx = pytest.importorskip("onnx")

from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.compile.opening import load
from cuts.frontends.graph_json import graph_from_json, graph_to_json
from cuts.frontends.onnx.load import load_onnx  # onnx is optional
from cuts.frontends.onnx.subgraphs.repeat import MAX_UNROLLED_STEPS
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.text import parse_graph, print_graph
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.gradient import Gradients
from cuts.ops.reference import evaluate_graph
from cuts.passes.graph.gradient import differentiate_graph
from cuts.passes.pipeline import compile_graph
from onnx import TensorProto, helper, numpy_helper

from ..needs import DEVICES

W = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32) / 2
Values = dict[str, np.ndarray[Any, Any]]


def value(name: str, *shape: int, type_: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, type_, shape)


def model(node: Any, inputs: list[Any], outputs: list[str], **constants: Any) -> Any:
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    graph = helper.make_graph([node], "g", inputs, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scan(steps: int, axis: int = 0, back: int = 0, out: int = 0, turned: int = 0) -> tuple[Any, Values, Values]:
    """Return h = tanh(h W + e), which collects h * e.

    It comes with inputs and expected results.
    """
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["m"]), helper.make_node("Add", ["m", "e"], ["a"]),
            helper.make_node("Tanh", ["a"], ["next"]), helper.make_node("Mul", ["next", "e"], ["c"]),
        ],
        "body", [value("h", 2, 3), value("e", 2, 3)], [value("next", 2, 3), value("c", 2, 3)],
    )  # fmt: skip
    directions = {"scan_input_directions": [back], "scan_output_directions": [turned]}
    node = helper.make_node(
        "Scan", ["h0", "x"], ["last", "all"], num_scan_inputs=1, body=body, scan_input_axes=[axis],
        scan_output_axes=[out], **directions,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    elements = rng.standard_normal((steps, 2, 3)).astype(np.float32)
    inputs = {"h0": rng.standard_normal((2, 3)).astype(np.float32), "x": np.moveaxis(elements, 0, axis)}
    h, collected = inputs["h0"].astype(float), []
    for element in elements[::-1] if back else elements:
        h = np.tanh(h @ W + element)
        collected.append(h * element)
    whole = np.stack(collected[::-1] if turned else collected, axis=out)
    proto = model(node, [value("h0", 2, 3), value("x", *inputs["x"].shape)], ["last", "all"], w=W)
    return proto, inputs, {"last": h, "all": whole}


def counted_loop(steps: int, collects: str = "next") -> tuple[Any, Values, Values]:
    """Return a loop that adds row and number of each step."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "i"], ["row"]), helper.make_node("Cast", ["i"], ["f"], to=1),
            helper.make_node("Mul", ["h", "half"], ["less"]), helper.make_node("Sum", ["less", "row", "f"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]), helper.make_node("Identity", [collects], ["seen"]),
        ],
        "body", [value("i", type_=TensorProto.INT64), value("going", type_=TensorProto.BOOL), value("h", 3)],
        [value("still", type_=TensorProto.BOOL), value("next", 3), value("seen", 3)],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "h0"], ["last", "all"], body=body)
    rng = np.random.default_rng(2)
    inputs = {"h0": rng.standard_normal(3).astype(np.float32), "x": rng.standard_normal((steps, 3)).astype(np.float32)}
    h, collected = inputs["h0"].astype(float), []
    for number, row in enumerate(inputs["x"]):
        before, h = h, h / 2 + row + number
        collected.append({"next": h, "row": row, "h": before}[collects])
    proto = model(node, [value("h0", 3), value("x", steps, 3)], ["last", "all"], n=steps, half=np.float32(0.5))
    return proto, inputs, {"last": h, "all": np.stack(collected)}


CASES = {
    "forwards": lambda steps: scan(steps),
    "backwards": lambda steps: scan(steps, back=1, turned=1),
    "other axes": lambda steps: scan(steps, axis=2, out=-1),
    "counted": counted_loop,
    "collects an element": lambda steps: counted_loop(steps, "row"),
    "collects the state before": lambda steps: counted_loop(steps, "h"),
}


def assert_near(found: Values, expected: Values) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_node_count_is_independent_of_length(case: str) -> None:
    sizes = set()
    for steps in (2, MAX_UNROLLED_STEPS + 1, 1000):
        proto, inputs, expected = CASES[case](steps)
        graph = load_onnx(proto)
        sizes |= {len(graph.nodes)} if steps > MAX_UNROLLED_STEPS else set()
        assert_near(evaluate_graph(graph, Registry.builtin(), inputs), expected)
    assert len(sizes) == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", ["backwards", "counted"])
def test_a_thousand_steps_are_a_few_kernels(case: str, device: str, tmp_path: Path) -> None:
    proto, inputs, expected = CASES[case](1000)
    plan = build_graph(load_onnx(proto), load_spec(()), find_target(device), CompileOptions(verify=True))
    assert len(plan.kernels) < 12
    assert_near(plan.run(inputs), expected)
    plan.save(tmp_path / "plan")
    assert_near(load(tmp_path / "plan").run(inputs), expected)


@pytest.mark.parametrize("case", CASES)
def test_absent_gpu_gets_few_kernels(case: str) -> None:
    graph = load_onnx(CASES[case](1000)[0])
    found = compile_graph(graph, Registry.builtin(), find_target("cuda:h200"), CompileOptions(), emit)
    assert len(found.kernels) < 12


def the_graph(steps: int = 9) -> Graph:
    return load_onnx(scan(steps)[0])


def test_a_node_brings_its_declaration_into_files() -> None:
    graph = the_graph()
    assert any(node.declaration for node in graph.nodes)
    assert graph_from_json(graph_to_json(graph)) == graph
    text = print_graph(graph)
    assert print_graph(parse_graph(text, graph.constants)) == text
    assert parse_graph(text, graph.constants).nodes == graph.nodes


def test_steps_that_differ_are_written_out() -> None:
    """Unroll steps that differ.

    A slice of x that begins at the number of the step must be known at import.
    """
    body = helper.make_graph(
        [
            helper.make_node("Unsqueeze", ["i", "zero"], ["from"]), helper.make_node("Add", ["from", "one"], ["to"]),
            helper.make_node("Slice", ["x", "from", "to"], ["row"]), helper.make_node("Add", ["h", "row"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body", [value("i", type_=TensorProto.INT64), value("going", type_=TensorProto.BOOL), value("h", 1, 3)],
        [value("still", type_=TensorProto.BOOL), value("next", 1, 3)],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "h0"], ["last"], body=body)
    one = np.ones(1, np.int64)
    proto = model(node, [value("h0", 1, 3), value("x", 7, 3)], ["last"], n=7, zero=one * 0, one=one)
    inputs = {"h0": np.ones((1, 3), np.float32), "x": np.arange(21, dtype=np.float32).reshape(7, 3)}
    graph = load_onnx(proto)
    assert not any(node.declaration for node in graph.nodes)
    assert_near(evaluate_graph(graph, Registry.builtin(), inputs), {"last": 1 + inputs["x"].sum(axis=0)[None]})


def test_a_loop_has_a_gradient() -> None:
    graph, (_, inputs, _) = the_graph(), scan(9)
    node = Node("total", "reduce_sum", ("last",), ("total",), {"axes": (0, 1), "keepdims": False})
    types = {**graph.types, "total": TensorType(DType.F32, ())}
    whole = Graph("loss", graph.inputs, ("total",), types, (*graph.nodes, node), graph.constants)
    gradients = Gradients(Registry.builtin())
    made = differentiate_graph(whole, gradients, "total", ["h0"])
    slope = evaluate_graph(evolve(made.graph, outputs=(made.gradients["h0"],)), gradients.registry, inputs)
    steps = 1e-6 * np.eye(6).reshape(6, 2, 3)
    moved = [evaluate_graph(whole, Registry.builtin(), inputs | {"h0": inputs["h0"] + s}) for s in (*steps, *-steps)]
    ends = np.array([found["total"] for found in moved])
    np.testing.assert_allclose(slope[made.gradients["h0"]].reshape(-1), (ends[:6] - ends[6:]) / 2e-6, rtol=1e-4)
