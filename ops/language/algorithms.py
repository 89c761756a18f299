"""Algorithms of an instance: a declaration's steps as graph nodes.

They can replace the operation.

A step's operands are the operation's own by their formal names, results of earlier steps, or `none`; the results that
carry the operation's formal names are its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir import DType, Node, SpecError
from .declaration import Declaration
from .evaluation import Absent, ExpressionEvaluator, TensorRef, describe
from .text import syntax as s


def resolve_algorithms(decl: Declaration, evaluator: ExpressionEvaluator) -> Mapping[str, tuple[Node, ...]]:
    """Return the steps of every algorithm whose guard holds, by name."""
    return {
        a.name: _nodes(a.name, a.steps, set(), evaluator)
        for a in decl.algorithms
        if a.guard is None or evaluator.evaluate(a.guard) is True
    }


def resolve_gradient(decl: Declaration, evaluator: ExpressionEvaluator) -> tuple[Node, ...]:
    """Return the steps of the gradient that a declaration states.

    `dy` is the given gradient of its result `y`.
    """
    if decl.gradient is None:
        return ()
    return _nodes("grad", decl.gradient.steps, {f"d{result.name}" for result in decl.results}, evaluator)


def _nodes(name: str, steps: Sequence[s.Step], computed: set[str], evaluator: ExpressionEvaluator) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for number, step in enumerate(steps):
        inputs = tuple(_operand(a.value, computed, evaluator) for a in step.arguments if a.name is None)
        stated = {a.name: evaluator.evaluate(a.value) for a in step.arguments if a.name is not None}
        # `none` has the same meaning as no attribute; an element type is an attribute by its name.
        attributes = {
            n: value.value if isinstance(value, DType) else value for n, value in stated.items() if value is not None
        }
        nodes.append(Node(f"{name}_{number}", step.op, inputs, step.results, attributes))
        computed.update(step.results)
    return tuple(nodes)


def _operand(node: s.Expression, computed: set[str], evaluator: ExpressionEvaluator) -> str | None:
    if isinstance(node, s.Name) and node.id in computed:
        return node.id
    value = evaluator.evaluate(node)
    if isinstance(value, TensorRef):
        return value.name
    if value is None or isinstance(value, Absent):
        return None
    raise SpecError(
        f"a step takes tensors, found {describe(value)}", node.span, "name an attribute, as in op(x, axis: 1)"
    )
