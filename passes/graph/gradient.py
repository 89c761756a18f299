"""Backward pass: extends a graph by the gradients of one value.

Nodes are visited in reverse. Each gives its operands the gradients that its declaration states, or that are derived
from it; a value that several nodes read gets the sum. Rematerialisation follows one rule: a value of the graph (an
operand or result of a node) is stored where a gradient needs it, and an intermediate of an operation (the mean in a
layer norm) is computed again by the gradient that needs it, which fuses with it. A recurrence is the exception: its
iterations are sequential, so its intermediates become further results of its node, which the gradient reads.

    %h = relu(%x)            %h = relu(%x)
    %y = matmul(%h, %w)  ->  %y = matmul(%h, %w)
                             %h.grad, %w.grad = matmul_grad_...(%h, %w, %y.grad)
                             %x.grad = relu_grad_...(%x, %h.grad)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from attrs import define, evolve, field, frozen

from ...ir import Array, Graph, GraphError, Node, TensorType, convert_error, fresh_name, quote
from ...ops.gradient import Gradients


@frozen
class Differentiated:
    """Graph with its backward pass; `gradients` names each requested gradient."""

    graph: Graph
    gradients: Mapping[str, str]


def differentiate_graph(
    graph: Graph,
    gradients: Gradients,
    loss: str,
    wrt: Sequence[str],
    *,
    partial: bool = False,
    given: str | None = None,
) -> Differentiated:
    """Extend a graph by the gradients of `loss` with respect to values.

    The loss is a value of one element; the others are inputs, constants or other values. Where a value of the graph is
    `given` as its gradient, `loss` may have any shape.

    A value without a gradient is an error with its reason; with `partial` it is left out.
    """
    return _Backward(graph, gradients, loss, tuple(wrt), partial, given).run()


@define
class _Backward:
    graph: Graph
    gradients: Gradients
    loss: str
    wrt: tuple[str, ...]
    partial: bool = False
    given: str | None = None
    nodes: list[Node] = field(factory=list)
    types: dict[str, TensorType] = field(factory=dict)
    parts: dict[str, list[str]] = field(factory=dict)  # the gradients that a value gets from its readers
    whole: dict[str, str] = field(factory=dict)
    taken: set[str] = field(factory=set)  # names of nodes
    values: set[str] = field(factory=set)  # names of values
    blocked: dict[str, str] = field(factory=dict)  # node -> why nothing flows through it
    constants: dict[str, Array] = field(factory=dict)
    keeping: dict[str, Node] = field(factory=dict)  # nodes with further results, which replace others

    def run(self) -> Differentiated:
        graph = self.graph
        self._check()
        self.types.update(graph.types)
        self.values.update(graph.types)
        self.taken.update(node.name for node in graph.nodes)
        self.parts[self.loss] = [self._seed() if self.given is None else self.given]
        varying = self._varying()
        for node in reversed(graph.nodes):
            if any(v in varying for v in node.operands):
                self._add_gradients(node, varying)
        found = {value: self._total(value) for value in self.wrt if value in self.parts}
        for value in self.wrt:
            if value not in found and not self.partial:
                raise GraphError(self._reason(value))
        constants = {**graph.constants, **self.constants}
        used = evolve(
            graph,
            types=self.types,
            constants=constants,
            nodes=(*(self.keeping.get(n.name, n) for n in graph.nodes), *self.nodes),
        )
        return Differentiated(used, found)

    def _check(self) -> None:
        types = self.graph.types
        for value in (self.loss, *self.wrt):
            if value not in types:
                known = ", ".join(map(quote, self.graph.outputs))
                raise GraphError(
                    f"graph {quote(self.graph.name)} has no value {quote(value)}", hint=f"outputs: {known}"
                )
            if not types[value].dtype.is_float:
                raise GraphError(f"value {quote(value)}: expected a float to differentiate, found {types[value]}")
        if self.given is not None and types.get(self.given) != types[self.loss]:
            raise GraphError(
                f"gradient {quote(self.given)} of {quote(self.loss)}: expected a value of the graph, of type "
                f"{types[self.loss]}, found {types.get(self.given, 'none')}"
            )
        if self.given is None and types[self.loss].size != 1:
            raise GraphError(
                f"loss {quote(self.loss)}: expected one element, found {types[self.loss]}",
                hint="reduce it, as with reduce_mean",
            )

    def _seed(self) -> str:
        """Return the gradient of the loss with respect to itself."""
        name = self._fresh(f"{self.loss}.grad")
        self.types[name] = type_ = self.graph.types[self.loss]
        self.constants[name] = np.ones(type_.shape, type_.dtype.numpy)
        return name

    def _varying(self) -> set[str]:
        """Return the values that depend on the requested ones, integers included."""
        found = set(self.wrt)
        for node in self.graph.nodes:
            if found.intersection(node.operands):
                found.update(node.outputs)
        return found

    # ---- one node

    def _add_gradients(self, node: Node, varying: Collection[str]) -> None:
        results = [v for v in node.outputs if v in self.parts]
        if not results:
            return
        known = {
            n: self.graph.constants[v] for n, v in enumerate(node.inputs) if v is not None and v in self.graph.constants
        }
        operands = [None if v is None else self.graph.types[v] for v in node.inputs]
        try:
            instance = self.gradients.instance(node, operands, known)
        except GraphError as error:
            raise convert_error(error, GraphError, f"node {quote(node.name)}: ", node.span) from error
        formals = dict(zip(node.outputs, instance.outputs, strict=False))
        names = {f"d{formals[v]}": self._total(v) for v in results}
        names |= {formal: value for value, formal in formals.items()}
        names |= {f: v for f, v in zip(instance.inputs, node.inputs, strict=False) if f is not None and v is not None}
        wanted = {
            formal: value
            for formal, value in zip(instance.inputs, node.inputs, strict=False)
            if formal is not None and value is not None and value in varying and self.graph.types[value].dtype.is_float
        }
        sought, known_results = tuple(wanted), [formals[v] for v in results]
        kept = self.gradients.with_saved_results(
            instance, sought, known_results, tuple(formals[v] for v in node.outputs)
        )
        if kept is not None:
            names |= self._keep(node, kept[0], names)
        steps = self.gradients.steps(instance, sought, known_results) if kept is None else kept[1]
        self._operands(node, steps, wanted, names)

    def _keep(self, node: Node, formal: Node, names: Mapping[str, str]) -> dict[str, str]:
        """Give a node further results; return their names by the operation's names."""
        inside = formal.outputs[len(node.outputs) :]
        found = {name: self._fresh(f"{node.name}.{name}") for name in inside}
        inputs = tuple(v if v is None else names[v] for v in formal.inputs)
        outputs = (*node.outputs, *found.values())  # the node's own declaration is that of the other operation
        made = evolve(node, op=formal.op, inputs=inputs, outputs=outputs, attributes={}, declaration="")
        instance = self.gradients.instance(made, [None if v is None else self.types[v] for v in inputs], {})
        self.types.update(zip(made.outputs, instance.output_types, strict=True))
        self.keeping[node.name] = made
        return found

    def _operands(self, node: Node, steps: Sequence[Node], wanted: Mapping[str, str], names: Mapping[str, str]) -> None:
        """Add the nodes that compute the gradients of a node's operands; `wanted` maps formal names to values."""
        made: dict[str, str] = {}  # separate from the operands, as an operand may have the name of another's gradient
        own = {f"d{formal}": f"{value}.grad" for formal, value in wanted.items()}
        for step in steps:
            outputs = tuple(self._fresh(own.get(o, f"{node.name}.{o}")) for o in step.outputs)
            inputs = tuple(None if v is None else made[v] if v in made else names[v] for v in step.inputs)
            self._add(fresh_name(self.taken, f"{node.name}.grad"), step.op, inputs, outputs, step.attributes)
            made |= dict(zip(step.outputs, outputs, strict=True))
        for formal, value in wanted.items():
            if f"d{formal}" in made:
                self.parts.setdefault(value, []).append(made[f"d{formal}"])
            elif not all(any(self.types[v].size for v in side) for side in (node.outputs, (value,))):
                self.parts.setdefault(value, []).append(self._zeros(value))  # of no elements, or to no elements
            else:
                self.blocked[node.name] = f"the derivative of {node.op} with respect to '{formal}' is zero everywhere"

    def _zeros(self, value: str) -> str:
        name = self._fresh(f"{value}.grad")
        self.types[name] = self.types[value]
        self.constants[name] = np.zeros(self.types[value].shape, self.types[value].dtype.numpy)
        return name

    def _total(self, value: str) -> str:
        """Return the whole gradient of a value, the sum over its readers."""
        if value not in self.whole:
            parts = self.parts[value]
            self.whole[value] = parts[0]
            if len(parts) > 1:
                self.whole[value] = self._fresh(f"{value}.grad.sum")
                self._add(fresh_name(self.taken, f"{value}.grad"), "sum", tuple(parts), (self.whole[value],), {})
        return self.whole[value]

    def _fresh(self, hint: str) -> str:
        name = fresh_name(self.values, hint)
        self.values.add(name)
        return name

    def _add(
        self,
        name: str,
        op: str,
        inputs: tuple[str | None, ...],
        outputs: tuple[str, ...],
        attributes: Mapping[str, object],
    ) -> None:
        node = Node(name, op, inputs, outputs, dict(attributes))
        operands = [None if v is None else self.types[v] for v in inputs]
        instance = self.gradients.instance(node, operands, {})
        self.types.update(zip(outputs, instance.output_types, strict=False))
        self.nodes.append(node)
        self.taken.add(name)

    # ---- why there is no gradient

    def _reason(self, value: str) -> str:
        """Return the reason why no gradient flows from the loss to a value."""
        reached = {value}
        text = f"no gradient of {quote(self.loss)} with respect to {quote(value)}: "
        for node in self.graph.nodes:
            if not reached.intersection(node.operands):
                continue
            reached.update(node.outputs)
            if node.name in self.blocked:
                return f"{text}node {quote(node.name)}: {self.blocked[node.name]}"
            if not any(self.graph.types[v].dtype.is_float for v in node.outputs):
                kind = self.graph.types[node.outputs[0]].dtype
                return (
                    f"{text}node {quote(node.name)}: the result of {node.op} is of type {kind}, which has no derivative"
                )
        return f"{text}it does not depend on it"
