"""Exported programs as graphs of their inputs and state, and their ends.

Parameters and buffers that the program does not write become attributes of the graph's module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch.utils._pytree import tree_map_only

from ....ir import GraphError, fresh_name
from ..dispatch import attribute_of, results
from ..loading import CoreProgram

#: Kinds of ends: an argument or result of the caller, of state, and a result that is no tensor.
CALLER, STATE, NUMBER = "caller", "state", "number"
_MUTATIONS = ("BUFFER_MUTATION", "PARAMETER_MUTATION")


@frozen
class ProgramEnd:
    """Kind and name of an argument or result, of state the buffer's."""

    kind: str
    name: str


@frozen
class ProgramEnds:
    """Arguments and results of a program, in order."""

    arguments: tuple[ProgramEnd, ...]
    results: tuple[ProgramEnd, ...]


def program_graph(core: CoreProgram, device: torch.device) -> tuple[torch.fx.GraphModule, ProgramEnds]:
    """Return a program as a module on a device, and its ends.

    Raises `GraphError` where an argument is no tensor.
    """
    held = {spec.arg.name: spec.target for spec in core.signature.input_specs if spec.kind.name != "USER_INPUT"}
    written = {spec.target for spec in core.signature.output_specs if spec.kind.name in _MUTATIONS}
    root, graph = torch.nn.Module(), torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    arguments: list[ProgramEnd] = []
    for node in core.graph.nodes:
        target = held.get(node.name) if node.op == "placeholder" else None
        if target is not None and target not in written:
            setattr(root, f"constant_{len(copies)}", _tensor_on(core.held[target], device))
            copies[node] = graph.create_node("get_attr", f"constant_{len(copies)}", name=node.name)
        elif node.op == "get_attr":
            setattr(root, str(node.target), attribute_of(core.graph, str(node.target)))
            copies[node] = graph.node_copy(node, copies.__getitem__)
        elif node.op == "placeholder" and not isinstance(node.meta.get("val"), torch.Tensor) and not node.users:
            continue  # the order of effects, or an argument that is None
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "placeholder":
                arguments.append(ProgramEnd(STATE, target) if target is not None else _argument(node))
        copies[node].meta = {**node.meta, "val": _on_device(node.meta.get("val"), device)}
        if "device" in node.kwargs:
            copies[node].kwargs = {**copies[node].kwargs, "device": device}
    module = torch.fx.GraphModule(root, graph)
    ends = tuple(_results(core.signature.output_specs, results(module.graph), core.names))
    return module, ProgramEnds(tuple(arguments), ends)


def initial_state(core: CoreProgram, ends: ProgramEnds) -> Mapping[str, torch.Tensor]:
    """Return the initial values of the buffers that a program writes."""
    return {end.name: core.held[end.name].detach().clone() for end in ends.arguments if end.kind == STATE}


def _argument(node: torch.fx.Node) -> ProgramEnd:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"input '{node.name}': expected a tensor, found {type(value).__name__}")
    return ProgramEnd(CALLER, node.name)


def _results(specs: Sequence[Any], found: Sequence[Any], names: Sequence[str]) -> Iterator[ProgramEnd]:
    """Yield the ends of results, named as those of a whole plan are."""
    used, given = set[str](), iter(names)
    for place, (spec, node) in enumerate(zip(specs, found, strict=True)):
        kind, target = spec.kind.name, getattr(spec, "target", None)
        if kind in _MUTATIONS:
            yield ProgramEnd(STATE, str(target))
            continue
        tensor = isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
        if kind == "USER_INPUT_MUTATION" or kind.startswith("GRADIENT_TO"):
            name = f"{target}.updated" if kind == "USER_INPUT_MUTATION" else f"{target}.gradient"
        else:
            name = (kind != "TOKEN" and next(given)) or (
                node.name if isinstance(node, torch.fx.Node) else f"output_{place}"
            )
        used.add(name := fresh_name(used, name))
        yield ProgramEnd(CALLER if tensor else NUMBER, name)


def _on_device(value: Any, device: torch.device) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value)


def _tensor_on(value: Any, device: torch.device) -> Any:
    return value.detach().to(device) if isinstance(value, torch.Tensor) else value
