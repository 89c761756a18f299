"""Kept results: values of a recurrence that its gradient reads.

    y = lstm(x, w, r);  dx, dw, dr = lstm_backward([x, w, r, dy], problem)
      ->   y, c, z = lstm_kept([x, w, r], problem);  dx, dw, dr = lstm_kept_backward([x, w, r, y, c, z, dy], problem)

A gradient that has the operands alone computes all steps again. The operands of `lstm_kept` are those that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import evolve, frozen

from ...ir import Node, TensorType
from ...ops.gradient import Gradients
from .captured_graph import CapturedGraph, captured_graph
from .declared_operator import BackwardCall, DeclaredOperator, empty_tensor
from .import_context import ImportContext, Value
from .tensors import function_of_tensors

#: Ends of the names of both operators.
KEPT, KEPT_BACKWARD = "_kept", "_kept_backward"


@frozen(eq=False)
class KeptForm:
    """Operation with kept results, the steps of its gradient, and the types of all formal names.

    `operands` and `read` are the formal names of the arguments of both operators.
    """

    node: Node
    steps: tuple[Node, ...]
    types: Mapping[str, TensorType]
    operands: tuple[str, ...]
    read: tuple[str, ...]


def kept_form(made: DeclaredOperator, problem: str, gradients: Gradients | None = None) -> KeptForm | None:
    """Return the form of a gradient's problem, None where nothing is kept; `gradients` get its declarations."""
    gradients = gradients or Gradients(made.registry, dict(made.texts))
    gradients.declare(made.texts)
    parsed = BackwardCall.parse(problem)
    instance = made.instance(parsed.operands, parsed.attributes)
    found = gradients.with_saved_results(instance, parsed.wanted, parsed.given, instance.outputs)
    if found is None:
        return None
    node, steps = found
    types = {n: t for n, t in zip(instance.inputs, parsed.operands, strict=True) if n is not None and t is not None}
    operands = tuple(types)
    types |= zip(instance.outputs, instance.output_types, strict=True)
    whole = gradients.instance(node, [None if v is None else types[v] for v in node.inputs], {})
    types |= zip(node.outputs, whole.output_types, strict=True)
    types |= {f"d{name}": types[name] for name in parsed.given}
    inside = {name for step in steps for name in step.outputs}
    read = tuple(dict.fromkeys(v for step in steps for v in step.operands if v not in inside))
    return KeptForm(node, steps, types, operands, read)


def define_kept(made: DeclaredOperator, namespace: str) -> None:
    """Register both operators of a declaration."""
    for end, run, fake in ((KEPT, _run, _fake), (KEPT_BACKWARD, _run_backward, made.fake_backward)):
        name = f"{namespace}::{made.name}{end}"
        torch.library.define(name, "(Tensor[] given, str problem) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(name, ("cpu", "cuda"), partial(run, made))
        torch.library.register_fake(name, fake if end is KEPT_BACKWARD else partial(fake, made))


def read_kept(made: DeclaredOperator, ctx: ImportContext, given: Sequence[Any], problem: str) -> list[Value]:
    """Add the operation of a call to a graph, and return its results."""
    form = _form(made, problem, ctx.gradients)
    names = dict(zip(form.operands, given, strict=True))
    found = ctx.add_steps([form.node], names)
    return [found[name] for name in form.node.outputs]


def read_kept_backward(made: DeclaredOperator, ctx: ImportContext, given: Sequence[Any], problem: str) -> list[Value]:
    """Add the gradients of a call to a graph, and return them."""
    form, parsed = _form(made, problem, ctx.gradients), BackwardCall.parse(problem)
    found = ctx.add_steps(form.steps, dict(zip(form.read, given, strict=True)))
    return [found.get(f"d{name}") or ctx.zeros_of(form.types[name]) for name in parsed.wanted]


def _form(made: DeclaredOperator, problem: str, gradients: Gradients | None = None) -> KeptForm:
    form = kept_form(made, problem, gradients)
    assert form is not None, "calls are made of forms"
    return form


def _fake(made: DeclaredOperator, given: Sequence[Any], problem: str) -> list[Any]:
    form = _form(made, problem)
    return [empty_tensor(form.types[name], given[0].device) for name in form.node.outputs]


def _run(made: DeclaredOperator, given: Sequence[Any], problem: str) -> list[Any]:
    return _run_graph(made, given, problem, lambda form: form.operands, read_kept)


def _run_backward(made: DeclaredOperator, given: Sequence[Any], problem: str) -> list[Any]:
    return _run_graph(made, given, problem, lambda form: form.read, read_kept_backward)


def _run_graph(
    made: DeclaredOperator,
    given: Sequence[Any],
    problem: str,
    names_of: Callable[[KeptForm], tuple[str, ...]],
    read: Callable[..., list[Value]],
) -> list[Any]:
    """Run the kernels of an operator, outside of a captured graph."""

    def graph() -> CapturedGraph:
        ctx = ImportContext(made.registry.instances.infer, gradients=Gradients(made.registry, dict(made.texts)))
        form = _form(made, problem, ctx.gradients)
        names = {name: Value(name) for name in names_of(form)}
        ctx.types.update({name: form.types[name] for name in names})
        ctx.used_names.update(names)
        found = read(made, ctx, [*names.values()], problem)
        outputs = tuple(ctx.output(value, f"result{n}") for n, value in enumerate(found))
        whole = captured_graph(ctx, made.decl.name, tuple(names), outputs)
        return evolve(whole, inputs=tuple(name if name in whole.graph.inputs else None for name in names))

    key = read.__name__, problem
    with made.lock:
        if (key, given[0].device) not in made.compiled:
            made.compiled[key, given[0].device] = function_of_tensors(graph(), given[0].device, made.compile_graph)
    return made.compiled[key, given[0].device](*given)
