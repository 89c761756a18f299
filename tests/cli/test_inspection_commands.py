"""Commands that look at models and plans: inspect, compare, bisect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.cli.inspection.plan_difference import plan_difference
from cuts.cli.inspection.wrong_node import find_wrong_node
from cuts.cli.main import main
from cuts.ir import DType, Graph, Node, TensorType, subgraph
from cuts.tests.needs import needs_opencl


def chain() -> Graph:
    """Return product, relu, tanh and negation."""
    small = TensorType(DType.F32, (4, 8))
    types = {"x": small, "w": TensorType(DType.F32, (8, 8)), **dict.fromkeys(("p", "r", "t", "y"), small)}
    nodes = (
        Node("product", "matmul", ("x", "w"), ("p",)),
        Node("rectified", "relu", ("p",), ("r",)),
        Node("bent", "tanh", ("r",), ("t",)),
        Node("turned", "neg", ("t",), ("y",)),
    )
    weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    return Graph("chain", ("x",), ("y",), types, nodes, {"w": weights})


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    cuts.save_graph(chain(), "chain.json")
    return "chain.json"


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each kernel compute another function in place of tanh."""
    from cuts.backends import source

    emit: Callable[..., Any] = source.emit

    def emit_wrong(*arguments: Any, **options: Any) -> Any:
        kernel = emit(*arguments, **options)
        return evolve(kernel, source=kernel.source.replace("tanh(", "sin("))

    monkeypatch.setattr(source, "emit", emit_wrong)


def values_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_supported_model_is_listed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = values_of(capsys, "inspect", model)
    assert (values["supported"], values["inputs"], values["constant_bytes"]) == (True, {"x": "f32[4, 8]"}, 256)
    assert values["operations"] == {"matmul": 1, "relu": 1, "tanh": 1, "neg": 1}
    assert main(["inspect", model]) == 0
    assert "all operations are supported" in capsys.readouterr().out


def test_missing_operations_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    nodes = [onnx.helper.make_node("Relu", ["x"], ["r"]), onnx.helper.make_node("NonZero", ["r"], ["y"])]
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 3])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None)
    graph = onnx.helper.make_graph(nodes, "net", [given], [result])
    onnx.save(onnx.helper.make_model(graph, ir_version=10), tmp_path / "net.onnx")
    values = values_of(capsys, "inspect", str(tmp_path / "net.onnx"))
    assert (values["supported"], values["nodes"], values["runner"]) == (False, ["y"], "ONNX Runtime")
    assert "NonZero" in values["problems"][0]
    assert main(["inspect", str(tmp_path / "net.onnx")]) == 0
    assert "1 node would run in ONNX Runtime" in capsys.readouterr().out


def test_plans_differ_by_kernel(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuts.backends.compilers.toolchains", lambda: ())
    for folder, options in {"a": ["--mode", "mixed"], "b": ["--mode", "no-fusion"], "c": ["--mode", "mixed"]}.items():
        assert main(["compile", model, "--target", "cuda:sm_90", "-o", folder, *options]) == 0
    values = values_of(capsys, "compare", "a", "c")
    assert {group["verdict"] for group in values["groups"]} == {"equal"}
    values = values_of(capsys, "compare", "a", "b")
    sides = {
        side: [n for g in values["groups"] if g["verdict"] == side for n in g["nodes"]] for side in ("left", "right")
    }
    assert sorted(sides["left"]) == sorted(sides["right"])
    assert values["left"]["launches"] < values["right"]["launches"]
    left = cuts.load("a")
    assert isinstance(left, cuts.CompiledPlan)
    kernel = evolve(left.kernels[0], grid=(7, 1, 1))
    (other,) = plan_difference(left, cuts.CompiledPlan(evolve(left.plan, kernels=(kernel, *left.kernels[1:]))))[:1]
    assert (other.verdict, [*other.changes]) == ("changed", ["grid / block"])
    assert main(["compare", "a", "b"]) == 0
    assert "only left" in capsys.readouterr().out


def test_a_subgraph_begins_at_available_values() -> None:
    graph = chain()
    part = subgraph(graph, ("t",), {"p"})
    assert (part.inputs, part.outputs, [node.name for node in part.nodes]) == (("p",), ("t",), ["rectified", "bent"])
    whole = subgraph(graph, ("y",), ())
    assert (whole.inputs, [*whole.constants], whole.nodes) == (("x",), ["w"], graph.nodes)


@needs_opencl
def test_right_kernels_are_not_blamed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert values_of(capsys, "bisect", model, "--target", "opencl")["wrong"] is None


@needs_opencl
@pytest.mark.usefixtures("wrong_tanh")
@pytest.mark.parametrize("mode", ["mixed", "no-fusion"])
def test_the_wrong_node_is_found(model: str, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    options = ["--target", "opencl", "--mode", mode]
    values = values_of(capsys, "bisect", model, *options, code=5)
    assert (values["wrong"]["node"], values["wrong"]["op"]) == ("bent", "tanh")
    assert values["small"]["nodes"] == ["bent"]
    assert values["small"]["wrong_alone"] is True
    assert main(values["command"].split()[1:]) == 5
    assert "wrong" in capsys.readouterr().err


@needs_opencl
def test_a_kernel_wrong_in_its_plan_only(model: str) -> None:
    plan = cuts.build(chain(), target="opencl", mode="no-fusion")
    broken = tuple(evolve(kernel, source=kernel.source.replace("tanh(", "sin(")) for kernel in plan.kernels)
    wrong = cuts.CompiledPlan(evolve(plan.plan, kernels=broken))
    notes: list[str] = []
    found = find_wrong_node(wrong, wrong.random_inputs(), lambda part: cuts.build(part, target="opencl"), notes.append)
    assert found is not None
    assert (found.node.name, found.alone) == ("bent", False)
    assert "tanh" in found.kernel
