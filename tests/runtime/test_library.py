"""Calls of the package.

Accepted arguments, errors for others, and a plan's description.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.ir import CompileOptions, CutsWarning, Graph, GraphError, Node, UsageError
from cuts.tests.needs import needs_opencl
from cuts.tests.runtime.handmade import f32

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def graph() -> Graph:
    """The graph `y = relu(x)`."""
    types = {"x": f32(2, 3), "y": f32(2, 3)}
    return Graph("tiny", ("x",), ("y",), types, (Node("act", "relu", ("x",), ("y",)),), {})


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Any:
    """Its plan for the reference."""
    return cuts.build(graph, "reference")


@pytest.mark.parametrize("inputs", [None, [1], X, 3, "x"], ids=repr)
def test_inputs_are_given_by_name(plan: Any, inputs: Any) -> None:
    with pytest.raises(UsageError, match=r"expected arrays by input name, found .*; give \{'x': array\}"):
        plan.run(inputs)


def test_names_that_are_no_text_are_unknown(plan: Any) -> None:
    with pytest.raises(UsageError, match="there is no input '1'"):
        plan.run({"x": X, 1: X})


def test_a_plan_shows_what_goes_in_and_out(plan: Any) -> None:
    assert plan.outputs == {"y": f32(2, 3)}
    assert repr(plan).startswith("CompiledPlan('tiny': (x: f32[2, 3]) -> (y: f32[2, 3]), no kernels, for ")


def test_a_target_may_stand_second(graph: Graph) -> None:
    assert cuts.build(graph, "reference").target == cuts.build(graph, target="reference").target


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec": "a.cuts"}, r"'spec' is a list of files, found one: a.cuts; give \['a.cuts'\]"),
        ({"shapes": {"batch": 5}}, "shape of 'batch': expected all extents of an input, found 5"),
        ({"shapes": {"x": "23"}}, "expected all extents of an input, found '23'"),
        ({"shapes": {"x": (2, 3.5)}}, "expected all extents of an input"),
        ({"shapes": [2, 3]}, "expected shapes by input name, found list"),
        ({"args": (X,)}, "'args' are example inputs of a PyTorch module, and the model is a Graph"),
        ({"mode": "fusion", "options": CompileOptions()}, "'options' has a mode"),
        ({"debug": True, "options": CompileOptions()}, "'options' has a mode"),
        ({"budget": 1.0, "options": CompileOptions()}, "'options' has a mode"),
    ],
)
def test_options_that_cannot_apply_are_refused(graph: Graph, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cuts.build(graph, target="reference", **options)


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "cuts.__version__"}
    assert cuts.__version__.count(".") == 2


@pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
def test_modules_and_exported_programs_are_models() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 3)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    for plan in (
        cuts.build(module, (x,), "reference"),
        cuts.build(module, args=(x,), target="reference"),
        cuts.build(torch.export.export(module, (x,)), "reference"),
    ):
        (found,) = plan.run(dict(zip(plan.inputs, (x,), strict=True))).values()
        np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_module_needs_example_inputs() -> None:
    torch = pytest.importorskip("torch")
    for args, found in ((), "none"), ([], "none"), (torch.ones(2), "Tensor"):
        with pytest.raises(UsageError, match=f"needs a tuple of example inputs, found {found}"):
            cuts.build(torch.nn.ReLU(), args, "reference")
    with pytest.raises(UsageError, match="an exported program has fixed shapes"):
        cuts.build(torch.nn.ReLU(), (torch.ones(2),), "reference", shapes={"input": (3,)})


@pytest.mark.filterwarnings("ignore")
def test_an_assertion_of_a_module_is_reported() -> None:
    torch = pytest.importorskip("torch")

    class Checked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise AssertionError

    for fallback in (False, True):
        with pytest.raises(GraphError, match=r"torch.export cannot trace Checked: AssertionError: ") as caught:
            cuts.build(Checked(), (torch.ones(2),), "reference", fallback=fallback)
        assert "\n" not in str(caught.value)


def test_window_larger_than_its_image_is_warned_about() -> None:
    types = {"x": f32(1, 1, 2, 2), "w": f32(1, 1, 3, 3), "y": f32(1, 1, 0, 0)}
    graph = Graph("small", ("x", "w"), ("y",), types, (Node("c", "conv", ("x", "w"), ("y",)),), {})
    with pytest.warns(
        CutsWarning, match=r"node 'c' \(conv\): its result 'y' has no elements: f32\[1, 1, 0, 0\]; its oper"
    ):
        cuts.build(graph, "reference")


def test_selecting_nothing_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    types = {"x": f32(0, 3), "y": f32(0, 3)}
    cuts.build(Graph("none", ("x",), ("y",), types, (Node("act", "relu", ("x",), ("y",)),), {}), "reference")
    assert not recwarn.list


@needs_opencl
def test_the_tolerance_follows_the_condition_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    types = {"x": f32(4096), "k": f32(), "a": f32(4096), "y": f32(4096)}
    nodes = (Node("m", "mul", ("x", "k"), ("a",)), Node("c", "cos", ("a",), ("y",)))
    plan = cuts.build(Graph("turn", ("x",), ("y",), types, nodes, {"k": np.array(1.1, np.float32)}), "opencl")
    x = {"x": np.arange(4096, dtype=np.float32)}
    (result,) = plan.verify(x)
    assert result.ok
    assert result.error > plan.tolerances()["y"]  # the function loses digits, not the kernel
    right = plan.run(x)["y"]
    monkeypatch.setattr(plan, "run", lambda _: {"y": right + np.float32(0.01)})
    assert not plan.verify(x)[0].ok
