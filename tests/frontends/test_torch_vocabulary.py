"""PyTorch's operations beyond the core, forward and backward, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.frontends.torch.import_context import array_of
from cuts.frontends.torch.load import graph_of_nodes
from cuts.ops.reference import evaluate_graph

from .reference_backend import assert_same_as_eager

F = torch.nn.functional
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::cuts.frontends.torch.dynamo.UncompiledWarning"),
]
CHANCE = torch.Generator().manual_seed(0)


def x(*shape: int) -> Any:
    return torch.randn(shape, generator=CHANCE)


def i(*shape: int, below: int) -> Any:
    return torch.randint(0, below, shape, generator=CHANCE)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "histogram": (lambda a: (torch.histc(a, 5, -1, 1), torch.histc(a, 4), torch.histc(a * 0, 3)), (x(40),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_eager(name: str) -> None:
    assert_same_as_eager(*CASES[name])


def evaluate_call(target: Any, operands: tuple[Any, ...], *numbers: Any) -> Any:
    """Return the first result of a call, evaluated by the reference.

    PyTorch's CPU may not have it.
    """
    graph = torch.fx.Graph()
    places = [graph.placeholder(f"operand{n}") for n in range(len(operands))]
    for place, operand in zip(places, operands, strict=True):
        place.meta["val"] = operand
    graph.output((graph.call_function(target, (*places, *numbers)),))
    captured = graph_of_nodes(graph)
    arrays = {name: array_of(tensor) for name, tensor in zip(captured.graph.inputs, operands, strict=True)}
    return evaluate_graph(captured.graph, captured.registry, arrays)[captured.graph.outputs[0]]


def test_a_histogram_of_integers_has_their_type() -> None:
    experts = torch.tensor([0, 3, 3, 1, 7, -1, 0], dtype=torch.int32)
    found = evaluate_call(torch.ops.aten.histc.default, (experts,), 4, 0, 3)
    np.testing.assert_array_equal(found, np.array([2, 1, 0, 2], np.int32), strict=True)
