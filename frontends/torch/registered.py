"""The operators of PyTorch that declarations became, and how calls of them are read in a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...ir import Node, UsageError, quote
from ...ops import Registry
from ...ops.language import OpDecl
from .declared import NAMESPACE, BackwardCall, DeclaredOperator, gradients_of, plain
from .program import CompileGraph
from .reader import Convert, Reader, Value

#: The operators that declarations became, by name.
OPERATORS: dict[str, DeclaredOperator] = {}


def define_operator(
    decl: OpDecl, registry: Registry, texts: Mapping[str, str], compile_graph: CompileGraph, name: str = ""
) -> Any:
    """Register a declaration, and its gradient, as operators of PyTorch; return the first, which is called as the
    declaration is, or `name`.

    `texts` are what the vocabulary `registry` has besides the built-in one. Raises `UsageError` where an operator of
    the name was made of another declaration.
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
    return made


def conversion(name: str) -> Convert | None:
    """Return how a call of a declared operator is read, None where it is another one's."""
    space, _, rest = name.partition(".")
    op, forward = rest.removesuffix(".default"), OPERATORS.get(rest.removesuffix(".default"))
    if space != NAMESPACE:
        return None
    if forward is not None:
        return partial(_read_forward, forward)
    made = OPERATORS.get(op.removesuffix("_backward"))
    return None if made is None else partial(_read_backward, made)


def _read_forward(made: DeclaredOperator, reader: Reader, *operands: Any, **attributes: Any) -> Any:
    reader.gradients.declare(made.texts)
    inputs, given = tuple(made.flat(operands)), plain(attributes)
    instance = made.instance([None if v is None else reader.type(v) for v in inputs], given)
    outputs = tuple(Value(reader.fresh(f"{reader.origin}.{name}")) for name in instance.outputs)
    reader.add(Node(reader.fresh(f"{reader.origin}.{made.decl.name}"), made.decl.name, inputs, outputs, given))
    return made.packed(outputs)


def _read_backward(made: DeclaredOperator, reader: Reader, saved: Sequence[Any], problem: str) -> list[Value]:
    reader.gradients.declare(made.texts)
    parsed = BackwardCall.parse(problem)
    read = made.backward_graph(parsed).graph.inputs
    instance = made.instance(parsed.operands, parsed.attributes)
    return gradients_of(reader, instance, dict(zip(read, saved, strict=True)), parsed)


def _keyword_only(made: DeclaredOperator) -> Callable[..., None]:
    """Return what keeps values for the backward pass, as PyTorch calls it where there are attributes, and where not."""
    if not made.decl.attributes:
        return lambda ctx, inputs, output: made.remember(ctx, inputs, output)

    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        made.remember(ctx, inputs, output, keyword_only_inputs)

    return setup
