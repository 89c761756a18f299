"""Models with operations outside the vocabulary on the command line:
compiled in parts, saved, opened, run and checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from cuts.compile.build import build_staged
from cuts.compile.opening import load
from cuts.ir.errors import PlanError
from cuts.tests.cli.conftest import Cuts
from cuts.tests.models import text_direction_classifier
from cuts.tests.needs import needs_opencl
from onnx import TensorProto, helper, numpy_helper

WARNING = (
    "cuts: warning: 2 operations are outside the vocabulary and run uncompiled (3 of 16 nodes, 18.8%): "
    "If ('choice'); NonMaxSuppression ('nms')\n"
)


def detector() -> Any:
    """Return a small detector: two layers score 12 boxes;
    those that suppression keeps are scaled as a computed condition says.
    """
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 16)).astype(np.float32),
        "w2": rng.standard_normal((16, 12 * 5)).astype(np.float32), "most": np.array([5]),
        "overlap": np.array([0.5], np.float32), "two": np.float32(2), "last": np.array([2]),
    }  # fmt: skip

    def branch(name: str, *nodes: Any) -> Any:
        return helper.make_graph(nodes, name, [], [helper.make_value_info(name, onnx.TypeProto())])

    most = branch(
        "a", helper.make_node("ReduceMax", ["kept"], ["a"])
    )  # of another shape, so that both cannot be computed
    double = branch("b", helper.make_node("Mul", ["kept", "two"], ["b"]))

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["all"]),
        helper.make_node("Constant", [], ["form"], value=numpy_helper.from_array(np.array([1, 12, 5]))),
        helper.make_node("Reshape", ["all", "form"], ["rows"]),
        helper.make_node("Constant", [], ["sizes"], value=numpy_helper.from_array(np.array([4, 1]))),
        helper.make_node("Split", ["rows", "sizes"], ["boxes", "column"], axis=2),
        helper.make_node("Transpose", ["column"], ["scores"], perm=[0, 2, 1]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["picked"], name="nms"),
        helper.make_node("Gather", ["picked", "last"], ["places"], axis=1),
        helper.make_node("Squeeze", ["places"], ["flat"]),
        helper.make_node("Gather", ["boxes", "flat"], ["kept"], axis=1),
        helper.make_node("ReduceMean", ["kept"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "two"], ["wide"]),
        helper.make_node("If", ["wide"], ["scaled"], name="choice", then_branch=most, else_branch=double),
        helper.make_node("Tanh", ["scaled"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_value_info("y", onnx.TypeProto())],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "detector.onnx"
    onnx.save(detector(), path)
    return path


def expected_results(x: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(detector()).run(None, {"x": x})[0]


@needs_opencl
@pytest.mark.parametrize("target", ["reference", "opencl"])
def test_a_plan_in_parts_is_right_after_reopening(cuts: Cuts, model: Path, tmp_path: Path, target: str) -> None:
    made = cuts("compile", "detector.onnx", "--target", target, "-o", "p", "--verify", "--json")
    assert (made.code, WARNING in made.err) == (0, True)
    assert made.json["uncompiled"] == {"NonMaxSuppression": ["nms"], "If": ["choice"]}
    assert (len(made.json["parts"]), made.json["verify"]["ok"]) == (2, True)
    model.unlink()
    x = np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    run = cuts("run", "p", "--input", "x.npz", "--output", "y.npz", "--iters", "2", "--json")
    assert (run.code, run.err) == (0, WARNING)
    assert np.allclose(np.load(tmp_path / "y.npz")["y"], expected_results(x), rtol=1e-4, atol=1e-5)
    assert list(run.json["seconds"]) == ["wall"]
    checked = cuts("verify", "p", "--json")
    assert (checked.code, checked.json["checks"][0]["oracle"]) == (0, "the float64 reference, part by part")
    assert cuts("explain", "p").code == 0


def test_a_network_with_foreign_end_equals_onnxruntime(cuts: Cuts, tmp_path: Path) -> None:
    network = onnx.load(text_direction_classifier())
    (score,) = (value.name for value in network.graph.output)
    nodes = [
        helper.make_node("Unsqueeze", [score], ["scores"], axes=[1]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "one"], ["places"], name="where"),
        helper.make_node("GatherND", ["scores", "places"], ["chosen"]),
        helper.make_node("Log", ["chosen"], ["y"]),
    ]
    network.graph.node.extend(nodes)
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 2]]], np.float32)
    for name, value in (("one", np.array([1])), ("boxes", boxes)):
        network.graph.initializer.append(numpy_helper.from_array(value, name))
    network.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["found"]))
    onnx.save(network, tmp_path / "classifier.onnx")
    shape = f"{network.graph.input[0].name}=1x3x48x96"
    made = cuts("compile", "classifier.onnx", "--target", "reference", "--shape", shape, "-o", "p")
    assert (made.code, "NonMaxSuppression ('where')" in made.err) == (0, True)
    checked = cuts("verify", "p", "--onnx", "classifier.onnx", "--json").json["checks"]
    assert [(check["oracle"], check["ok"]) for check in checked] == [
        ("the float64 reference, part by part", True),
        ("ONNX Runtime", True),
    ]


def test_strict_names_everything_outside_the_vocabulary(cuts: Cuts, model: Path) -> None:
    result = cuts("compile", "detector.onnx", "--strict")
    assert (result.code, result.out) == (3, "")
    assert "1 operation is not supported: NonMaxSuppression (node 'nms')" in result.err
    assert not Path("detector.plan").exists()


@pytest.mark.parametrize("command", ["run", "verify"])
def test_models_run_without_a_plan(cuts: Cuts, model: Path, command: str) -> None:
    result = cuts(command, "detector.onnx", "--target", "reference", "--json")
    assert result.code == 0
    assert "NonMaxSuppression ('nms')" in result.err
    assert cuts(command, "graph.json", "--target", "reference").code == 0


def test_an_onnx_file_is_verified_against_onnxruntime_too(cuts: Cuts, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    checks = cuts("verify", "m.onnx", "--target", "reference", "--json").json["checks"]
    assert [(check["oracle"], check["ok"]) for check in checks] == [
        ("the float64 reference", True),
        ("ONNX Runtime", True),
    ]


def test_stages_stop_and_print_every_part(cuts: Cuts, model: Path) -> None:
    result = cuts("compile", "detector.onnx", "--stop-after", "partition")
    assert (result.code, result.out.count("group {") >= 3) == (0, True)


def test_a_damaged_part_is_named(cuts: Cuts, model: Path, tmp_path: Path) -> None:
    cuts("compile", "detector.onnx", "--target", "reference", "-o", "p")
    graph = tmp_path / "p" / "graph.onnx"
    graph.write_bytes(graph.read_bytes()[:-9])
    result = cuts("run", "p")
    assert (result.code, "graph.onnx is damaged" in result.err) == (3, True)


def test_a_user_operation_replaces_an_unknown_one(cuts: Cuts, tmp_path: Path) -> None:
    (tmp_path / "my.cuts").write_text(
        'op soft_sign : unary "x over 1 + |x|" { attr scale: float = 1 y = scale * x / (1 + abs(x)) }\n'
    )
    node = helper.make_node("SoftSign", ["x"], ["s"], domain="my.own", scale=3.0)
    unique = helper.make_node("Unique", ["s"], ["y", "", "places"], sorted=0)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    graph = helper.make_graph([node, unique], "g", [value], [helper.make_value_info("y", onnx.TypeProto())])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    assert cuts("run", "m.onnx", "--target", "reference", "--spec", "my.cuts", "--output", "y.npz").code == 0
    x = np.random.default_rng(0).standard_normal(4).astype(np.float32)
    assert np.allclose(np.load(tmp_path / "y.npz")["y"], 3 * x / (1 + np.abs(x)))
    assert "my.own.SoftSign" in cuts("compile", "m.onnx", "--target", "reference").err


def test_opening_a_plan_requires_the_callers_functions(tmp_path: Path) -> None:
    functions = {"NonMaxSuppression": lambda *_, **__: np.array([[0, 0, 3], [0, 0, 1]])}
    with pytest.warns(UserWarning, match="1 operation is"):
        plan = build_staged(detector(), "reference", functions)
    x = plan.random_inputs(3)
    plan.trace(x)
    plan.save(tmp_path / "p")
    with pytest.raises(PlanError, match="needs a function for 'NonMaxSuppression'"):
        load(tmp_path / "p")
    again = load(tmp_path / "p", functions)
    assert len(again.parts) == len(plan.parts)
    with pytest.warns(UserWarning, match="2 operations"):
        assert again.run(x)["y"].shape == (1, 2, 4)
    assert json.loads((tmp_path / "p" / "plan.json").read_text())["functions"] == ["NonMaxSuppression"]


@pytest.mark.parametrize("command", ["compile", "verify"])
def test_the_reference_verifies_models_with_user_operations(cuts: Cuts, tmp_path: Path, command: str) -> None:
    (tmp_path / "my.cuts").write_text('op soft_sign : unary "x over 1 + |x|" { y = x / (1 + abs(x)) }\n')
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("SoftSign", ["x"], ["y"], domain="my.own")], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    more = ["--verify"] if command == "compile" else []
    result = cuts(command, "m.onnx", "--target", "reference", "--spec", "my.cuts", "--json", *more)
    assert result.code == 0, result.err
    checks = [result.json["verify"]] if command == "compile" else result.json["checks"]
    assert [check["oracle"] for check in checks] == ["the float64 reference"]


def test_a_batch_assumed_as_one_is_reported(cuts: Cuts, tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    said = cuts("compile", "m.onnx", "--target", "reference").err
    assert said.startswith(
        "cuts: warning: m.onnx: input 'x': its first axis 'batch' is dynamic and is taken as 1; fix it"
    )
    assert said.count("warning") == 1
    assert cuts("compile", "m.onnx", "--target", "reference", "--shape", "x=2x4").err == ""


@needs_opencl
def test_groups_are_found_by_the_names_of_onnx(cuts: Cuts, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["h"], name="/layer/MatMul"),
        helper.make_node("Gelu", ["h"], ["g"], name="/layer/act/Gelu"),
        helper.make_node("LayerNormalization", ["g", "w"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [4, 4])], [value("y", TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(np.ones(4, np.float32), "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "n.onnx")
    assert cuts("compile", "n.onnx").code == 0
    for name in ("/layer/MatMul", "/layer/act/Gelu", "y"):
        found = cuts("explain", "n.plan", name)
        assert (found.code, name in found.out) == (0, True), found.err
    missing = cuts("explain", "n.plan", "/layer/MatMull")
    assert (missing.code, "did you mean '/layer/MatMul" in missing.err) == (2, True), missing.err
