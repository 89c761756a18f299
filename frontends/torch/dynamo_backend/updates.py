"""Updates of a captured graph's inputs, as results.

    cache = index_copy(arg0, ...)                     cache = index_copy(arg0, ...)
    copy_(arg0, cache)                           ->
    return y                                          return y, cache

AOT autograd puts the writes to inputs (caches, counters) at the end of a graph for inference. The compiled graph is
functional: the new elements are results after all others. A plan writes them where the inputs lie, where that is safe
(`passes/partitioning/update_inputs.py`); one grouped copy for each element type writes the others at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func

from ..calls import UPDATED_INPUTS, updated_inputs
from ..results import is_view_of_input

#: Compiles a graph for example inputs to a function of a list of arguments.
CompilePart: TypeAlias = Callable[[Any, Sequence[Any]], Any]


def with_updates(compile_part: CompilePart) -> CompilePart:
    """Return the compilation of a graph whose updates are results.

    The function writes them to its arguments.
    """

    def compile_functional(module: Any, inputs: Sequence[Any]) -> Any:
        functional = _functional_module(module)
        if functional is None:
            return compile_part(module, inputs)
        function = compile_part(functional, inputs)
        return make_boxed_func(updating(lambda *given: function(list(given)), updated_inputs(functional.graph)))

    return compile_functional


def updating(function: Callable[..., Sequence[Any]], numbers: Sequence[int]) -> Callable[..., list[Any]]:
    """Return a function that copies its last results to arguments.

    `numbers` has the argument of each, which may be the result itself; the other results are returned.
    """
    if not numbers:
        return function  # type: ignore[return-value]

    def call(*arguments: Any) -> list[Any]:
        found = list(function(*arguments))
        new, kept = found[-len(numbers) :], found[: -len(numbers)]
        with torch.no_grad():
            copied = [(n, value) for n, value in zip(numbers, new, strict=True) if value is not arguments[n]]
            for _, run in groupby(copied, key=lambda pair: pair[1].dtype):
                targets, values = zip(*((arguments[n], value) for n, value in run), strict=True)
                torch._foreach_copy_(targets, values)
        return kept

    return call


def _functional_module(module: Any) -> torch.fx.GraphModule | None:
    """Return a module with the updates of its inputs as results; None where it has none."""
    places = {node: number for number, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}
    written = [node for node in module.graph.nodes if _is_update(node) and node.args[0] in places]
    if not written:
        return None
    made, copies, new = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node](), dict[int, torch.fx.Node]()
    for node in module.graph.nodes:
        if node in written:
            number = places[node.args[0]]
            copies[node] = new[number] = copies[node.args[1]]
        elif node.op == "output":
            results = [copies.get(value, value) for value in node.args[0]]
            new = dict(sorted(new.items(), key=lambda item: str(item[1].meta["val"].dtype)))
            output = made.output((*results, *(_copy_of_view(made, value) for value in new.values())))
            output.meta = {**node.meta, UPDATED_INPUTS: tuple(new)}
        else:
            copies[node] = made.node_copy(node, copies.__getitem__)
    return torch.fx.GraphModule(module, made)


def _is_update(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target is torch.ops.aten.copy_.default


def _copy_of_view(graph: torch.fx.Graph, value: torch.fx.Node) -> torch.fx.Node:
    """Return a value, or a copy where another update may overwrite it."""
    if not is_view_of_input(value):
        return value
    copy = graph.call_function(torch.ops.aten.clone.default, (value,))
    copy.meta["val"] = value.meta["val"].clone()
    return copy
