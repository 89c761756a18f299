"""The walk over a PyTorch graph: finds the conversion of every call, and gathers what went wrong."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...ir import CutsError, GraphError, Node, TensorType, quote, raise_all
from ...ops import Along, Repetition, declare_repetition, turn_of
from ...ops.language import Registry
from . import registered
from .calls import result_known
from .operators import ELEMENTWISE, OF_COMPLEX, TABLE, complex_pairs, masks
from .reader import Convert, Reader, Value, array_of


def walk(graph: torch.fx.Graph, reader: Reader) -> None:
    """Convert every call that a result needs, and raise all that went wrong at once."""
    errors: list[CutsError] = []
    unsupported: dict[str, list[str]] = {}
    for node in _needed(graph):
        if node.op == "call_function" and not any(n in reader.unknown for n in node.all_input_nodes):
            _convert(node, reader, errors, unsupported)
        elif node.op == "call_function":
            reader.unknown.add(node)
        elif node.op == "get_attr":
            define(node, _attribute(graph, str(node.target)), reader)
    raise_all(_faults(unsupported) + errors)


def _needed(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the nodes that results depend on, in order: no assertion is among them, nor what only assertions read."""
    needed: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]


def define(node: torch.fx.Node, held: Any, reader: Reader) -> None:
    """Make a parameter known, or a branch, which is converted where it is taken."""
    if isinstance(held, torch.fx.GraphModule):
        reader.values[node] = held
    elif held.dtype in complex_pairs.COMPLEX:
        reader.values[node] = complex_pairs.constant(reader, held, node.name)
    else:
        reader.define_constant(node, array_of(held))


def _attribute(graph: torch.fx.Graph, path: str) -> Any:
    """Return a tensor, or a branch, that a graph's module holds."""
    found: Any = graph.owning_module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def results(graph: torch.fx.Graph) -> list[Any]:
    """Return what a graph returns."""
    found = next(node for node in graph.nodes if node.op == "output").args[0]
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _convert(node: torch.fx.Node, reader: Reader, errors: list[CutsError], unsupported: dict[str, list[str]]) -> None:
    if node.target is operator.getitem:
        reader.values[node] = reader.values[node.args[0]][node.args[1]]  # type: ignore[index]
        return
    name = str(node.target)
    try:
        arguments = [reader.argument(a) for a in node.args]
        keywords = {k: reader.argument(v) for k, v in node.kwargs.items()}
    except CutsError as error:
        reader.unknown.add(node)
        errors.append(GraphError(f"node {quote(node.name)} ({name}): {error.message}", hint=error.hint))
        return
    if complex_pairs.any_complex([*arguments, *keywords.values()]) or keywords.get("dtype") in complex_pairs.COMPLEX:
        convert = complex_pairs.conversion(name, OF_COMPLEX, TABLE)
    else:
        convert = conversion(name)
        if (
            convert is not None
            and masks.any_chosen([*arguments, *keywords.values()])
            and convert is not TABLE["aten.index_put"]
        ):
            convert = masks.of_chosen(convert) if convert in ELEMENTWISE else masks.refuse_choice
    if convert is None:
        known = result_known(node)
        if known is not None:
            define(node, known, reader)
            return
        unsupported.setdefault(name, []).append(node.name)
        reader.unknown.add(node)
        return
    try:
        reader.origin, reader.node = node.name, node
        reader.values[node] = convert(reader, *arguments, **keywords)
    except CutsError as error:
        reader.unknown.add(node)
        errors.append(GraphError(f"node {quote(node.name)} ({name}): {error.message}", hint=error.hint))
    except TypeError as error:
        reader.unknown.add(node)
        errors.append(GraphError(f"node {quote(node.name)} ({name}): an argument is not supported ({error})"))


def conversion(name: str) -> Convert | None:
    """Return how calls of an operation are read, None where they are not."""
    return TABLE.get(name) or TABLE.get(name.rpartition(".")[0]) or registered.conversion(name)


def _faults(unsupported: Mapping[str, Sequence[str]]) -> list[CutsError]:
    if not unsupported:
        return []
    parts = [
        f"{op} (node{'s' * (len(names) > 1)} {', '.join(map(quote, names[:4]))})"
        for op, names in sorted(unsupported.items())
    ]
    count = len(parts)
    return [GraphError(f"{count} operation{'s are' if count > 1 else ' is'} not supported: {'; '.join(parts)}")]


def _branches(
    reader: Reader, condition: Any, yes: torch.fx.GraphModule, no: torch.fx.GraphModule, operands: Sequence[Any]
) -> Any:
    """Compute both branches of a condition, and choose element by element."""
    if not isinstance(condition, Value):
        return _inlined(reader, yes if condition else no, operands)
    pairs = list(zip(_inlined(reader, yes, operands), _inlined(reader, no, operands), strict=True))
    if any(not isinstance(a, Value) or reader.type(a) != reader.type(b) for a, b in pairs):
        reader.fail("the branches of a condition must give real tensors of the same types")
    return tuple(reader.emit("where", condition, a, b) for a, b in pairs)


def _inlined(reader: Reader, module: torch.fx.GraphModule, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a branch; what it looks up has the names of its own nodes, so that a branch may be taken
    twice.
    """
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    reader.values.update(zip(places, operands, strict=True))
    origin = reader.origin
    walk(module.graph, reader)
    reader.origin = origin
    return [reader.value(node) for node in results(module.graph)]


def _scan(
    reader: Reader,
    combine: torch.fx.GraphModule,
    init: Sequence[Value],
    xs: Sequence[Value],
    others: Sequence[Any] = (),
) -> tuple[Value, ...]:
    """Repeat a graph over the first axis of some tensors, as one operation: its results are the last states, then what
    each step gives, stacked.
    """
    first, steps = len(reader.nodes), reader.shape(xs[0])[0]
    states = [reader.part("state", reader.type(value)) for value in init]
    elements = [reader.part("element", TensorType(reader.type(value).dtype, reader.shape(value)[1:])) for value in xs]
    results = _inlined(reader, combine, [*states, *elements, *others])
    body = turn_of(reader.nodes[first:], reader.types, (*states, *elements), results)
    del reader.nodes[first:]
    if steps < 2:
        return _single_step(reader, combine, init, xs, others)
    along: dict[str, Along] = dict.fromkeys(elements, Along())
    turns = Repetition(body, steps, tuple(states), along, (Along(),) * (len(results) - len(states)))
    name, text = declare_repetition(turns, Registry.builtin().instances)
    names = tuple(Value(reader.fresh(f"{reader.origin}.{n}")) for n in range(len(results)))
    operands = (*init, *xs, *turns.same)
    reader.add(
        Node(reader.fresh(f"{reader.origin}.{name}"), name, operands, names, {}, reader.origin, declaration=text)
    )
    return names


def _single_step(
    reader: Reader, combine: torch.fx.GraphModule, init: Sequence[Value], xs: Sequence[Value], others: Sequence[Any]
) -> tuple[Value, ...]:
    """Repeat a graph once."""
    elements = [reader.reshape(value, reader.shape(value)[1:]) for value in xs]
    results = _inlined(reader, combine, [*init, *elements, *others])
    rows = [reader.reshape(value, (1, *reader.shape(value))) for value in results[len(init) :]]
    return (*results[: len(init)], *rows)


TABLE["cond"] = _branches
TABLE["scan"] = _scan
