"""Decomposition call by call equals PyTorch's decomposition of the program."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.bench.networks.models import APPLICATIONS
from cuts.frontends.torch.loading import decomposition as core
from cuts.frontends.torch.loading.load import graph_of_export
from cuts.ir import CutsError, Graph
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.tests.amounts import NIGHTLY
from cuts.tests.frontends.zoo import ZOO
from cuts.tests.models import torchvision_models

from .torch_calls import TYPES, Case, cases

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
nn = torch.nn
#: Calls of each element type in a default run; nightly runs have all.
_SAMPLE = 12


def meanings(graph: Graph) -> list[str]:
    """Return digests of a graph's outputs, its node count and input names.

    They do not depend on names and order of nodes.
    """
    known = {name: f"input {n} {graph.types[name]}" for n, name in enumerate(graph.inputs)}
    for name, array in graph.constants.items():
        known[name] = _digest(str(graph.types[name]), array.tobytes())
    for node in graph.nodes:
        operands = [None if value is None else known[value] for value in node.inputs]
        made = _digest(node.op, repr(sorted(node.attributes.items())), repr(operands))
        known |= {value: f"{made} {n} {graph.types[value]}" for n, value in enumerate(node.outputs)}
    return [f"{len(graph.nodes)} nodes", *graph.inputs, *(known[value] for value in graph.outputs)]


def _digest(*parts: str | bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() if isinstance(part, str) else part)
    return whole.hexdigest()


def both_decompositions(program: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Graph, Graph]:
    """Return a program's graph, and that of PyTorch's own decomposition."""
    found = graph_of_export(program)
    with monkeypatch.context() as patch:
        patch.setattr(core, "decompose_by_call", lambda *_: None)
        return found, graph_of_export(program)


class Called(nn.Module):
    """Inputs that are called as functions of Python, and as operations."""

    def forward(self, input: Any, max: Any, x_1: Any, relu: Any) -> Any:
        return torch.relu(input * max + x_1) + torch.amax(relu)


def test_inputs_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Called(), (torch.ones(2),) * 4)
    assert_piecewise(program, monkeypatch)
    assert graph_of_export(program).inputs == ("input", "max", "x_1", "relu")


def refuse(*_: Any) -> Any:
    raise AssertionError("the program was decomposed as a whole")


def assert_piecewise(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a program decomposes call by call, with equal results."""
    with monkeypatch.context() as patch:
        patch.setattr(type(program), "run_decompositions", refuse)
        graph_of_export(program)
    found, wanted = both_decompositions(program, monkeypatch)
    assert meanings(found) == meanings(wanted)


class Function(nn.Module):
    """A function as a module, with a buffer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.held = nn.Buffer(torch.ones(3))

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


@pytest.mark.parametrize("name", ZOO)
def test_networks_of_many_kinds_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    program = torch.export.export(ZOO[name].make().eval(), ZOO[name].inputs())
    found, wanted = both_decompositions(program, monkeypatch)
    assert meanings(found) == meanings(wanted)


@pytest.mark.long
@pytest.mark.parametrize("model", APPLICATIONS, ids=lambda model: model.name)
def test_whole_models_are_the_same_call_by_call(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if model.images:
        torchvision_models()
    assert_piecewise(torch.export.export(*model.make(1, True)), monkeypatch)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_single_operations_are_the_same(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list(cases(kind))
    for case in drawn if NIGHTLY else random.Random(f"core {kind}").sample(drawn, _SAMPLE):
        assert fault(case, monkeypatch) is None, case.name


def fault(case: Case, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return the difference of the two graphs of a call, or None."""
    try:
        case.function(*case.operands)
        program = torch.export.export(Function(case.function), case.operands)
    except Exception:  # PyTorch's refusals have no class of their own
        return None
    found = outcome(program)
    with monkeypatch.context() as patch:
        patch.setattr(core, "decompose_by_call", lambda *_: None)
        wanted = outcome(program)
    return None if found == wanted else f"{found}\n{wanted}"


def outcome(program: Any) -> list[str]:
    """Return the meaning of a program's graph, or its error."""
    try:
        return meanings(graph_of_export(program))
    except CutsError as error:
        return [str(error)]


# ---- writing in place


def after_a_layer(x: Any) -> Any:
    y = (x * 2).relu_()
    y += 1
    return y, x


def a_view_read_later(x: Any) -> Any:
    y = x * 2
    part = y[:, 1]
    y.relu_()
    return part + 1, y


def a_view_written(x: Any) -> Any:
    y = x * 2
    y[0].fill_(3.0)
    return y


def read_before(x: Any) -> Any:
    y = x * 2
    part = y[:, 1] + 1
    y.clamp_(min=0)
    return part, y


def written_alias(x: Any) -> Any:
    """Write to an alias.

    PyTorch itself copies here when it decomposes a whole program, and returns the old `y`.
    """
    y = x * 2
    z = nn.functional.dropout(y, 0.5, False).contiguous()
    z.neg_()
    return y, z


def another_type(x: Any) -> Any:
    y = (x * 2).to(torch.float16)
    y.add_(x)
    return y


def the_input(x: Any) -> Any:
    y = x.mul_(2)
    return y + x


@pytest.mark.parametrize("function", [
    after_a_layer, a_view_read_later, a_view_written, read_before, written_alias, another_type, the_input,
], ids=lambda function: function.__name__)  # fmt: skip
def test_in_place_writes_match_pytorch(function: Callable[..., Any]) -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    graph = graph_of_export(torch.export.export(Function(function), (x.clone(),)))
    found = evaluate_graph(graph, Registry.builtin(), {graph.inputs[0]: x.numpy()})
    given = x.clone()
    results = function(given)
    expected = [*(results if isinstance(results, tuple) else (results,)), *(() if torch.equal(given, x) else (given,))]
    for name, value in zip(graph.outputs, expected, strict=True):
        assert np.allclose(found[name], value.numpy(), rtol=1e-3)


@pytest.mark.parametrize("function", [after_a_layer, read_before, written_alias])
def test_private_writes_need_no_trace(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Function(function), (torch.ones(2, 3),))
    monkeypatch.setattr(type(program), "run_decompositions", refuse)
    assert graph_of_export(program).nodes


def test_writes_within_a_decomposition_stay_local(monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = Function(lambda x: nn.functional.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1))
    assert_piecewise(torch.export.export(pooled, (torch.ones(1, 8, 7, 7),)), monkeypatch)


def test_decompositions_may_have_unknown_types(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in cases(torch.uint8) if case.name == "aminmax whole")
    assert fault(case, monkeypatch) is None


def test_training_norm_is_decomposed_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(inplace=True)).train()
    program = torch.export.export(norm, (torch.randn(2, 3, 4, 4),))
    monkeypatch.setattr(type(program), "run_decompositions", refuse)
    with pytest.raises(CutsError, match="as a whole"):
        graph_of_export(program)


def test_symbolic_shapes_are_explained() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),), dynamic_shapes={"input": {0: batch}})
    with pytest.raises(CutsError, match="is dynamic"):
        graph_of_export(program)
