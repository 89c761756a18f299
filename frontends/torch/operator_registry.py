"""Registry of declared operators, and conversions of their calls.

The gradient of a recurrence may read kept results; from the operands alone it would compute all steps again:

    y = lstm(x, w, r);  dx, dw, dr = lstm_backward([x, w, r, dy], problem)
      ->   y, c, z = lstm_kept([x, w, r], problem);  dx, dw, dr = lstm_kept_backward([x, w, r, y, c, z, dy], problem)

The operands of `lstm_kept` are those that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import evolve, frozen

from ...ir import Node, TensorType, UsageError, quote
from ...ops import Registry
from ...ops.gradient import Gradients
from ...ops.language import OpDecl
from .captured_graph import CapturedGraph, captured_graph
from .declared_operator import NAMESPACE, BackwardCall, DeclaredOperator, empty_tensor, gradients_of, plain
from .import_context import Convert, ImportContext, Value
from .program import CompileGraph
from .tensors import function_of_tensors

#: Ends of the names of both operators.
KEPT_END, KEPT_BACKWARD_END = "_kept", "_kept_backward"
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
    _define_kept(made)
    return made


def operator_of(target: object, end: str = "") -> DeclaredOperator | None:
    """Return the declared operator of a target whose name has an end."""
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
    for end, read in ((KEPT_BACKWARD_END, _read_kept_backward), (KEPT_END, _read_kept)):
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


@frozen(eq=False)
class KeptForm:
    """Operation with kept results, and the steps of its gradient.

    `types` are those of formal names. `operands` and `read` are the formal names of the arguments of both operators.
    """

    node: Node
    steps: tuple[Node, ...]
    types: Mapping[str, TensorType]
    operands: tuple[str, ...]
    read: tuple[str, ...]


def kept_form(made: DeclaredOperator, problem: str, gradients: Gradients | None = None) -> KeptForm | None:
    """Return the form of a gradient's problem, None where nothing is kept.

    `gradients` get its declarations.
    """
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


def _define_kept(made: DeclaredOperator) -> None:
    """Register both operators of a declaration."""
    runs: Mapping[str, Callable[..., Any]] = {KEPT_END: _run, KEPT_BACKWARD_END: _run_backward}
    fakes: Mapping[str, Callable[..., Any]] = {KEPT_END: partial(_fake, made), KEPT_BACKWARD_END: made.fake_backward}
    for end, run in runs.items():
        name = f"{NAMESPACE}::{made.name}{end}"
        torch.library.define(name, "(Tensor[] given, str problem) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(name, ("cpu", "cuda"), partial(run, made))
        torch.library.register_fake(name, fakes[end])


def _read_kept(made: DeclaredOperator, ctx: ImportContext, given: Sequence[Any], problem: str) -> list[Value]:
    """Add the operation of a call; return its results."""
    form = _form(made, problem, ctx.gradients)
    names = dict(zip(form.operands, given, strict=True))
    found = ctx.add_steps([form.node], names)
    return [found[name] for name in form.node.outputs]


def _read_kept_backward(made: DeclaredOperator, ctx: ImportContext, given: Sequence[Any], problem: str) -> list[Value]:
    """Add the gradients of a call; return them."""
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
    return _run_graph(made, given, problem, lambda form: form.operands, _read_kept)


def _run_backward(made: DeclaredOperator, given: Sequence[Any], problem: str) -> list[Any]:
    return _run_graph(made, given, problem, lambda form: form.read, _read_kept_backward)


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
