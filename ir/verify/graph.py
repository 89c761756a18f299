"""Verifier of graph IR: named checks, each of one invariant.

A check yields every violation it finds; `verify_graph` runs all of them and reports everything at once. Types are
compared with the declarations through an inference function that the caller gives, so that this module knows no
vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ..errors import CutsError, UnknownOp, VerifyError, convert_error, quote, raise_all, single_errors
from ..graph import Graph, Node
from ..types import TensorType, dtype_of_numpy

MAX_NODES = 1 << 17
MAX_VALUES = 1 << 18
MAX_RANK = 8
MAX_ELEMENTS = (1 << 31) - 1

#: Returns the types of a node's outputs, given those of its inputs (None where one is absent), or raises a `CutsError`.
Infer: TypeAlias = Callable[[Node, Sequence[TensorType | None]], Sequence[TensorType]]


def check_limits(graph: Graph) -> Iterator[VerifyError]:
    """The graph has a bounded number of nodes and values."""
    for what, found, most in (("nodes", len(graph.nodes), MAX_NODES), ("values", len(graph.types), MAX_VALUES)):
        if found > most:
            yield VerifyError(
                f"graph {quote(graph.name)}: expected at most {most} {what}, found {found}", hint="split the graph"
            )


def check_names_are_text(graph: Graph) -> Iterator[VerifyError]:
    """Every name can be written to a file.

    It holds no half of a surrogate pair.
    """
    names = (graph.name, *graph.types, *(name for node in graph.nodes for name in (node.name, node.op, node.origin)))
    for name in names:
        if any("\ud800" <= c <= "\udfff" for c in name):
            yield VerifyError(f"name {quote(name)} is not text: it holds half of a surrogate pair")


def type_problem(type_: TensorType, stored: bool = True) -> str:
    """Return the fault of an illegal type, or an empty text.

    Faults are the rank, a negative extent, and too many elements for a tensor that is `stored`.
    """
    if len(type_.shape) > MAX_RANK:
        return f"expected at most {MAX_RANK} axes, found {len(type_.shape)}"
    if any(extent < 0 for extent in type_.shape):
        return f"expected extents of at least 0, found {list(type_.shape)}"
    if stored and type_.size > MAX_ELEMENTS:
        return f"expected fewer than 2^31 elements, found {type_.size}"
    return ""


def check_types_legal(graph: Graph) -> Iterator[VerifyError]:
    """Every type has valid rank, extents and size.

    At most 8 axes and no negative extents; inputs, constants and outputs have fewer than 2^31 elements. Others may have
    more where one kernel computes and uses them.
    """
    stored = {*graph.inputs, *graph.constants, *graph.outputs}
    for value, type_ in graph.types.items():
        if problem := type_problem(type_, value in stored):
            yield VerifyError(f"value {quote(value)}: {problem}")


def check_node_names_unique(graph: Graph) -> Iterator[VerifyError]:
    """Every node has a name of its own."""
    counts = Counter(node.name for node in graph.nodes)
    last = {node.name: node.span for node in graph.nodes}
    for name, count in counts.items():
        if count > 1:
            yield VerifyError(f"{count} nodes are named {quote(name)}", last[name], "give every node a name of its own")


def check_values_defined_once(graph: Graph) -> Iterator[VerifyError]:
    """Every value has one definition.

    It is an input, a constant or an output of one node.
    """
    sources: dict[str, list[str]] = {}
    for value in graph.inputs:
        sources.setdefault(value, []).append("the graph's inputs")
    for value in graph.constants:
        sources.setdefault(value, []).append("the constants")
    for node in graph.nodes:
        for value in node.outputs:
            sources.setdefault(value, []).append(f"node {quote(node.name)}")
    for value, places in sources.items():
        if len(places) > 1:
            yield VerifyError(f"value {quote(value)} is defined {len(places)} times: by {' and by '.join(places)}")


def check_nodes_have_outputs(graph: Graph) -> Iterator[VerifyError]:
    """Every node defines at least one value."""
    for node in graph.nodes:
        if not node.outputs:
            yield VerifyError(f"node {quote(node.name)} ({node.op}) defines no value", node.span)


def find_cycle(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes of one cycle in data-flow order, or nothing."""
    producer = {value: node for node in nodes for value in node.outputs}
    done: set[int] = set()
    for root in nodes:
        path: list[tuple[Node, Iterator[str]]] = [(root, iter(root.operands))]
        on_path = {id(root): 0}
        while path and id(root) not in done:
            node, operands = path[-1]
            value = next(operands, None)
            if value is None:
                done.add(id(node))
                del on_path[id(node)]
                path.pop()
            elif (before := producer.get(value)) is not None and id(before) not in done:
                if id(before) in on_path:
                    return _from_first([n for n, _ in reversed(path[on_path[id(before)] :])], nodes)
                on_path[id(before)] = len(path)
                path.append((before, iter(before.operands)))
    return ()


def _from_first(cycle: list[Node], nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Turn a cycle so that the node listed first in the graph comes first."""
    members = {id(node) for node in cycle}
    first = next(node for node in nodes if id(node) in members)
    start = next(n for n, node in enumerate(cycle) if node is first)
    return (*cycle[start:], *cycle[:start])


def check_no_cycles(graph: Graph) -> Iterator[VerifyError]:
    """No value depends on itself."""
    if cycle := find_cycle(graph.nodes):
        names = [quote(node.name) for node in cycle]
        yield VerifyError(
            f"nodes form a cycle: {' -> '.join([*names, names[0]])}",
            cycle[0].span,
            "break the loop at one of these nodes",
        )


def check_values_defined_before_use(graph: Graph) -> Iterator[VerifyError]:
    """A node reads only inputs, constants and values of nodes before it.

    A cycle, which no order mends, belongs to another check.
    """
    later = {value for node in graph.nodes for value in node.outputs}
    cyclic = bool(find_cycle(graph.nodes))
    known = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        for value in dict.fromkeys(node.operands):
            if value not in known and not (cyclic and value in later):
                why = "before its definition" if value in later else "that nothing defines"
                yield VerifyError(f"node {quote(node.name)} ({node.op}) reads value {quote(value)} {why}", node.span)
        known.update(node.outputs)


def check_outputs_defined(graph: Graph) -> Iterator[VerifyError]:
    """The graph has outputs, without repeats, and each is a defined value."""
    if not graph.outputs:
        yield VerifyError(f"graph {quote(graph.name)} has no outputs", hint="name at least one value to compute")
    known = {*graph.inputs, *graph.constants, *(value for node in graph.nodes for value in node.outputs)}
    for value, count in Counter(graph.outputs).items():
        if value not in known:
            yield VerifyError(f"output {quote(value)} of the graph is a value that nothing defines")
        if count > 1:
            yield VerifyError(f"output {quote(value)} of the graph is listed {count} times")


def check_values_typed(graph: Graph, unknown: Container[str] = ()) -> Iterator[VerifyError]:
    """Every defined value has a type, and every typed value a definition.

    `unknown` values lack one because of another fault.
    """
    defined = dict.fromkeys(
        (*graph.inputs, *graph.constants, *(value for node in graph.nodes for value in node.outputs))
    )
    for value in defined:
        if value not in graph.types and value not in unknown:
            yield VerifyError(f"value {quote(value)} has no type")
    for value in graph.types:
        if value not in defined:
            yield VerifyError(f"value {quote(value)} has a type but nothing defines it")


def check_constants_typed(graph: Graph) -> Iterator[VerifyError]:
    """The array of a constant has the constant's element type and shape."""
    for value, array in graph.constants.items():
        type_ = graph.types.get(value)
        if type_ is not None and (dtype_of_numpy(array.dtype) != type_.dtype or array.shape != type_.shape):
            found = f"{array.dtype}{list(array.shape)}"
            yield VerifyError(f"constant {quote(value)}: expected an array of {type_}, found {found}")


def check_state(graph: Graph) -> Iterator[VerifyError]:
    """Every state tensor has an input and output of its own.

    Both have the type of its initial value.
    """
    used: set[str] = set()
    for name, tensor in graph.interface.state.items():
        for kind, value, values in (("input", tensor.input, graph.inputs), ("output", tensor.output, graph.outputs)):
            type_ = graph.types.get(value)
            found = tensor.initial
            if value not in values or value in used:
                yield VerifyError(f"state {quote(name)}: expected an {kind} of its own, found {quote(value)}")
            elif type_ is not None and (dtype_of_numpy(found.dtype) != type_.dtype or found.shape != type_.shape):
                given = f"{found.dtype}{list(found.shape)}"
                yield VerifyError(f"state {quote(name)}: its {kind} is {type_}, its initial value is {given}")
            used.add(value)


def check_updates(graph: Graph) -> Iterator[VerifyError]:
    """Every updated input is replaced by an output of its type.

    No two inputs are replaced by one output.
    """
    used: set[str] = set()
    for given, new in graph.interface.updates.items():
        if given not in graph.inputs or new not in graph.outputs or new in used:
            yield VerifyError(
                f"update of {quote(given)}: expected an input and an output of its own, found {quote(new)}"
            )
        elif graph.types.get(given) != graph.types.get(new):
            types = f"the input is {graph.types.get(given)}, the output {graph.types.get(new)}"
            yield VerifyError(f"update of {quote(given)}: {types}")
        used.add(new)


def check_types_follow_declarations(graph: Graph, infer: Infer) -> Iterator[VerifyError]:
    """Every node's outputs have the types derived from its declaration."""
    for node in graph.nodes:
        operands = [None if v is None else graph.types.get(v) for v in node.inputs]
        untyped = any(v is not None and t is None for v, t in zip(node.inputs, operands, strict=True))
        try:
            expected = infer(node, operands)
        except CutsError as error:
            yield from _at_node(node, error) if not untyped or isinstance(error, UnknownOp) else ()
            continue
        if untyped:
            continue  # another check reports the missing type
        yield from compare_types(node, expected, graph.types)


def compare_types(node: Node, expected: Sequence[TensorType], types: Mapping[str, TensorType]) -> Iterator[VerifyError]:
    """Yield the differences between derived and recorded types of a node."""
    where = f"node {quote(node.name)} ({node.op})"
    if len(expected) != len(node.outputs):
        yield VerifyError(f"{where}: expected {len(expected)} outputs, found {len(node.outputs)}", node.span)
        return
    for value, type_ in zip(node.outputs, expected, strict=True):
        found = types.get(value)
        if found is not None and found != type_:
            yield VerifyError(f"{where}: expected {type_} for output {quote(value)}, found {found}", node.span)


def _at_node(node: Node, error: CutsError) -> Iterator[VerifyError]:
    for part in single_errors(error):
        yield convert_error(part, VerifyError, f"node {quote(node.name)} ({node.op}): ", node.span)


CHECKS: tuple[Callable[[Graph], Iterator[VerifyError]], ...] = (
    check_limits,
    check_names_are_text,
    check_types_legal,
    check_node_names_unique,
    check_values_defined_once,
    check_nodes_have_outputs,
    check_no_cycles,
    check_values_defined_before_use,
    check_outputs_defined,
    check_constants_typed,
    check_state,
    check_updates,
)


def violations(graph: Graph, infer: Infer | None = None) -> Iterable[VerifyError]:
    """Yield every broken invariant of a graph.

    Types are compared with the declarations where `infer` is given. Violations of declarations come first: an unknown
    operation leaves its results, and all that depend on them, without types, and these are not reported.
    """
    wrong = [] if infer is None else list(check_types_follow_declarations(graph, infer))
    yield from wrong
    for check in CHECKS:
        yield from check(graph)
    yield from check_values_typed(graph, () if infer is None else _underivable(graph, infer))


def _underivable(graph: Graph, infer: Infer) -> set[str]:
    """Return the values whose types cannot be derived, as their node does not fit its declaration or reads such a
    value.
    """
    found: set[str] = set()
    for node in graph.nodes:
        if any(v not in graph.types for v in node.operands) or not _fits(node, graph, infer):
            found.update(node.outputs)
    return found


def _fits(node: Node, graph: Graph, infer: Infer) -> bool:
    try:
        derived = infer(node, [None if v is None else graph.types[v] for v in node.inputs])
    except CutsError:
        return False
    return len(derived) == len(node.outputs)


def verify_graph(graph: Graph, infer: Infer | None = None) -> Graph:
    """Return a valid graph, else raise all violations at once."""
    raise_all(list(violations(graph, infer)))
    return graph
