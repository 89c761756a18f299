"""Graph IR: typed SSA values and nodes named from the vocabulary.

The graph is immutable; passes build new ones with `attrs.evolve`. Values are strings that are unique within a graph. They come
from user text, so they never reach kernel source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, Union

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from .types import TensorType

Attribute: TypeAlias = Union[int, float, bool, str, tuple[int, ...], tuple[float, ...], tuple[str, ...]]
Array: TypeAlias = npt.NDArray[np.generic]


@frozen
class Node:
    """One operation: `outputs = op(inputs, attributes)`.

    An absent optional operand is None. `origin` is the name the user knows the node by (an ONNX node's name, say).
    """

    name: str
    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(factory=dict)
    origin: str = ""

    @property
    def operands(self) -> tuple[str, ...]:
        """The inputs that are present."""
        return tuple(v for v in self.inputs if v is not None)


@frozen
class Graph:
    """A pure function of tensors: nodes in topological order.

    `types` has an entry for every value; `constants` holds the arrays of those that are known (weights), which are no `inputs`.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array] = field(factory=dict, eq=False, repr=False)

    def producer(self) -> dict[str, Node]:
        """Map each computed value to the node that defines it."""
        return {value: node for node in self.nodes for value in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Map each value to the nodes that read it, in order, without repeats."""
        users: dict[str, list[Node]] = {value: [] for value in self.types}
        for node in self.nodes:
            for value in dict.fromkeys(node.operands):
                users[value].append(node)
        return users
