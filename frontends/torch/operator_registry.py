"""Registry of declared operators, and conversions of their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...ir import Node, UsageError, quote
from ...ops import Registry
from ...ops.language import OpDecl
from .declared_operator import NAMESPACE, BackwardCall, DeclaredOperator, gradients_of, plain
from .import_context import Convert, ImportContext, Value
from .kept_results import KEPT, KEPT_BACKWARD, define_kept, read_kept, read_kept_backward
from .program import CompileGraph

#: Operators of declarations, by name.
OPERATORS: dict[str, DeclaredOperator] = {}


def define_operator(
    decl: OpDecl, registry: Registry, texts: Mapping[str, str], compile_graph: CompileGraph, name: str = ""
) -> Any:
    """Register a declaration, and its gradient, as operators of PyTorch.

    Returns the first, which is called as the declaration is, or `name`. `texts` are the declarations of the vocabulary
    `registry` besides the built-in ones. Raises `UsageError` where an operator of the name exists for another
    declaration.
    """
    name = name or decl.name
    known = OPERATORS.get(name)
    if known is not None and known.decl.digest != decl.digest:
        raise UsageError(
            f"operator {quote(name)} was made of another declaration",
            hint="PyTorch's operators last as long as the process: rename it, or start another process",
        )
    if known is None:
        OPERATORS[name] = _register(DeclaredOperator(name, decl, registry, texts, compile_graph))
    return getattr(getattr(torch.ops, NAMESPACE), name)


def _register(made: DeclaredOperator) -> DeclaredOperator:
    name, backward = f"{NAMESPACE}::{made.name}", f"{NAMESPACE}::{made.name}_backward"
    tags = (torch.Tag.pt2_compliant_tag,)
    torch.library.define(name, made.schema, tags=tags)
    torch.library.define(backward, "(Tensor[] saved, str problem) -> Tensor[]", tags=tags)
    torch.library.impl(name, ("cpu", "cuda"), made.forward)
    torch.library.impl(backward, ("cpu", "cuda"), made.run_backward)
    torch.library.register_fake(name, made.fake)
    torch.library.register_fake(backward, made.fake_backward)
    torch.library.register_autograd(name, made.backward, setup_context=_keyword_only(made))
    torch.library.register_autograd(backward, made.refuse)
    define_kept(made, NAMESPACE)
    return made


def operator_of(target: object, end: str = "") -> DeclaredOperator | None:
    """Return the declared operator of a call's target, whose name has an end."""
    space, _, rest = str(target).partition(".")
    name = rest.removesuffix(".default")
    return OPERATORS.get(name.removesuffix(end)) if space == NAMESPACE and name.endswith(end) else None


def conversion(name: str) -> Convert | None:
    """Return the conversion of a declared operator's call, else None."""
    space, _, rest = name.partition(".")
    op, forward = rest.removesuffix(".default"), OPERATORS.get(rest.removesuffix(".default"))
    if space != NAMESPACE:
        return None
    if forward is not None:
        return partial(_read_forward, forward)
    for end, read in ((KEPT_BACKWARD, read_kept_backward), (KEPT, read_kept)):
        if (made := OPERATORS.get(op.removesuffix(end))) is not None and op.endswith(end):
            return partial(read, made)
    made = OPERATORS.get(op.removesuffix("_backward"))
    return None if made is None else partial(_read_backward, made)


def _read_forward(made: DeclaredOperator, ctx: ImportContext, *operands: Any, **attributes: Any) -> Any:
    ctx.gradients.declare(made.texts)
    inputs, given = tuple(made.flatten_operands(operands)), plain(attributes)
    instance = made.instance([None if v is None else ctx.type(v) for v in inputs], given)
    outputs = tuple(Value(ctx.fresh(f"{ctx.origin}.{name}")) for name in instance.outputs)
    ctx.add(Node(ctx.fresh(f"{ctx.origin}.{made.decl.name}"), made.decl.name, inputs, outputs, given))
    return made.pack_results(outputs)


def _read_backward(made: DeclaredOperator, ctx: ImportContext, saved: Sequence[Any], problem: str) -> list[Value]:
    ctx.gradients.declare(made.texts)
    parsed = BackwardCall.parse(problem)
    read = made.backward_graph(parsed).graph.inputs
    instance = made.instance(parsed.operands, parsed.attributes)
    return gradients_of(ctx, instance, dict(zip(read, saved, strict=True)), parsed)


def _keyword_only(made: DeclaredOperator) -> Callable[..., None]:
    """Return the function that saves values for the backward pass, as PyTorch calls it with and without attributes."""
    if not made.decl.attributes:
        return lambda ctx, inputs, output: made.save_for_backward(ctx, inputs, output)

    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        made.save_for_backward(ctx, inputs, output, keyword_only_inputs)

    return setup
