"""Search for all nodes of a graph that cannot be imported.

The importer continues after a failure: results of the failed call become inputs. A value crosses between compiled and
foreign nodes where it is a tensor of a supported type, of static shape, on the graph's device.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping

import torch
from attrs import define, field, frozen

from ....ir import CutsError, GraphError
from ....ops.language import Registry
from ..calls import tensor_of
from ..devices import is_number
from ..dispatch import convert_node, live_nodes
from ..import_context import DTYPES, ImportContext
from ..loading import define_placeholders


@frozen(eq=False)
class UnreadableNodes:
    """Live calls of a graph that stay in PyTorch.

    `failures` has an error for each call that cannot be imported; `foreign` has these and their readers that would need
    values which cannot cross. `constants` depend on no input: every stage computes those that it reads.
    """

    live: tuple[torch.fx.Node, ...]
    failures: Mapping[torch.fx.Node, CutsError]
    foreign: frozenset[torch.fx.Node]
    constants: frozenset[torch.fx.Node]


def find_unreadable(
    graph: torch.fx.Graph, device: torch.device, constants: Mapping[int, torch.Tensor] | None = None
) -> UnreadableNodes:
    """Return the nodes of a graph that cannot be imported.

    `constants` are inputs, by number, that become constants.
    """
    probe = _Probe(device, ImportContext(Registry.builtin().instances.infer))
    places = [node for node in graph.nodes if node.op == "placeholder"]
    held = constants or {}
    for number, node in enumerate(places):
        try:
            define_placeholders([node], probe.ctx, {0: held[number]} if number in held else {}, True)
        except CutsError:
            probe.ctx.unknown.add(node)
    live = tuple(node for node in live_nodes(graph) if node.op in ("call_function", "get_attr"))
    for node in live:
        probe.read(node)
    return UnreadableNodes(
        live, probe.failures, frozenset(probe.foreign), frozenset(_constant_nodes(live, probe.foreign))
    )


def can_cross(node: torch.fx.Node, device: torch.device) -> bool:
    """Return whether a node's value may pass between compiled and foreign nodes."""
    value = tensor_of(node)
    if value is None or value.layout is not torch.strided or value.is_neg() or value.dtype not in DTYPES:
        return False
    return value.device == device


def can_enter(node: torch.fx.Node, device: torch.device) -> bool:
    """Return whether compiled nodes may read a foreign value or number."""
    value = tensor_of(node)
    number = value is not None and is_number(value) and value.dtype in DTYPES
    return number or can_cross(node, device)


@define
class _Probe:
    """Import that continues after failures."""

    device: torch.device
    ctx: ImportContext
    failures: dict[torch.fx.Node, CutsError] = field(factory=dict)
    foreign: set[torch.fx.Node] = field(factory=set)

    def read(self, node: torch.fx.Node) -> None:
        """Import a node, or define its results as inputs."""
        if node.target is operator.getitem and node.args[0] in self.foreign:
            self._resume(node)
            return
        if any(read in self.ctx.unknown for read in node.all_input_nodes):
            self._resume(node)
            return
        try:
            self._check_device(node)
            convert_node(node, self.ctx)
        except CutsError as error:
            self.failures[node] = error
            self._resume(node)

    def _check_device(self, node: torch.fx.Node) -> None:
        """Raise where a call reads or makes tensors of another device, numbers excepted."""
        for each in (node, *node.all_input_nodes):
            value = each.meta.get("val")
            if isinstance(value, torch.Tensor) and value.device != self.device and not is_number(value):
                raise GraphError(
                    f"node '{node.name}' ({node.target}): its tensors lie on {self.device} and {value.device}"
                )

    def _resume(self, node: torch.fx.Node) -> None:
        """Continue after a foreign node."""
        self.foreign.add(node)
        if can_enter(node, self.device):
            self.ctx.define_input(node)
        else:
            self.ctx.unknown.add(node)


def _constant_nodes(live: Collection[torch.fx.Node], foreign: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the imported nodes that depend on no input, and draw no random numbers."""
    found: set[torch.fx.Node] = set()
    for node in live:
        seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        effects = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        fixed = node not in foreign and not seeded and not effects
        if fixed and all(read in found for read in node.all_input_nodes):
            found.add(node)
    return found
