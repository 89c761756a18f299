"""Type inference of graph nodes from the declarations, and the instances behind it, each made once.

Graphs repeat themselves: the fifty convolutions of a network are a dozen different ones. Instances are therefore kept
per operation, operand types and attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ...ir import Graph, GraphError, Infer, Node, TensorType, attributes_key
from .instantiate import Instance
from .registry import Registry

_LIMIT = 1 << 14


class Instances:
    """The instances of a vocabulary that have been asked for."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._known: dict[object, Instance] = {}

    def of(self, node: Node, operands: Sequence[TensorType | None]) -> Instance:
        """Return what a node means for operands of these types."""
        key = (
            node.op,
            node.declaration,
            tuple(operands),
            attributes_key(node.attributes),
        )
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            found = self._known[key] = self.registry.of(node).instantiate(operands, node.attributes)
        return found

    def of_node(self, node: Node, graph: Graph) -> Instance:
        """Return what a node of a graph means."""
        return self.of(node, [None if v is None else graph.types[v] for v in node.inputs])

    @cached_property
    def conversion(self) -> tuple[str, str]:
        """The operation that converts its one operand to an element type, and the attribute that names the type.

        Raises `GraphError` where the vocabulary has none.
        """
        for name in self.registry:
            match list(self.registry[name].attributes.items()):
                case [(attribute, item)] if item.type.kind == "dtype" and len(self.registry[name].operands) == 1:
                    return name, attribute
        raise GraphError("the vocabulary has no operation that converts to another element type")

    def infer(self, node: Node, operands: Sequence[TensorType | None]) -> Sequence[TensorType]:
        """Return the types of a node's outputs."""
        return self.of(node, operands).output_types


def instances_of(registry: Registry) -> Instances:
    """Return the one collection of instances of a vocabulary."""
    return registry.__dict__.setdefault("instances", Instances(registry))  # type: ignore[no-any-return]


def builtin_instances() -> Instances:
    """Return the one collection of instances of the built-in vocabulary."""
    return instances_of(Registry.builtin())


def default_inference() -> Infer:
    """Return the inference by the built-in vocabulary."""
    return builtin_instances().infer
