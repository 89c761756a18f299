"""Parameters and buffers among the inputs of a captured graph.

Dynamo passes them like any input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch._dynamo.source import AttrSource
from torch._functorch._aot_autograd.schemas import MutationType, OutputType
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..calls import updated_inputs

#: Metadata, besides that of inputs and outputs, that shows that a graph needs autograd's wrapper.
_WRAPPER_FIELDS = ("num_intermediate_bases", "tokens", "is_rng_op_functionalized", "grad_enabled_mutation",
         "num_graphsafe_rng_states", "mutated_inp_stream_indices")  # fmt: skip
#: Tensor classes without wrappers.
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
#: Entry of the metadata of an output node: the graph was traced call by call, and needs no wrapper.
TRACED_BY_CALL = "cuts_traced_by_call"


#: Key by which Dynamo marks inputs that keep their address.
_STATIC = "_dynamo_static_input_type"
#: Input names in autograd's graphs: numbered from 1 where there is a backward graph, else from 0.
_FROM_ONE, _FROM_ZERO = re.compile(r"primals_(\d+)"), re.compile(r"arg(\d+)_1")


def parameter_inputs(module: Any, examples: Sequence[Any]) -> frozenset[int]:
    """Return the numbers of a module's parameters and buffers."""
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    if len(places) != len(examples):
        return frozenset()
    return frozenset(
        n for n, (node, value) in enumerate(zip(places, examples, strict=True)) if _is_parameter(node, value)
    )


def lift_attributes(module: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return a captured module with its tensors as first inputs.

    They are returned beside it. Dynamo so captures an optimiser's parameters and state.
    """
    parts = dict(module.named_parameters(remove_duplicate=False)), dict(module.named_buffers(remove_duplicate=False))
    own: dict[str, torch.Tensor] = {**parts[0], **parts[1]}
    held = [node for node in module.graph.find_nodes(op="get_attr") if node.target in own]
    if not held:
        return module, []
    graph, copies, places = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node](), dict[str, torch.fx.Node]()
    for node in held:
        if node.target not in places:
            places[node.target] = place = graph.placeholder(node.name)
            place.meta = {**node.meta, "tensor_dict": {_STATIC: "attribute"}}
            place._dynamo_source = module._param_name_to_source[node.target]
        copies[node] = places[node.target]
    for node in (n for n in module.graph.nodes if n not in copies):
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "placeholder":
            copies[node]._dynamo_source = node._dynamo_source
    made: Any = torch.fx.GraphModule(module, graph)
    made.meta, made._param_name_to_source = module.meta, {}
    return made, [own[name] for name in places]


def unwrap_subclasses(module: Any, examples: Sequence[Any]) -> tuple[Any, list[Any], bool]:
    """Return a captured module of plain tensors, its examples, whether these differ.

    A wrapper of several tensors, as torchao's quantised weights, becomes inputs and a call that makes the wrapper:

        linear(x, w)   ->   w = rebuild(w_numbers, w_scale);  linear(x, w)

    Wrappers that want gradients are left to autograd.
    """
    places = module.graph.find_nodes(op="placeholder")
    pairs: list[tuple[torch.fx.Node, Any]] = list(zip(places, examples, strict=True))
    wrapped: dict[torch.fx.Node, Any] = {n: v for n, v in pairs if is_traceable_wrapper_subclass(v)}
    trained = torch.is_grad_enabled() and any(value.requires_grad for value in wrapped.values())
    if not wrapped or trained:
        return module, list(examples), False
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in places:
        if node in wrapped:
            marks = {_STATIC: "attribute"} if _is_parameter(node, wrapped[node]) else {}
            copies[node] = _add_parts(graph, node.name, wrapped[node], node._dynamo_source, {"tensor_dict": marks})
        else:
            copies[node] = graph.node_copy(node)
            copies[node]._dynamo_source = node._dynamo_source
    for node in (n for n in module.graph.nodes if n.op != "placeholder"):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    made: Any = torch.fx.GraphModule(module, _inputs_first(graph))
    made.meta, made._param_name_to_source = module.meta, getattr(module, "_param_name_to_source", {})
    return made, unwrapped_tensors(examples), True


def unwrapped_tensors(given: Sequence[Any]) -> list[Any]:
    """Return values, wrappers as the tensors that they have."""
    found = list[Any]()
    for value in given:
        if is_traceable_wrapper_subclass(value):
            found += unwrapped_tensors([getattr(value, name) for name in value.__tensor_flatten__()[0]])
        else:
            found.append(value)
    return found


def _add_parts(graph: torch.fx.Graph, name: str, value: Any, source: Any, meta: Mapping[str, Any]) -> torch.fx.Node:
    """Add the tensors of a wrapper as inputs, and the call that makes it."""
    names, context = value.__tensor_flatten__()
    parts = []
    for each in names:
        part, inner, at = getattr(value, each), f"{name}_{each}", AttrSource(source, each)
        if is_traceable_wrapper_subclass(part):
            parts.append(_add_parts(graph, inner, part, at, meta))
            continue
        parts.append(graph.placeholder(inner))
        parts[-1].meta, parts[-1]._dynamo_source = dict(meta), at
    kind, shape, stride = type(value), value.shape, value.stride()

    def rebuild(*tensors: Any) -> Any:
        return kind.__tensor_unflatten__(dict(zip(names, tensors, strict=True)), context, shape, stride)

    return graph.call_function(rebuild, tuple(parts))


def _inputs_first(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a graph with inputs before calls."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in graph.find_nodes(op="placeholder"):
        first.prepend(node)
    return graph


def do_overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors may share memory; tracing ignores that of attributes."""
    spans = sorted((t.data_ptr(), t.data_ptr() + _span(t)) for t in tensors if t.layout is torch.strided and t.numel())
    return any(end > start for (_, end), (start, _) in pairwise(spans))


def _span(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to its last."""
    last = sum(stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True))
    return (last + 1) * tensor.element_size()


def _is_parameter(node: torch.fx.Node, value: Any) -> bool:
    marked = (node.meta.get("tensor_dict") or {}).get(_STATIC)
    return isinstance(value, torch.nn.Parameter) or (isinstance(value, torch.Tensor) and marked is not None)


def module_numbers(graph: torch.fx.Graph) -> dict[int, int]:
    """Return the captured module's input number of each graph input.

    The graph is one of autograd's; a backward graph has those that it reads.
    """
    places = [node for node in graph.nodes if node.op == "placeholder"]
    found = ((place, _number(node.name)) for place, node in enumerate(places))
    return {place: number for place, number in found if number is not None}


def _number(name: str) -> int | None:
    if match := _FROM_ONE.fullmatch(name):
        return int(match[1]) - 1
    match = _FROM_ZERO.fullmatch(name)
    return int(match[1]) if match else None


def has_backward(graph: torch.fx.Graph) -> bool:
    """Return whether a graph is the forward or backward one of two."""
    return any(node.op == "placeholder" and _FROM_ONE.fullmatch(node.name) for node in graph.nodes)


def frozen_inputs(graph: torch.fx.Graph, held: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the inputs of a graph that can become constants.

    These are parameters and buffers, by number, that the graph does not write to. There are none where there is a
    backward graph: it may get tensors that were saved for it.
    """
    places = [node for node in graph.nodes if node.op == "placeholder"]
    if has_backward(graph):
        return {}
    written = updated_inputs(graph) if _is_traced_by_call(graph) else _written_inputs()
    numbers = module_numbers(graph).items()
    found = {place: held[number] for place, number in numbers if number in held and number not in written}
    return {place: tensor for place, tensor in found.items() if _is_like(places[place].meta.get("val"), tensor)}


def _is_like(example: Any, tensor: torch.Tensor) -> bool:
    known = isinstance(example, torch.Tensor)
    return known and example.shape == tensor.shape and example.dtype is tensor.dtype


def _is_traced_by_call(graph: torch.fx.Graph) -> bool:
    return any(TRACED_BY_CALL in node.meta for node in graph.find_nodes(op="output"))


def _written_inputs() -> frozenset[int]:
    """Return the numbers of the inputs to which the graph that is being compiled writes."""
    context = torch._guards.TracingContext.try_get()
    facts = getattr(context, "fw_metadata", None)
    inputs = enumerate(getattr(facts, "input_info", ()))
    return frozenset(number for number, about in inputs if about.mutates_data or about.mutates_metadata)


def is_direct(graph: torch.fx.Graph, kinds: Sequence[type]) -> bool:
    """Return whether a graph can run without autograd's wrapper.

    The graph is the one that is being compiled, for arguments of these types. The wrapper gives views their bases,
    writes changes back to inputs that need gradients, and takes as long as launching a plan.
    """
    facts = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    places = [node for node in graph.nodes if node.op == "placeholder"]
    if len(places) == len(kinds) and _is_traced_by_call(graph):
        return all(kind in PLAIN_TENSORS for kind in kinds)
    if facts is None or len(places) != len(kinds) or has_backward(graph):
        return False
    written = any(about.mutation_type is MutationType.MUTATED_OUT_GRAPH for about in facts.input_info)
    new = all(about.output_type is OutputType.non_alias for about in facts.output_info)
    plain = not any(issubclass(kind, torch.Tensor) and kind not in PLAIN_TENSORS for kind in kinds)
    return new and plain and not written and not any(getattr(facts, name, None) for name in _WRAPPER_FIELDS)
