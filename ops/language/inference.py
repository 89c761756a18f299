"""Type inference of graph nodes from the declarations, with cached instances.

Graphs repeat themselves: the fifty convolutions of a network are a dozen different ones. Instances are therefore cached
per operation, operand types and attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

from ...ir import Graph, GraphError, Node, TensorType, attributes_key
from .instantiate import Instance, OpDecl

_LIMIT = 1 << 14


class Vocabulary(Protocol):
    """Declarations by name, and the one that a node means (`Registry`)."""

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str) -> OpDecl: ...

    def of(self, node: Node) -> OpDecl: ...


class Instances:
    """Cached instances of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._known: dict[object, Instance] = {}

    def of(self, node: Node, operands: Sequence[TensorType | None]) -> Instance:
        """Return the instance of a node for operands of these types."""
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
            found = self._known[key] = self.vocabulary.of(node).instantiate(operands, node.attributes)
        return found

    def of_node(self, node: Node, graph: Graph) -> Instance:
        """Return the instance of a node in a graph."""
        return self.of(node, [None if v is None else graph.types[v] for v in node.inputs])

    @cached_property
    def conversion(self) -> tuple[str, str]:
        """Cast operation, and its attribute that names the element type.

        Raises `GraphError` where the vocabulary has none.
        """
        for name in self.vocabulary:
            match list(self.vocabulary[name].attributes.items()):
                case [(attribute, item)] if item.type.kind == "dtype" and len(self.vocabulary[name].operands) == 1:
                    return name, attribute
        raise GraphError("the vocabulary has no operation that converts to another element type")

    def infer(self, node: Node, operands: Sequence[TensorType | None]) -> Sequence[TensorType]:
        """Return the types of a node's outputs."""
        return self.of(node, operands).output_types
