"""Gradients of operations, as operations added to the vocabulary.

A gradient is derived from a declaration, or stated by it. A derived gradient is a declaration of its own (`declare`) at
the shapes of its use; its name ends in a digest of its text, so that equal gradients are one operation. The compiler
treats it like an operation that a user wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from attrs import evolve

from ...ir import Array, Node, Program, Read, Source, Statement, TensorType, Var, as_index
from ..language import Instance, Registry, live_statements, unused_name
from .adjoint import Adjoint, adjoint
from .algorithm_adjoint import adjoint_steps
from .declare import declare
from .self_adjoint import SelfAdjointForm, self_adjoint_form


class Gradients:
    """Derives gradients and collects the declarations that they need.

    `registry` has them, `texts` prints them.
    """

    def __init__(self, registry: Registry, texts: Mapping[str, str] | None = None) -> None:
        self.registry = registry
        self.texts: dict[str, str] = dict(texts or {})
        self._instances: dict[object, Instance] = {}

    def instance(self, node: Node, operands: Sequence[TensorType | None], constants: Mapping[int, Array]) -> Instance:
        """Return the instance of a node."""
        key = None if constants else (node.op, tuple(operands), _frozen(node.attributes))
        if key is None or key not in self._instances:
            made = self.registry.of(node).instantiate(operands, node.attributes, constants)
            if key is None:
                return made
            self._instances[key] = made
        return self._instances[key]

    def declare(self, texts: Mapping[str, str]) -> None:
        """Add declarations, by the name of their source.

        Those of a known name are left out.
        """
        new = {name: text for name, text in texts.items() if name not in self.texts}
        if new:
            self.registry = self.registry.extend(*(Source(name, text) for name, text in new.items()))
            self.texts |= new

    def with_saved_results(
        self, instance: Instance, operands: Sequence[str], results: Sequence[str], taken: Sequence[str]
    ) -> tuple[Node, tuple[Node, ...]] | None:
        """Return the operation with saved intermediates as further results.

        The result also has the steps of `steps` that read these. It is None where nothing is to be saved, as without a
        recurrence.

        `taken` are the results that the graph has; they come first.
        """
        if not any(s.step for s in instance.program.statements) or any(
            _stated_steps(instance, o, results) for o in operands
        ):
            return None
        derived = adjoint(instance.program, operands, results, keep=True)
        if derived.forward is None or not derived.operand_gradients:
            return None
        inside = tuple(t for t in derived.forward.outputs if t not in instance.program.outputs)
        program = _with_outputs(derived.forward, (*taken, *inside))
        name = self._declare_program(f"{instance.op}_kept", f"{instance.op}, with what its gradient reads", program)
        return Node(name, name, program.inputs, (*taken, *inside)), (self._node(instance, derived),)

    def steps(self, instance: Instance, operands: Sequence[str], results: Sequence[str]) -> tuple[Node, ...]:
        """Return the nodes of operands' gradients from those of some results.

        An operand without a gradient is left out.

        They are nodes over the operation's formal names; the gradient of a result `y` is `dy`, and that of operand `x`
        they name `dx`.
        """
        stated = {operand: _stated_steps(instance, operand, results) for operand in operands}
        nodes = {node.name: node for steps in stated.values() for node in steps}
        rest = [operand for operand in operands if not stated[operand]]
        return (*nodes.values(), *(self._derive_steps(instance, rest, results) if rest else ()))

    def _derive_steps(self, instance: Instance, operands: Sequence[str], results: Sequence[str]) -> tuple[Node, ...]:
        derived = adjoint(instance.program, operands, results)
        if not derived.operand_gradients:
            return ()
        if instance.algorithms and len(derived.operand_gradients) > 1 and _share_nothing(derived.program):
            return tuple(
                n
                for operand in derived.operand_gradients.values()
                for n in self._derive_steps(instance, (operand,), results)
            )
        return (self._node(instance, derived),)

    def _node(self, instance: Instance, derived: Adjoint) -> Node:
        """Return a derived gradient as a node."""
        inputs = tuple(
            f"d{derived.result_gradients[t]}" if t in derived.result_gradients else t for t in derived.program.inputs
        )
        summary = f"gradient of {instance.op} with respect to {', '.join(derived.operand_gradients.values())}"
        name = self._declare_program(
            f"{instance.op}_grad", summary, derived.program, self._algorithms(instance, derived)
        )
        return Node(name, name, inputs, tuple(f"d{operand}" for operand in derived.operand_gradients.values()))

    def _declare_program(
        self, begin: str, summary: str, program: Program, algorithms: Mapping[str, Sequence[Node]] | None = None
    ) -> str:
        """Return the name of an operation that means a program; it is added to the vocabulary."""
        text = declare("gradient", summary, program, algorithms)
        name = f"{begin}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
        if name not in self.registry:
            self.texts[name] = declare(name, summary, program, algorithms)
            self.registry = self.registry.extend_generated(Source(f"{name}.cuts", self.texts[name]))
        return name

    def _algorithms(self, instance: Instance, derived: Adjoint) -> dict[str, tuple[Node, ...]]:
        """Return the algorithms of the gradient of one operand that follow from those of the operation: its own, where
        the gradient is the operation itself on other operands, else the adjoints of their steps.
        """
        if not instance.algorithms or len(derived.operand_gradients) != 1:
            return {}
        ((name, operand),) = derived.operand_gradients.items()
        op, gradients = self.registry.get(instance.op), [*derived.result_gradients]
        form = (
            self_adjoint_form(op, instance, operand, derived.program, gradients[0])
            if op and len(gradients) == 1
            else None
        )
        if form is not None:
            return self._self_adjoint_algorithms(form, name, derived)
        given = {result: gradient for gradient, result in derived.result_gradients.items()}
        found: dict[str, tuple[Node, ...]] = {}
        for algorithm, steps in instance.algorithms.items():
            made = adjoint_steps(steps, instance.program.tensors, operand, given, name, self._mean, self.steps)
            outside = {v for n in made for v in n.operands} - {v for n in made for v in n.outputs}
            if made and outside <= set(derived.program.inputs):
                found[algorithm] = made
        return found

    def _self_adjoint_algorithms(
        self, form: SelfAdjointForm, result: str, derived: Adjoint
    ) -> dict[str, tuple[Node, ...]]:
        (given,), (turned,) = derived.result_gradients, form.permutation.outputs
        summary = "an operand's dims in the order in which the operation itself reads them"
        op = self._declare_program("turned", summary, form.permutation)
        first = Node(op, op, form.permutation.inputs, (turned,))
        names = {form.given: given, form.other: turned, form.operation.outputs[0]: result}

        def rename(nodes: Sequence[Node]) -> tuple[Node, ...]:
            return tuple(_rename_values(node, names) for node in nodes)

        return {name: (first, *rename(steps)) for name, steps in form.operation.algorithms.items()}

    def _mean(self, node: Node, operands: Sequence[TensorType | None]) -> Instance:
        return self.instance(node, operands, {})


def _with_outputs(program: Program, results: tuple[str, ...]) -> Program:
    """Return a program with only these results and their dependencies; a result that a loop writes and reads is the
    copy of a list.
    """
    tensors, copies = dict(program.tensors), []
    outputs: tuple[str, ...] = ()
    for result in results:
        stepped = any(s.step for s in program.statements if s.target == result)
        if stepped and any(result in s.tensors_read for s in program.statements):
            copies.append(_copy(result, unused_name(f"{result}_kept", tensors), tensors))
            result = copies[-1].target
        outputs += (result,)
    statements = live_statements((*program.statements, *copies), outputs)
    used = {t for s in statements for t in (s.target, *s.tensors_read)}
    inputs = tuple(t for t in program.inputs if t in used)
    tensors = {t: type_ for t, type_ in tensors.items() if t in used}
    constants = {t: values for t, values in program.constants.items() if t in used}
    return Program(tensors, inputs, outputs, statements, constants)


def _copy(tensor: str, name: str, tensors: dict[str, TensorType]) -> Statement:
    """Return the statement that copies a tensor to a new one."""
    tensors[name] = tensors[tensor]
    axes = tuple(Var(f"k{n}", extent) for n, extent in enumerate(tensors[tensor].shape))
    place = tuple(map(as_index, axes))
    return Statement(name, tuple(a for a in axes if a.extent > 1), place, Read(tensor, place))


def _share_nothing(program: Program) -> bool:
    """Return whether each statement writes a result, and none reads the result of another."""
    targets = {s.target for s in program.statements}
    return targets == set(program.outputs) and not any(targets.intersection(s.tensors_read) for s in program.statements)


def _rename_values(node: Node, names: Mapping[str, str]) -> Node:
    """Return a step of an algorithm with its values rename to the gradient's."""
    inputs = tuple(v if v is None else names.get(v, f"its_{v}") for v in node.inputs)
    return evolve(node, inputs=inputs, outputs=tuple(names.get(v, f"its_{v}") for v in node.outputs))


def _stated_steps(instance: Instance, operand: str, results: Sequence[str]) -> tuple[Node, ...]:
    """Return the steps of a declaration's own gradient that lead to an operand; empty where it states none."""
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
