"""Gradients of operations as operations: derived from a declaration, or stated by it, and added to the vocabulary.

A derived gradient is a declaration of its own (`declare`) at the shapes of its use; its name ends in a digest of its
text, so that equal gradients are one operation. Nothing that compiles a graph can tell it from an operation that
somebody wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from attrs import evolve

from ...ir import Array, Node, Program, Source, TensorType
from ..language import Instance, Registry
from .adjoint import Adjoint, adjoint
from .declare import declare
from .own_form import OwnForm, own_form
from .through_steps import through_steps


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
            made = self.registry.of(node).instantiate(operands, node.attributes, constants)
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
        if instance.algorithms and len(derived.found) > 1 and _share_nothing(derived.program):
            return tuple(n for operand in derived.found.values() for n in self._derived(instance, (operand,), results))
        inputs = tuple(f"d{derived.given[t]}" if t in derived.given else t for t in derived.program.inputs)
        summary = f"gradient of {instance.op} with respect to {', '.join(derived.found.values())}"
        name = self._declared(f"{instance.op}_grad", summary, derived.program, self._algorithms(instance, derived))
        return (Node(name, name, inputs, tuple(f"d{operand}" for operand in derived.found.values())),)

    def _declared(
        self, begin: str, summary: str, program: Program, algorithms: Mapping[str, Sequence[Node]] | None = None
    ) -> str:
        """Return the name of an operation that means a program; it is added to the vocabulary."""
        text = declare("gradient", summary, program, algorithms)
        name = f"{begin}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
        if name not in self.registry:
            self.texts[name] = declare(name, summary, program, algorithms)
            self.registry = self.registry.extend(Source(f"{name}.cuts", self.texts[name]))
        return name

    def _algorithms(self, instance: Instance, derived: Adjoint) -> dict[str, tuple[Node, ...]]:
        """Return the algorithms of the gradient of one operand that follow from those of the operation: its own, where
        the gradient is the operation itself on other operands, else what its steps are in reverse.
        """
        if not instance.algorithms or len(derived.found) != 1:
            return {}
        ((name, operand),) = derived.found.items()
        op, gradients = self.registry.get(instance.op), [*derived.given]
        form = own_form(op, instance, operand, derived.program, gradients[0]) if op and len(gradients) == 1 else None
        if form is not None:
            return self._of_own_form(form, name, derived)
        given = {result: gradient for gradient, result in derived.given.items()}
        found: dict[str, tuple[Node, ...]] = {}
        for algorithm, steps in instance.algorithms.items():
            made = through_steps(steps, instance.program.tensors, operand, given, name, self._mean, self.steps)
            outside = {v for n in made for v in n.operands} - {v for n in made for v in n.outputs}
            if made and outside <= set(derived.program.inputs):
                found[algorithm] = made
        return found

    def _of_own_form(self, form: OwnForm, result: str, derived: Adjoint) -> dict[str, tuple[Node, ...]]:
        (given,), (turned,) = derived.given, form.turned.outputs
        summary = "an operand's dims in the order in which the operation itself reads them"
        op = self._declared("turned", summary, form.turned)
        first = Node(op, op, form.turned.inputs, (turned,))
        names = {form.given: given, form.other: turned, form.proposed.outputs[0]: result}

        def renamed(nodes: Sequence[Node]) -> tuple[Node, ...]:
            return tuple(_renamed(node, names) for node in nodes)

        return {name: (first, *renamed(steps)) for name, steps in form.proposed.algorithms.items()}

    def _mean(self, node: Node, operands: Sequence[TensorType | None]) -> Instance:
        return self.instance(node, operands, {})


def _share_nothing(program: Program) -> bool:
    """Whether each statement writes a result, and none reads what another writes."""
    targets = {s.target for s in program.statements}
    return targets == set(program.outputs) and not any(targets.intersection(s.tensors_read) for s in program.statements)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return a step of an algorithm over the names that its values have in the gradient's."""
    inputs = tuple(v if v is None else names.get(v, f"its_{v}") for v in node.inputs)
    return evolve(node, inputs=inputs, outputs=tuple(names.get(v, f"its_{v}") for v in node.outputs))


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
