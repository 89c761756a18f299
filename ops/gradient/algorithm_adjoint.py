"""Adjoints of algorithms: gradients through their steps in reverse.

    y = B(A(x) * G(w))     ->     dG = A(x) * B'(dy);   dw = G'(dG)

The Winograd algorithm for a convolution gives one for the gradient of the filters that way, with equally few products.
Needed forward steps are recomputed; equal nodes of a graph are one, so that they are shared with a forward pass by the
same algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import define, evolve, field

from ...ir import Node, TensorType
from ..language import Instance

#: Means a node at operands of these types.
Mean = Callable[[Node, Sequence[TensorType | None]], Instance]
#: Returns the nodes that compute gradients of operands from those of results, as `Gradients.steps` does.
Derive = Callable[[Instance, Sequence[str], Sequence[str]], Sequence[Node]]


def adjoint_steps(
    steps: Sequence[Node],
    types: Mapping[str, TensorType],
    operand: str,
    given: Mapping[str, str],
    result: str,
    mean: Mean,
    derive: Derive,
) -> tuple[Node, ...]:
    """Return the nodes of an operand's gradient through an algorithm's steps.

    The gradient is called `result`.

    `types` are those of operands and results; `given` maps results to the names of their gradients. There are none
    where no gradient comes through, or several readers of a value would hand one on: steps of algorithms are chains.
    """
    return _Reverse(mean, derive, dict(types)).run(steps, operand, given, result)


@define
class _Reverse:
    mean: Mean
    derive: Derive
    types: dict[str, TensorType]
    nodes: list[Node] = field(factory=list)
    parts: dict[str, list[str]] = field(factory=dict)

    def run(self, steps: Sequence[Node], operand: str, given: Mapping[str, str], result: str) -> tuple[Node, ...]:
        varying, instances = {operand}, []
        for step in steps:
            instances.append(self.mean(step, [None if v is None else self.types[v] for v in step.inputs]))
            self.types.update(zip(step.outputs, instances[-1].output_types, strict=True))
            if varying.intersection(step.operands):
                varying.update(step.outputs)
        self.types.update({name: self.types[result] for result, name in given.items() if result in self.types})
        self.nodes.extend(steps)
        self.parts.update({result: [name] for result, name in given.items()})
        for step, instance in zip(reversed(steps), reversed(instances), strict=True):
            if varying.intersection(step.operands) and any(v in self.parts for v in step.outputs):
                self._add_gradients(step, instance, varying)
        if operand not in self.parts or any(len(parts) > 1 for parts in self.parts.values()):
            return ()
        (last,) = self.parts[operand]
        return _live_nodes([_rename_output(node, last, result) for node in self.nodes], result)

    def _add_gradients(self, step: Node, instance: Instance, varying: set[str]) -> None:
        """Add the gradients of a step's operands."""
        formals = dict(zip(step.outputs, instance.outputs, strict=True))
        operands = {f: v for f, v in zip(instance.inputs, step.inputs, strict=True) if f is not None and v is not None}
        results = [v for v in step.outputs if v in self.parts]
        names = {
            **operands,
            **{f: v for v, f in formals.items()},
            **{f"d{formals[v]}": self.parts[v][0] for v in results},
        }
        wanted = [f for f, v in operands.items() if v in varying and self.types[v].dtype.is_float]
        made: dict[str, str] = {}
        for node in self.derive(instance, wanted, [formals[v] for v in results]):
            inputs = tuple(None if v is None else made[v] if v in made else names[v] for v in node.inputs)
            outputs = tuple(self._fresh(f"d_{operands.get(o[1:], o)}") for o in node.outputs)
            self._add(evolve(node, inputs=inputs, outputs=outputs))
            made |= dict(zip(node.outputs, outputs, strict=True))
        for formal in wanted:
            if f"d{formal}" in made:
                self.parts.setdefault(operands[formal], []).append(made[f"d{formal}"])

    def _add(self, node: Node) -> None:
        instance = self.mean(node, [None if v is None else self.types[v] for v in node.inputs])
        self.types.update(zip(node.outputs, instance.output_types, strict=True))
        self.nodes.append(node)

    def _fresh(self, hint: str) -> str:
        while hint in self.types:
            hint += "_"
        return hint


def _rename_output(node: Node, old: str, new: str) -> Node:
    inputs, outputs = (tuple(new if v == old else v for v in values) for values in (node.inputs, node.outputs))
    return evolve(node, inputs=inputs, outputs=tuple(v for v in outputs if v is not None))


def _live_nodes(nodes: Sequence[Node], result: str) -> tuple[Node, ...]:
    """Return the nodes that a value depends on."""
    wanted, kept = {result}, []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.operands)
    return tuple(reversed(kept))
