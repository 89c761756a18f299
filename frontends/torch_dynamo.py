"""A backend for `torch.compile`: graphs that Dynamo captures become ours; one that we cannot read runs in PyTorch, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from ..ir.errors import CutsError
from ..ir.graph import Graph
from .torch import decompositions, graph_of_nodes

#: Compiles a graph for the device that tensors live on ("cpu" or "cuda") into a function of arrays by name.
CompileGraph = Callable[[Graph, str], Callable[[Mapping[str, Any]], Mapping[str, Any]]]


class UncompiledWarning(UserWarning):
    """A captured graph could not be read and runs in PyTorch."""


def dynamo_backend(module: Any, examples: Sequence[Any], compile_graph: CompileGraph) -> Any:
    """Compile a captured module: the entry that `torch.compile` calls. Gradients, where wanted, are PyTorch's graphs, compiled alike."""

    def compile_part(part: Any, inputs: Sequence[Any]) -> Any:
        try:
            return _compiled(part, inputs, compile_graph)
        except CutsError as error:
            warnings.warn(f"a graph of {len(part.graph.nodes)} nodes runs in PyTorch: {error}", UncompiledWarning, stacklevel=2)
            return part.forward

    return aot_autograd(fw_compiler=compile_part, decompositions=decompositions())(module, examples)


def _compiled(part: Any, inputs: Sequence[Any], compile_graph: CompileGraph) -> Callable[..., list[Any]]:
    graph, results = graph_of_nodes(part.graph)
    device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), torch.device("cpu"))
    run = compile_graph(graph, device.type)

    def call(*arguments: Any) -> list[Any]:
        arrays = {name: _array(value) for name, value in zip(graph.inputs, arguments, strict=True)}
        found = run(arrays)
        return [None if name is None else torch.as_tensor(found[name], device=device) for name in results]

    return call


def _array(value: Any) -> Any:
    """Return a tensor as an array of its device, without a copy where it is contiguous."""
    tensor = value.detach().contiguous()
    return tensor if tensor.is_cuda else tensor.numpy()
