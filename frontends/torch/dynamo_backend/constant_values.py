"""Constant folding of a joint graph's values that depend on no argument.

    a = arange(1024); m = index(a, ...) <= a; y = attention(..., m)     ->     y = attention(..., folded_value)

A mask that a model computes from positions would cross from the forward graph to the backward graph as a tensor like
any other. As a constant it is known to both: a causal mask becomes a condition on indices in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..dispatch import attribute_of

#: Most elements and bytes of a folded value.
MAX_ELEMENTS, MAX_BYTES = 1 << 24, 1 << 26


def fold_constant_values(joint: torch.fx.GraphModule) -> None:
    """Replace values of a joint graph by constants of its module.

    They are computed, but from no argument. Random values stay, and so do those that are only made (`full`, `arange`).
    Equal elements along a dim are expanded.
    """
    constant = set(_constant_nodes(joint.graph))
    folded = {node for node in constant if _is_folded(node)}
    wanted = [node for node in joint.graph.nodes if node in folded and not folded.issuperset(node.users)]
    values: dict[torch.fx.Node, Any] = {}
    with unset_fake_temporarily(), torch.no_grad():
        for number, node in enumerate(wanted):
            _replace(joint, node, f"folded_value_{number}", _distinct_elements(_value(node, values)))
    if wanted:
        joint.graph.eliminate_dead_code()
        joint.recompile()


def _constant_nodes(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Yield the calls without arguments of the graph among their sources."""
    known: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if _is_repeatable(node) and known.issuperset(node.all_input_nodes):
            known.add(node)
            yield node


def _is_repeatable(node: torch.fx.Node) -> bool:
    """Return whether a node has the same value at each evaluation."""
    if node.op == "get_attr":
        return isinstance(attribute_of(node.graph, str(node.target)), torch.Tensor)
    if node.op != "call_function" or node.is_impure():
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded not in node.target.tags
    return node.target is getitem


def _is_folded(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    computed = node.op == "call_function" and bool(node.all_input_nodes) and type(value) is not tuple
    if not computed or not isinstance(value, torch.Tensor) or value.numel() > MAX_ELEMENTS:
        return False
    return value.numel() * value.element_size() <= MAX_BYTES


def _value(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    """Return the value of a node, which is kept in `values`."""
    if node not in values:
        if node.op == "get_attr":
            values[node] = attribute_of(node.graph, str(node.target))
        else:
            arguments, options = torch.fx.map_arg((node.args, node.kwargs), lambda source: _value(source, values))
            call: Any = node.target
            values[node] = call(*arguments, **options)
    return values[node]


def _distinct_elements(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor with one element along each dim of equal elements."""
    for dim, extent in enumerate(value.shape):
        first = value.narrow(dim, 0, min(extent, 1))
        if extent > 1 and bool((value == first).all()):
            value = first
    return value.contiguous()


def _replace(joint: torch.fx.GraphModule, node: torch.fx.Node, name: str, value: torch.Tensor) -> None:
    """Replace a node by a constant, expanded to the node's shape."""
    shape = node.meta["val"].shape
    joint.register_buffer(name, value)
    with joint.graph.inserting_before(node):
        new = joint.graph.get_attr(name)
        with node.meta["val"].fake_mode:
            new.meta["val"] = node.meta["val"].new_empty(value.shape)
        if value.shape != shape:
            source, new = new, joint.graph.call_function(torch.ops.aten.expand.default, (new, list(shape)))
            new.meta["val"] = source.meta["val"].expand(shape)
    node.replace_all_uses_with(new)
    joint.graph.erase_node(node)
