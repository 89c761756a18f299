"""Calls in PyTorch's graphs: nodes among arguments, writes, liveness."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

#: Entry of the metadata of a graph's output node: the numbers of the inputs that its last results update.
UPDATED_INPUTS = "cuts_updated_inputs"
#: Entry of the metadata of a call that computes a size, which shapes may need without it.
COMPUTES_SIZE = "cuts_computes_size"


def map_nodes(argument: Any, known: Mapping[torch.fx.Node, Any]) -> Any:
    """Return arguments with nodes replaced by other values."""
    if isinstance(argument, torch.fx.Node):
        return known[argument]
    if isinstance(argument, (list, tuple)):
        return tuple(map_nodes(a, known) for a in argument)
    if isinstance(argument, dict):
        return {name: map_nodes(a, known) for name, a in argument.items()}
    return argument


def nodes_in(argument: Any) -> Iterator[torch.fx.Node]:
    """Yield the nodes among arguments, as often as they occur."""
    if isinstance(argument, torch.fx.Node):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for part in argument:
            yield from nodes_in(part)
    elif isinstance(argument, dict):
        yield from nodes_in(list(argument.values()))


def inline_regions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Inline the regions of `nested_compile_region` in a captured module.

    Dynamo traces equal regions once. A region with tensors of its own stays a call.
    """
    region = torch.ops.higher_order.invoke_subgraph
    calls = module.graph.find_nodes(op="call_function", target=region)
    bodies = {call: inline_regions(getattr(module, call.args[0].target)) for call in calls}
    if not calls or any(body.graph.find_nodes(op="get_attr") for body in bodies.values()):
        return module
    graph, known, names = torch.fx.Graph(), dict[torch.fx.Node, Any](), {call.args[0] for call in calls}
    for node in (node for node in module.graph.nodes if node not in names):
        if node in bodies:
            body = bodies[node].graph
            given = zip(body.find_nodes(op="placeholder"), node.args[2:], strict=True)
            known[node] = graph.graph_copy(body, {place: map_nodes(value, known) for place, value in given})
        elif node.target is operator.getitem and node.args[0] in bodies:
            known[node] = known[node.args[0]][node.args[1]]
        else:
            known[node] = graph.node_copy(node, known.__getitem__)
    inlined = torch.fx.GraphModule(module, graph)
    if "_backend_id" in module.__dict__:  # by which PyTorch saves precompiled modules
        inlined.__dict__["_backend_id"] = module.__dict__["_backend_id"]
    return inlined


def tensor_of(node: torch.fx.Node) -> torch.Tensor | None:
    """Return the example of a node, None without a static tensor."""
    value = node.meta.get("val")
    known = isinstance(value, torch.Tensor) and all(isinstance(extent, int) for extent in value.shape)
    return value if known else None


def key_of(argument: Any, places: Mapping[torch.fx.Node, int]) -> Hashable:
    """Return the key of arguments that determines a call's decomposition.

    `places` numbers their nodes.
    """
    if isinstance(argument, torch.fx.Node):
        value = argument.meta["val"]
        strides = None if value.is_contiguous() else value.stride()
        return (places[argument], value.dtype, value.device, value.shape, strides, value.is_conj(), value.is_neg())
    if isinstance(argument, (list, tuple)):
        return tuple(key_of(a, places) for a in argument)
    if isinstance(argument, dict):
        return tuple((name, key_of(a, places)) for name, a in argument.items())
    return (type(argument), repr(argument))  # 0.0 and -0.0 are equal, and are not the same


def example_of(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor for tracing a call.

    An axis of one element may have any stride, and PyTorch decomposes a product differently where it is an odd one.
    """
    if not value.is_contiguous() or value.is_conj() or value.is_neg():
        return value.detach()
    return torch.empty_like(value, memory_format=torch.contiguous_format, requires_grad=False)


def is_in_place(node: torch.fx.Node) -> bool:
    """Return whether a call changes one of its operands."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_view(target: torch._ops.OpOverload) -> bool:
    """Return whether results may lie in the memory of the first operand.

    A composite operation may do anything.
    """
    return target._can_decompose() or any(result.alias_info is not None for result in target._schema.returns)


def needed_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes that results depend on, and those that write.

    Assertions are not among them.
    """
    needed: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed or is_in_place(node):
            needed |= {node, *node.all_input_nodes}
    return needed


def last_reads(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
    """Return the position of the last reader of each node."""
    return {read: place for place, node in enumerate(graph.nodes) for read in node.all_input_nodes}


def functional_form(target: Any, arguments: Any) -> torch._ops.OpOverload | None:
    """Return the functional form of an in-place operation, else None.

    There is none where operands have several types: the result would have the wider one, and the written tensor keeps
    its own.
    """
    name = target.overloadpacket.__name__
    written = [argument for argument in target._schema.arguments if argument.alias_info is not None]
    types = {getattr(node.meta.get("val"), "dtype", None) for node in nodes_in(arguments)}
    if not name.endswith("_") or name.endswith("__") or len(written) != 1 or len(types) != 1:
        return None
    packet = getattr(getattr(torch.ops, target.namespace), name.removesuffix("_"), None)
    found = getattr(packet, target._overloadname, None)
    return None if found is None or found._schema.is_mutable else found


def constant_result(node: torch.fx.Node) -> torch.Tensor | None:
    """Return the tensor that a call without operands computes, else None.

    A window of a signal is one. It is the same in every run; calls that draw random numbers or have other results are
    excluded.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or node.all_input_nodes or target._schema.is_mutable:
        return None
    if torch.Tag.nondeterministic_seeded in target.tags:
        return None
    keywords = {**node.kwargs, "device": "cpu"} if "device" in node.kwargs else node.kwargs
    with unset_fake_temporarily(), torch.no_grad():
        found = target(*node.args, **keywords)
    return found if isinstance(found, torch.Tensor) else None


def updated_inputs(graph: torch.fx.Graph) -> tuple[int, ...]:
    """Return the numbers of the inputs that the last results update."""
    output = next(node for node in graph.nodes if node.op == "output")
    return tuple(output.meta.get(UPDATED_INPUTS, ()))
