"""Captured modules that PyTorch's caching precompilation saves beside Dynamo's guards and bytecode.

    first process    torch.compile traces and compiles a module; its graph is saved
    later process    PyTorch loads guards and bytecode; the first call compiles the graph, or finds its plan

Parameters, precision and cached plans are those of the later process: nothing of a plan is saved.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Collection, Sequence
from threading import Lock
from typing import Any

import torch
from attrs import frozen
from torch._dynamo import precompile_context
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.node import map_aggregate, map_arg

_LOG = logging.getLogger("cuts.frontends")
#: Base class of saved objects; the lowest version of PyTorch may have none.
_Artifact: Any = getattr(precompile_context, "BackendCacheArtifact", None)
#: Compiles a captured module for arguments.
CompileModule = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@frozen
class _Place:
    """Number of a node in its graph."""

    number: int


class SavedModule(_Artifact or object):  # type: ignore[misc]
    """Saved captured module.

    It has the graph, the numbers of parameters, and the function that compiles it.
    """

    def after_deserialization(self) -> Callable[..., Any]:
        """Return a function that compiles the module when it is called."""
        compile_module, held, records = pickle.loads(self.content)
        compiled: list[Callable[..., Any]] = []
        compiling = Lock()

        def call(*arguments: Any) -> Any:
            if not compiled:
                with compiling:
                    if not compiled:
                        mode = FakeTensorMode()
                        with tracing(TracingContext(mode)):
                            compiled.append(compile_module(_module_of(records, held), list(arguments)))
            return compiled[0](*arguments)

        return call


def save_precompiled(module: Any, held: Collection[int], compile_module: CompileModule) -> None:
    """Save a captured module where PyTorch precompiles.

    Nothing is saved of a module with nested graphs, constants or functions that no later process can find.
    """
    name = getattr(module, "_backend_id", None)
    if name is None or _Artifact is None:
        return
    try:
        content = pickle.dumps((compile_module, sorted(held), _records_of(module.graph)))
    except Exception as error:  # functions name their own errors
        _LOG.info("cuts: precompilation saves no module: %s: %s", type(error).__name__, error)
        return
    precompile_context.PrecompileContext.record_artifact(SavedModule(str(name), content))


def _records_of(graph: torch.fx.Graph) -> list[tuple[Any, ...]]:
    """Return a picklable form of a graph: operation, target and arguments of each node, which are named by number."""
    places = {node: _Place(number) for number, node in enumerate(graph.nodes)}
    if foreign := [node.name for node in graph.nodes if node.op in ("get_attr", "call_module")]:
        raise TypeError(f"{foreign[0]} is no call")
    place: Any = places.__getitem__
    return [(n.op, n.target, map_arg(n.args, place), map_arg(n.kwargs, place)) for n in graph.nodes]


def _module_of(records: Sequence[tuple[Any, ...]], held: Collection[int]) -> torch.fx.GraphModule:
    """Return the module of a picklable form; `held` are the numbers of its parameters."""
    graph, nodes = torch.fx.Graph(), list[torch.fx.Node]()
    replace = lambda value: nodes[value.number] if isinstance(value, _Place) else value  # noqa: E731
    for op, target, args, kwargs in records:
        nodes.append(graph.create_node(op, target, map_aggregate(args, replace), map_aggregate(kwargs, replace)))
    for number, node in enumerate(graph.find_nodes(op="placeholder")):
        if number in held:
            node.meta["tensor_dict"] = {"_dynamo_static_input_type": "guarded"}
    return torch.fx.GraphModule({}, graph)
