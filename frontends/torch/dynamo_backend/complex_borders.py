"""Complex inputs and results of captured graphs, as pairs of real tensors.

    z: complex64[2, 3] -> exp -> y: complex64[2, 3]
    z: float32[2, 3, 2] -> view_as_complex -> exp -> view_as_real -> y: float32[2, 3, 2]

Both views share the memory of the complex tensor, so that nothing is copied at a call. A complex result that is a view
of an input is made of that input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from attrs import field, frozen

from ..calls import tensor_of
from ..dispatch import results

#: A function of tensors that returns a list of results.
Function = Callable[..., list[Any]]


@frozen
class InputView:
    """Result that is a view of an input.

    `offset` is the distance of their first elements.
    """

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, argument: torch.Tensor) -> torch.Tensor:
        """Return the view of an argument."""
        return argument.as_strided(self.shape, self.strides, argument.storage_offset() + self.offset)


@frozen
class RealGraph:
    """Graph with real inputs and results.

    `inputs` and `outputs` are the numbers of those that are complex outside.
    `views` has the results that are views of complex inputs: the number of the input, shape, strides and the distance
    of the first elements. The graph has None in their place.
    """

    graph: torch.fx.Graph
    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    views: Mapping[int, InputView] = field(factory=dict)

    def wrap(self, function: Function) -> Function:
        """Return a function of complex tensors that calls one of real ones."""
        if not (self.inputs or self.outputs):
            return function

        def call(*arguments: Any) -> list[Any]:
            given = [_pairs(a) if n in self.inputs else a for n, a in enumerate(arguments)]
            found = [torch.view_as_complex(x) if n in self.outputs else x for n, x in enumerate(function(*given))]
            for number, view in self.views.items():
                found[number] = view.of(arguments[view.number])
            return found

        return call


def with_real_borders(graph: torch.fx.Graph, constants: Collection[int] = ()) -> RealGraph:
    """Return a graph with views at its complex inputs and results.

    The inputs of the numbers `constants` stay as they are. A graph without complex ones is returned itself.
    """
    places = [node for node in graph.nodes if node.op == "placeholder"]
    inputs = {node: n for n, node in enumerate(places) if _is_complex(node) and n not in constants}
    found = {n: node for n, node in enumerate(results(graph)) if _is_complex(node) and not node.meta["val"].is_conj()}
    if not (inputs or found):
        return RealGraph(graph)
    views = {n: view for n, node in found.items() for view in _input_views(node, inputs)}
    made = torch.fx.Graph(graph.owning_module)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        copy = copies[node] = made.node_copy(node, copies.__getitem__)
        if node in inputs:
            copy.meta = {**node.meta, "val": _pairs(node.meta["val"])}
            copies[node] = _call(made, torch.ops.aten.view_as_complex.default, copy, node.meta["val"])
    ends = [copies[each] if isinstance(each, torch.fx.Node) else each for each in results(graph)]
    for n, node in found.items():
        real = torch.ops.aten.view_as_real.default
        ends[n] = None if n in views else _call(made, real, copies[node], torch.view_as_real(node.meta["val"]))
    made.output(tuple(ends))
    return RealGraph(made, frozenset(inputs.values()), frozenset(found) - set(views), views)


def _input_views(node: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> Iterator[InputView]:
    """Yield a result as a view of the input that it shares memory with."""
    value = node.meta["val"]
    for place, number in inputs.items():
        base = place.meta["val"]
        if base.untyped_storage()._cdata == value.untyped_storage()._cdata:
            yield InputView(number, tuple(value.shape), value.stride(), value.storage_offset() - base.storage_offset())
            return


def _call(graph: torch.fx.Graph, target: Any, operand: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
    node = graph.call_function(target, (operand,))
    node.meta["val"] = value
    return node


def _is_complex(node: Any) -> bool:
    value = tensor_of(node) if isinstance(node, torch.fx.Node) else None
    return value is not None and value.dtype.is_complex


def _pairs(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj())
