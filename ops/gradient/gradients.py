"""Gradients of operations as operations: derived from a declaration, or stated by it, and added to the vocabulary.

A derived gradient is a declaration of its own (`declare`) at the shapes of its use; its name ends in a digest of its
text, so that equal gradients are one operation. Nothing that compiles a graph can tell it from an operation that
somebody wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from ...ir import Array, Node, Source, TensorType
from ..language import Instance, Registry
from .adjoint import adjoint
from .declare import declare


class Gradients:
    """Derives gradients and collects the declarations that they need: `registry` has them, `texts` prints them."""

    def __init__(self, registry: Registry, texts: Mapping[str, str] | None = None) -> None:
        self.registry = registry
        self.texts: dict[str, str] = dict(texts or {})
        self._instances: dict[object, Instance] = {}

    def instance(self, node: Node, operands: Sequence[TensorType | None], constants: Mapping[int, Array]) -> Instance:
        """Return what a node means."""
        key = None if constants else (node.op, tuple(operands), _frozen(node.attributes))
        if key is None or key not in self._instances:
            made = self.registry[node.op].instantiate(operands, node.attributes, constants)
            if key is None:
                return made
            self._instances[key] = made
        return self._instances[key]

    def declare(self, texts: Mapping[str, str]) -> None:
        """Add declarations, by the name of their source; those of a name that is known already are left out."""
        new = {name: text for name, text in texts.items() if name not in self.texts}
        if new:
            self.registry = self.registry.extend(*(Source(name, text) for name, text in new.items()))
            self.texts |= new

    def steps(self, instance: Instance, operands: Sequence[str], results: Sequence[str]) -> tuple[Node, ...]:
        """Return the nodes that compute operands' gradients from those of some results; an operand that has none is
        left out.

        They are nodes over the operation's formal names; the gradient of a result `y` is `dy`, and that of operand `x`
        they name `dx`.
        """
        stated = {operand: _stated(instance, operand, results) for operand in operands}
        nodes = {node.name: node for steps in stated.values() for node in steps}
        rest = [operand for operand in operands if not stated[operand]]
        return (*nodes.values(), *(self._derived(instance, rest, results) if rest else ()))

    def _derived(self, instance: Instance, operands: Sequence[str], results: Sequence[str]) -> tuple[Node, ...]:
        derived = adjoint(instance.program, operands, results)
        if not derived.found:
            return ()
        inputs = tuple(f"d{derived.given[t]}" if t in derived.given else t for t in derived.program.inputs)
        summary = f"gradient of {instance.op} with respect to {', '.join(derived.found.values())}"
        digest = hashlib.sha256(declare("gradient", summary, derived.program).encode()).hexdigest()[:10]
        name = f"{instance.op}_grad_{digest}"
        if name not in self.registry:
            self.texts[name] = declare(name, summary, derived.program)
            self.registry = self.registry.extend(Source(f"{name}.cuts", self.texts[name]))
        return (Node(name, name, inputs, tuple(f"d{operand}" for operand in derived.found.values())),)


def _stated(instance: Instance, operand: str, results: Sequence[str]) -> tuple[Node, ...]:
    """Return the steps of a declaration's own gradient that lead to an operand; nothing where it does not say."""
    wanted = {f"d{operand}"}
    kept: list[Node] = []
    for node in reversed(instance.gradient):
        if wanted & set(node.outputs):
            kept.append(node)
            wanted.update(node.operands)
    absent = {f"d{r}" for r in instance.outputs} - {f"d{r}" for r in results}
    return () if wanted & absent else tuple(reversed(kept))


def _frozen(attributes: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in attributes.items()))
