"""Type promotion of PyTorch's operands, and unread operands.

Operands with a factor of 0 are not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.frontends.torch.decompositions import decompositions
from cuts.frontends.torch.import_context import array_of
from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.ops.reference import evaluate_graph
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides

TYPES = (
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64,
)  # fmt: skip
NAN = float("nan")


def ours(function: Callable[..., Any], *given: Any) -> list[Any]:
    """Return the reference's results of a function."""
    made = make_fx(function, decompositions(), tracing_mode="fake")(*given)
    graph = graph_of_nodes(made.graph)
    names = [node.name for node in made.graph.nodes if node.op == "placeholder"]
    found = evaluate_graph(graph.graph, graph.registry, {n: array_of(x) for n, x in zip(names, given, strict=True)})
    return [np.asarray(found[name], graph.graph.types[name].dtype.numpy) for name in graph.graph.outputs]


def agree(function: Callable[..., Any], *given: Any, tolerance: float = 0) -> None:
    expected = function(*given)
    for e, f in zip(expected if isinstance(expected, tuple) else (expected,), ours(function, *given), strict=True):
        array = array_of(e)
        assert f.dtype == array.dtype
        np.testing.assert_allclose(f.astype(float), array.astype(float), rtol=tolerance, atol=tolerance)


def tensor_of_type(values: list[float], dtype: Any) -> Any:
    """Return numbers in a type, the nearest that it holds."""
    x = torch.tensor(values, dtype=torch.float64)
    if not dtype.is_floating_point:
        x = x.nan_to_num(3).clamp(torch.iinfo(dtype).min, min(torch.iinfo(dtype).max, 2**31))
    return x.to(dtype)


def places(edges: Any, values: Any) -> Any:
    return (
        torch.searchsorted(edges, values),
        torch.searchsorted(edges, values, side="right", out_int32=True),
        torch.bucketize(values, edges, right=True),
    )


@pytest.mark.parametrize(("one", "other"), [*itertools.product(TYPES, TYPES)], ids=str)
def test_values_and_edges_of_searches_meet(one: Any, other: Any) -> None:
    edges = tensor_of_type([-7, -3, 0, 2, 2, 5, 100, 120], one).sort()[0]
    agree(places, edges, tensor_of_type([2, 1.5, -3, 200, 127, -128, 130, 250.5, NAN], other))


def test_searches_for_numbers_and_by_a_sorter() -> None:
    whole = torch.tensor([3, 1, 2])
    agree(lambda e: (torch.searchsorted(e, 1.5), torch.bucketize(2.5, e), torch.searchsorted(e, NAN)), whole.sort()[0])
    agree(lambda e, v, s: torch.searchsorted(e, v, sorter=s), whole, torch.tensor([1.5, 2, 9]), whole.argsort())
    agree(torch.searchsorted, torch.tensor([0.1, 0.2, 0.3]), torch.tensor(0.2, dtype=torch.float64))
    agree(torch.searchsorted, torch.tensor([2**53, 2**53 + 1]), torch.tensor([2**53, 2**53 + 1]))
    agree(torch.searchsorted, torch.zeros(0), torch.tensor([1.0, NAN]))


def test_nan_among_edges_stands_last() -> None:
    edges = torch.tensor([1.0, 2.0, NAN])
    left, right = ours(lambda e, v: (torch.searchsorted(e, v), torch.searchsorted(e, v, right=True)), edges, edges)
    assert (left.tolist(), right.tolist()) == ([0, 1, 3], [1, 2, 3])


IN_PLACE_WRITES = [
    (torch.float32, torch.int8),
    (torch.int32, torch.float64),
    (torch.bool, torch.float32),
    (torch.bool, torch.bool),
]


@pytest.mark.parametrize(("one", "other"), IN_PLACE_WRITES, ids=str)
def test_written_values_take_the_tensors_type(one: Any, other: Any) -> None:
    x = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1, 0]).to(one)
    y, at = torch.tensor([1, 0, 2, 3, 0, 0, 1, 0, 1]).to(other), torch.tensor([0, 3, 5])
    agree(lambda x, y: torch.slice_scatter(x, y[:3], 0, 1, 4), x, y)
    agree(lambda x, y: torch.slice_scatter(x, y, 0, 0, 9), x, y)
    agree(lambda x, y: torch.diagonal_scatter(x.view(3, 3), y[:3]), x, y)
    agree(lambda x, y, at: x.index_fill(0, at, y[3]), x, y, at)


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "addmm": (torch.addmm, (3, 5), (3, 4), (4, 5)),
    "addmm, a row": (torch.addmm, (5,), (3, 4), (4, 5)),
    "addmv": (torch.addmv, (3,), (3, 4), (4,)),
    "baddbmm": (torch.baddbmm, (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "addbmm": (torch.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)),
    "addr": (torch.addr, (3, 5), (3,), (5,)),
}


@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_factor_of_0_leaves_an_operand_out(name: str, alpha: float) -> None:
    function, *shapes = PRODUCTS[name]
    torch.manual_seed(0)
    c, a, b = (torch.randn(shape) for shape in shapes)
    for fill in (NAN, float("inf")):
        agree(lambda c, a, b: function(c, a, b, beta=0, alpha=alpha), c * fill, a, b, tolerance=1e-5)
    agree(lambda c, a, b: function(c, a, b, beta=3, alpha=alpha), c, a, b, tolerance=1e-5)
