"""Dispatch: converts every call of a PyTorch graph and collects errors."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...ir import CutsError, GraphError, Node, TensorType, VocabularyError, quote
from ...ops import RolledLoop, SequenceAxis, declare_loop, loop_body
from ...ops.language import Registry
from . import operator_registry as registered
from .calls import COMPUTES_SIZE, constant_result, tensor_of
from .import_context import DTYPES, Convert, ImportContext, Value, array_of
from .operators import ELEMENTWISE, OF_COMPLEX, TABLE, complex_pairs, masks


class UnsupportedOperationError(GraphError):
    """Raised for a call of an operation without a conversion."""


#: Calls that raise an error for some values, and else have no effect.
CHECKS = frozenset(("aten._linalg_check_errors.default",))


def convert_graph(graph: torch.fx.Graph, ctx: ImportContext) -> None:
    """Convert every call that a result needs.

    Raises `VocabularyError` with the errors of all nodes.
    """
    failures: dict[torch.fx.Node, CutsError] = {}
    for node in live_nodes(graph):
        if any(n in ctx.unknown for n in node.all_input_nodes):
            ctx.unknown.add(node)
            continue
        try:
            convert_node(node, ctx)
        except CutsError as error:
            ctx.unknown.add(node)
            failures[node] = error
    if failures:
        raise VocabularyError(faults(failures), [node.name for node in failures])


def convert_node(node: torch.fx.Node, ctx: ImportContext) -> None:
    """Convert a call or an attribute; other nodes have no conversion.

    Raises `CutsError` where it cannot be converted.
    """
    if node.op == "get_attr":
        define(node, attribute_of(node.graph, str(node.target)), ctx)
    elif node.op == "call_function":
        ctx.origin, ctx.node = node.name, node
        ctx.values[node] = found = _convert(node, ctx)
        _check_type(node, found, ctx)


def _check_type(node: torch.fx.Node, found: Any, ctx: ImportContext) -> None:
    """Raise where a conversion has another type than the traced one, which results have memory for."""
    traced = tensor_of(node)
    if traced is None or not isinstance(found, Value):
        return
    own, wanted = ctx.type(found), (DTYPES.get(traced.dtype), tuple(traced.shape))
    if (own.dtype, own.shape) != wanted:
        raise GraphError(
            f"node {quote(node.name)} ({node.target}): expected {traced.dtype} {list(traced.shape)}, found {own}",
            hint="report this with the model",
        )


def live_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the nodes that results depend on, without assertions."""
    needed: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.meta.get(COMPUTES_SIZE):
            needed.add(node)
        if node.op == "output" or node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]


def define(node: torch.fx.Node, held: Any, ctx: ImportContext) -> None:
    """Define a parameter, or a branch, which is converted at its use."""
    if isinstance(held, torch.fx.GraphModule):
        ctx.values[node] = held
    elif held.dtype in complex_pairs.COMPLEX:
        ctx.values[node] = complex_pairs.constant(ctx, held, node.name)
    else:
        ctx.define_constant(node, array_of(held))


def attribute_of(graph: torch.fx.Graph, path: str) -> Any:
    """Return a tensor or a branch of a graph's module."""
    found: Any = graph.owning_module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def results(graph: torch.fx.Graph) -> list[Any]:
    """Return the results of a graph."""
    found = next(node for node in graph.nodes if node.op == "output").args[0]
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _convert(node: torch.fx.Node, ctx: ImportContext) -> Any:
    """Return the value of a call."""
    if node.target is operator.getitem:
        return ctx.values[node.args[0]][node.args[1]]  # type: ignore[index]
    name = str(node.target)
    where = f"node {quote(node.name)} ({name})"
    try:
        arguments = [ctx.argument(a) for a in node.args]
        keywords = {k: ctx.argument(v) for k, v in node.kwargs.items()}
        convert = _conversion(name, [*arguments, *keywords.values()], keywords.get("dtype"))
        if convert is not None:
            return convert(ctx, *arguments, **keywords)
        held = constant_result(node)
        if held is not None:
            define(node, held, ctx)
            return ctx.values[node]
    except CutsError as error:
        raise GraphError(f"{where}: {error.message}", hint=error.hint) from error
    except TypeError as error:
        raise GraphError(f"{where}: an argument is not supported ({error})") from error
    except Exception as error:  # of any kind: a conversion may ask PyTorch
        raise GraphError(f"{where}: {type(error).__name__}: {error}", hint="report this with the model") from error
    inner = node.args[0] if node.args and isinstance(node.args[0], torch._ops.OpOverload) else None
    raise UnsupportedOperationError(name if inner is None else f"{name} of {inner}")


def _conversion(name: str, values: list[Any], dtype: object) -> Convert | None:
    """Return the conversion of a call with these operands, else None."""
    if complex_pairs.any_complex(values) or dtype in complex_pairs.COMPLEX:
        return complex_pairs.conversion(name, OF_COMPLEX, TABLE)
    convert = conversion(name)
    if convert is None or convert is TABLE["aten.index_put"] or not masks.any_masked(values):
        return convert
    return masks.convert_masked(convert) if convert in ELEMENTWISE else masks.refuse_choice


def conversion(name: str) -> Convert | None:
    """Return the conversion of an operation's calls, else None."""
    return TABLE.get(name) or TABLE.get(name.rpartition(".")[0]) or registered.conversion(name)


def faults(failures: Mapping[torch.fx.Node, CutsError]) -> list[CutsError]:
    """Return an error that lists unsupported operations, then the others."""
    unsupported: dict[str, list[str]] = {}
    for node, error in failures.items():
        if isinstance(error, UnsupportedOperationError):
            unsupported.setdefault(error.message, []).append(node.name)
    others = [error for error in failures.values() if not isinstance(error, UnsupportedOperationError)]
    if not unsupported:
        return others
    parts = [
        f"{op} (node{'s' * (len(names) > 1)} {', '.join(map(quote, names[:4]))})"
        for op, names in sorted(unsupported.items())
    ]
    count = len(parts)
    message = f"{count} operation{'s are' if count > 1 else ' is'} not supported: {'; '.join(parts)}"
    return [GraphError(message), *others]


def _branches(
    ctx: ImportContext, condition: Any, yes: torch.fx.GraphModule, no: torch.fx.GraphModule, operands: Sequence[Any]
) -> Any:
    """Compute both branches of a condition, and select element by element."""
    if not isinstance(condition, Value):
        return _inline(ctx, yes if condition else no, operands)
    pairs = list(zip(_inline(ctx, yes, operands), _inline(ctx, no, operands), strict=True))
    if any(not isinstance(a, Value) or ctx.type(a) != ctx.type(b) for a, b in pairs):
        ctx.fail("the branches of a condition must give real tensors of the same types")
    return tuple(ctx.emit("where", condition, a, b) for a, b in pairs)


def _inline(ctx: ImportContext, module: torch.fx.GraphModule, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a branch.

    Values of its attributes have the names of its own nodes, so that a branch may be inlined twice.
    """
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    ctx.values.update(zip(places, operands, strict=True))
    origin = ctx.origin
    convert_graph(module.graph, ctx)
    ctx.origin = origin
    return [ctx.value(node) for node in results(module.graph)]


def _scan(
    ctx: ImportContext,
    combine: torch.fx.GraphModule,
    init: Sequence[Value],
    xs: Sequence[Value],
    others: Sequence[Any] = (),
) -> tuple[Value, ...]:
    """Convert a scan over the first axis of tensors to one operation.

    Its results are the last states, then the stacked results of each step.
    """
    first, steps = len(ctx.nodes), ctx.shape(xs[0])[0]
    states = [ctx.part("state", ctx.type(value)) for value in init]
    elements = [ctx.part("element", TensorType(ctx.type(value).dtype, ctx.shape(value)[1:])) for value in xs]
    results = _inline(ctx, combine, [*states, *elements, *others])
    body = loop_body(ctx.nodes[first:], ctx.types, (*states, *elements), results)
    del ctx.nodes[first:]
    if steps < 2:
        return _single_step(ctx, combine, init, xs, others)
    along: dict[str, SequenceAxis] = dict.fromkeys(elements, SequenceAxis())
    repetition = RolledLoop(body, steps, tuple(states), along, (SequenceAxis(),) * (len(results) - len(states)))
    name, text = declare_loop(repetition, Registry.builtin().instances)
    names = tuple(Value(ctx.fresh(f"{ctx.origin}.{n}")) for n in range(len(results)))
    operands = (*init, *xs, *repetition.same)
    ctx.add(Node(ctx.fresh(f"{ctx.origin}.{name}"), name, operands, names, {}, ctx.origin, declaration=text))
    return names


def _single_step(
    ctx: ImportContext, combine: torch.fx.GraphModule, init: Sequence[Value], xs: Sequence[Value], others: Sequence[Any]
) -> tuple[Value, ...]:
    """Repeat a graph once."""
    elements = [ctx.reshape(value, ctx.shape(value)[1:]) for value in xs]
    results = _inline(ctx, combine, [*init, *elements, *others])
    rows = [ctx.reshape(value, (1, *ctx.shape(value))) for value in results[len(init) :]]
    return (*results[: len(init)], *rows)


def _effects(ctx: ImportContext, token: Any, call: Any, *_: Any, **__: Any) -> tuple[None, ...]:
    """Convert a call for its effect: a check of factors says nothing of results, nor does its token."""
    if str(call) not in CHECKS:
        ctx.fail(f"the effect of {call} is not supported")
    return (None,)


TABLE["cond"] = _branches
TABLE["with_effects"] = _effects
TABLE["scan"] = _scan
