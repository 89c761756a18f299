"""Stages of a captured graph as graphs of their own.

y = relu(x @ w); z = det(y); return y + z     ->     0, compiled:  x, w -> y
                                                     1, foreign:   y -> z
                                                     2, compiled:  y, z -> y + z
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import frozen

from ...partition import PartitionedOperation, partition
from ..calls import tensor_of
from ..dispatch import results
from ..import_context import memory_order
from .unreadable import UnreadableNodes, can_cross, can_enter

#: Elements up to which a call's tensors are no work.
MAX_IDLE_ELEMENTS = 64


@frozen(eq=False)
class Subgraph:
    """Graph of a stage, and its ends in the whole graph."""

    graph: torch.fx.Graph
    compiled: bool
    inputs: tuple[torch.fx.Node, ...]
    outputs: tuple[torch.fx.Node, ...]
    calls: int


#: Number of a stage, and its half: compiled calls before foreign ones.
_Place = tuple[int, bool]


def subgraphs(graph: torch.fx.Graph, unreadable: UnreadableNodes, device: torch.device) -> tuple[Subgraph, ...]:
    """Return the stages of a graph in the order of their execution."""
    calls = [node for node in unreadable.live if node not in unreadable.constants and node.op == "call_function"]
    returned = {node for node in results(graph) if isinstance(node, torch.fx.Node)}
    foreign = set(unreadable.foreign)
    while True:
        places = _places(calls, foreign, returned)
        stuck = set(_stuck_nodes(places, returned, device))
        if not stuck:
            break
        foreign |= stuck
    late = max(places.values(), default=(0, False))
    places |= {node: late for node in unreadable.constants if node in returned}
    groups = _Groups(graph, places, unreadable, device, returned)
    return tuple(groups.subgraph(place) for place in sorted(set(places.values())))


def owner(node: torch.fx.Node) -> torch.fx.Node:
    """Return the call that a node is a result of."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node


def _places(
    calls: Sequence[torch.fx.Node], foreign: set[torch.fx.Node], returned: set[torch.fx.Node]
) -> dict[torch.fx.Node, _Place]:
    """Return the stage of each call, and whether it is foreign."""
    owners = [node for node in calls if owner(node) is node]
    numbers = {node: number for number, node in enumerate(owners)}
    ours = {owner(node) for node in foreign}
    given = {owner(node) for node in returned}
    operations: list[PartitionedOperation] = []
    last: tuple[int, ...] = ()
    for number, node in enumerate(owners):
        reads = dict.fromkeys(numbers[o] for o in map(owner, node.all_input_nodes) if o in numbers)
        ordered = node in ours and _is_ordered(node)
        operations.append(
            PartitionedOperation(
                tuple(reads), node in ours, _work(node), _nbytes(node), node in given, last if ordered else ()
            )
        )
        last = (number,) if ordered else last
    places: dict[torch.fx.Node, _Place] = {}
    for level, stage in enumerate(partition(operations)):
        places |= {owners[n]: (level, False) for n in stage.part}
        places |= {owners[n]: (level, True) for n in stage.foreign}
    return places | {node: places[owner(node)] for node in calls if owner(node) in places}


def _stuck_nodes(
    places: Mapping[torch.fx.Node, _Place], returned: set[torch.fx.Node], device: torch.device
) -> Iterable[torch.fx.Node]:
    """Yield compiled nodes whose result, or operand, cannot cross."""
    for node, place in places.items():
        others = [user for user in node.users if user in places and places[user] != place]
        if not place[1] and (others or node in returned) and not can_cross(node, device):
            yield node
        if not can_enter(node, device):
            yield from (user for user in others if not places[user][1])


def _is_ordered(node: torch.fx.Node) -> bool:
    """Return whether a call draws random numbers or has effects."""
    target = node.target
    seeded = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return seeded or (isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable)


def _work(node: torch.fx.Node) -> int:
    """Return the work of a call: none for views and small tensors, less for one over elements than for a sum."""
    tensors = [tensor for each in (node, *node.all_input_nodes) for tensor in _tensors(each)]
    if tensors and all(tensor.numel() < MAX_IDLE_ELEMENTS for tensor in tensors):
        return 0
    if is_alias(node):
        return 0
    return 1 if torch.Tag.pointwise in getattr(node.target, "tags", ()) else 2


def is_alias(node: torch.fx.Node) -> bool:
    """Return whether a call computes a view of its operand."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return any(result.alias_info is not None for result in target._schema.returns)


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    found = value if isinstance(value, (list, tuple)) else (value,)
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor) and _is_static(tensor)]


def _is_static(tensor: torch.Tensor) -> bool:
    return all(isinstance(extent, int) for extent in tensor.shape)


def _nbytes(node: torch.fx.Node) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(node))


class _Groups:
    """Nodes of each stage's graph: its own calls, and copies of constants and views that it reads."""

    def __init__(
        self, graph: torch.fx.Graph, places: Mapping[torch.fx.Node, _Place], unreadable: UnreadableNodes,
        device: torch.device, returned: set[torch.fx.Node],
    ) -> None:  # fmt: skip
        self.graph, self.places, self.unreadable, self.device = graph, places, unreadable, device
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        self.members = {place: self._members(place) for place in set(places.values())}
        self.inputs = {place: self._inputs(members) for place, members in self.members.items()}
        self.needed = returned.union(*self.inputs.values())

    def subgraph(self, place: _Place) -> Subgraph:
        """Return the graph of a stage."""
        members, inputs = self._in_order(self.members[place]), self._in_order(self.inputs[place])
        outputs = tuple(node for node in members if self.places.get(node) == place and node in self.needed)
        made = torch.fx.Graph(owning_module=self.graph.owning_module)
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in inputs:
            copies[node] = made.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in members:
            copies[node] = made.node_copy(node, copies.__getitem__)
        made.output(tuple(copies[node] for node in outputs))
        own = (node for node in members if self.places.get(node) == place and node.op == "call_function")
        calls = sum(owner(node) is node for node in own)
        return Subgraph(made, not place[1], tuple(inputs), outputs, calls)

    def _in_order(self, nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
        return sorted(nodes, key=self.order.__getitem__)

    def _members(self, place: _Place) -> set[torch.fx.Node]:
        found = {node for node, its in self.places.items() if its == place}
        waiting = list(found)
        while waiting:
            for read in waiting.pop().all_input_nodes:
                if read not in found and self._is_copied(read, place):
                    found.add(read)
                    waiting.append(read)
        return found

    def _inputs(self, members: set[torch.fx.Node]) -> set[torch.fx.Node]:
        return {read for node in members for read in node.all_input_nodes} - members

    def _is_copied(self, node: torch.fx.Node, place: _Place) -> bool:
        """Return whether a stage computes a value of another stage again.

        It does so for constants, and where compiled calls would read a view that is not dense.
        """
        if node in self.unreadable.constants or node.op == "get_attr":
            return True
        if place[1] or node in self.unreadable.foreign or not is_alias(node) or node not in self.places:
            return False
        value = tensor_of(node)
        dense = value is not None and value.permute(memory_order(value)).is_contiguous()
        return not dense and all(
            can_cross(read, self.device) or read in self.unreadable.constants for read in node.all_input_nodes
        )
