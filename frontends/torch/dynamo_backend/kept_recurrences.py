"""Recurrences of joint graphs with further results, which gradients read (`operator_registry`)."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from typing import Any

import torch

from ..declared_operator import BackwardCall, DeclaredOperator
from ..import_context import TORCH_TYPES
from ..operator_registry import KEPT_BACKWARD_END, KEPT_END, KeptForm, kept_form, operator_of


def keep_recurrences(graph: torch.fx.Graph) -> None:
    """Let recurrences return further values, and their gradients read them."""
    for node in list(graph.nodes):
        made = operator_of(node.target, "_backward") if node.op == "call_function" else None
        if made is None:
            continue
        saved, problem = node.args
        form = kept_form(made, problem)
        read = made.backward_graph(BackwardCall.parse(problem)).graph.inputs
        values = dict(zip(read, saved, strict=True))
        forward = None if form is None else _forward_of(graph, made, form, values)
        if forward is not None and form is not None:
            _keep(graph, made, form, problem, forward, node, values)


def _forward_of(
    graph: torch.fx.Graph, made: DeclaredOperator, form: KeptForm, values: Mapping[str, Any]
) -> torch.fx.Node | None:
    """Return the only call whose operands a gradient reads."""
    found = []
    for node in graph.nodes:
        if node.op == "call_function" and operator_of(node.target) is made:
            given = [value for value in made.flatten_operands(node.args) if value is not None]
            operands = dict(zip(form.operands, given, strict=False))
            if len(given) == len(form.operands) and all(values.get(n, value) is value for n, value in operands.items()):
                found.append(node)
    return found[0] if len(found) == 1 else None


def _keep(
    graph: torch.fx.Graph,
    made: DeclaredOperator,
    form: KeptForm,
    problem: str,
    forward: torch.fx.Node,
    backward: torch.fx.Node,
    values: Mapping[str, Any],
) -> None:
    """Replace a recurrence and its gradient by those with kept values."""
    given = [value for value in made.flatten_operands(forward.args) if value is not None]
    space = getattr(torch.ops, str(forward.target).partition(".")[0])
    like = next(value for value in given if isinstance(value, torch.fx.Node)).meta["val"]
    with graph.inserting_before(forward):
        kept = graph.call_function(getattr(space, made.name + KEPT_END).default, (given, problem))
    types = [form.types[name] for name in form.node.outputs]
    kept.meta = {**forward.meta, "val": [like.new_empty(t.shape, dtype=TORCH_TYPES[t.dtype]) for t in types]}
    forward.replace_all_uses_with(kept)
    graph.erase_node(forward)
    operands = dict(zip(form.operands, given, strict=True))
    read = []
    with graph.inserting_before(backward):
        for name in form.read:
            value = values.get(name, operands.get(name))
            if value is None:
                place = form.node.outputs.index(name)
                value = graph.call_function(getitem, (kept, place))
                value.meta = {**kept.meta, "val": kept.meta["val"][place]}
            read.append(value)
        new = graph.call_function(getattr(space, made.name + KEPT_BACKWARD_END).default, (read, problem))
    new.meta = dict(backward.meta)
    backward.replace_all_uses_with(new)
    graph.erase_node(backward)
