"""Graph IR: typed SSA values and nodes named from the vocabulary.

The graph is immutable; passes build new ones with `attrs.evolve`. Values are strings that are unique within a graph.
They come from user text, so they never reach kernel source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from ..errors import GraphError, quote
from ..source import Span
from ..types import TensorType
from .attributes import Attribute, attributes_of

Array: TypeAlias = npt.NDArray[np.generic]


def check_op(node: Node, _: object, op: str) -> None:
    """Raise `GraphError` where the name of an operation is no identifier."""
    if not op.isidentifier():
        raise GraphError(
            f"node {quote(str(node.name))}: expected the name of an operation, found {quote(str(op))}",
            node.span,
            "the order is Node(name, op, inputs, outputs)",
        )


def check_values(node: Node, attribute: Any, values: object) -> None:
    """Raise `GraphError` where operands or results are one text."""
    if isinstance(values, str):
        raise GraphError(
            f"node {quote(str(node.name))}: expected a tuple of {attribute.name}, found {quote(values)}",
            node.span,
            f"a tuple of one is ({values!r},)",
        )


@frozen
class Node:
    """Operation: `outputs = op(inputs, attributes)`.

    An absent optional operand is None. `origin` is the name the user knows the node by (an ONNX node's name, say),
    `span` where its operation is named in the text it was read from, for messages. `declaration` is the text that
    declares its operation where the vocabulary does not: the node brings it along, under a name that says which it is.

    Raises `GraphError` for attributes that are neither numbers, truth values, texts nor lists of one of these, for an
    `op` that is no identifier, and for operands or results in one text.
    """

    name: str
    op: str = field(validator=check_op)
    inputs: tuple[str | None, ...] = field(validator=check_values)
    outputs: tuple[str, ...] = field(validator=check_values)
    attributes: Mapping[str, Attribute] = field(factory=dict, converter=attributes_of)
    origin: str = ""
    declaration: str = field(default="", repr=False, kw_only=True)
    span: Span | None = field(default=None, eq=False, repr=False, kw_only=True)

    @property
    def operands(self) -> tuple[str, ...]:
        """The inputs that are present."""
        return tuple(v for v in self.inputs if v is not None)


#: A result that is no tensor.
FixedValue: TypeAlias = bool | int | float | str | None


@frozen
class StateTensor:
    """A tensor kept between runs: its input, its output, its initial value."""

    input: str
    output: str
    initial: Array = field(eq=False, repr=False)


@frozen
class FixedResult:
    """Result that is the same in each run, and its position."""

    place: int
    value: FixedValue


@frozen
class RowProducer:
    """Node outside of a graph, with a computed number of rows.

    Its results have at most `bound` rows and are inputs of the graph; its operands and the `count` of rows are outputs.
    """

    dim: str
    bound: int
    node: Node
    count: str


@frozen
class Interface:
    """State, fixed results, updated inputs and producers of a graph.

    A caller sees no input or output of state. State is an input whose initial value is an output of the run before,
    such as a buffer that a program writes. `updates` maps inputs to the outputs that may overwrite their memory.
    """

    state: Mapping[str, StateTensor] = field(factory=dict)
    fixed: Mapping[str, FixedResult] = field(factory=dict)
    updates: Mapping[str, str] = field(factory=dict)
    producers: tuple[RowProducer, ...] = ()

    @property
    def replaced(self) -> Mapping[str, str]:
        """The outputs that may overwrite an input, by input.

        They are those of updates and of state.
        """
        return {**self.updates, **{tensor.input: tensor.output for tensor in self.state.values()}}

    def caller_inputs(self, inputs: Iterable[str]) -> tuple[str, ...]:
        """Return the inputs without those of state."""
        kept = {tensor.input for tensor in self.state.values()}
        return tuple(name for name in inputs if name not in kept)

    def caller_outputs(self, outputs: Iterable[str]) -> tuple[str, ...]:
        """Return the outputs without those of state."""
        kept = {tensor.output for tensor in self.state.values()}
        return tuple(name for name in outputs if name not in kept)

    def results(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return outputs together with the fixed results, in order."""
        if not self.fixed:
            return dict(outputs)
        pairs = list(outputs.items())
        for name, result in sorted(self.fixed.items(), key=lambda item: item[1].place):
            pairs.insert(result.place, (name, result.value))
        return dict(pairs)


@frozen
class Graph:
    """A pure function of tensors: nodes in topological order.

    `types` has an entry for every value; `constants` holds the arrays of those that are known (weights), which are no
    `inputs`. `interface` says which inputs and outputs are state of a plan, and which outputs replace an input.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array] = field(factory=dict, eq=False, repr=False)
    interface: Interface = field(factory=Interface, repr=False)

    def producer(self) -> dict[str, Node]:
        """Map each computed value to the node that defines it."""
        return {value: node for node in self.nodes for value in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Map each value to its readers, in order, without repeats."""
        users: dict[str, list[Node]] = {value: [] for value in self.types}
        for node in self.nodes:
            for value in dict.fromkeys(node.operands):
                users[value].append(node)
        return users


def fresh_name(taken: Collection[str], hint: str) -> str:
    """Return an unused name: the hint, or the hint with a number."""
    name, number = hint, 1
    while name in taken:
        number += 1
        name = f"{hint}.{number}"
    return name


def needed_nodes(nodes: Sequence[Node], outputs: Iterable[str]) -> tuple[tuple[Node, ...], set[str]]:
    """Return the nodes that outputs depend on, and all values involved.

    The values are the outputs and all values that these nodes read.
    """
    live = set(outputs)
    needed: list[Node] = []
    for node in reversed(nodes):
        if live.intersection(node.outputs):
            needed.append(node)
            live.update(node.operands)
    return tuple(reversed(needed)), live


def subgraph(graph: Graph, outputs: Sequence[str], available: Collection[str]) -> Graph:
    """Return the part of a graph between available values and outputs.

    x -> a -> b -> c -> y, outputs (c,), available {a}   ->   a -> b -> c

    Its inputs are the available values, and inputs of the graph, that its nodes read. Constants come along.
    """
    known = {*available, *graph.inputs, *graph.constants} - set(outputs)
    live, nodes = set(outputs), list[Node]()
    for node in reversed(graph.nodes):
        if live.intersection(node.outputs):
            nodes.append(node)
            live.update(value for value in node.operands if value not in known)
    read = dict.fromkeys(value for node in reversed(nodes) for value in node.operands if value in known)
    constants = {value: graph.constants[value] for value in read if value in graph.constants}
    inputs = tuple(value for value in read if value not in constants)
    defined = (*read, *(value for node in reversed(nodes) for value in node.outputs))
    types = {value: graph.types[value] for value in defined}
    return Graph(graph.name, inputs, tuple(outputs), types, tuple(reversed(nodes)), constants)


def live_graph(graph: Graph) -> Graph:
    """Remove nodes, constants and types that no output needs.

    Inputs stay. Types follow the order of definition.
    """
    nodes, live = needed_nodes(graph.nodes, graph.outputs)
    constants = {value: array for value, array in graph.constants.items() if value in live}
    defined = (*graph.inputs, *constants, *(value for node in nodes for value in node.outputs))
    return evolve(graph, nodes=nodes, constants=constants, types={value: graph.types[value] for value in defined})
