"""graph.json: the exchange form of graph IR, with safetensors weights.

`spec/graph.schema.json` describes the document. Inputs and constants carry their types. The types of computed values
are derived from the declarations, and checked against `types` where the document gives them. Nodes may stand in any
order. All faults of a document are reported at once, each with the path of the field or the name of the node.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import evolve

from ..ir import (
    Array,
    CutsError,
    DType,
    Graph,
    GraphError,
    Infer,
    Node,
    Source,
    Span,
    TensorType,
    UsageError,
    atomic_write,
    convert_error,
    find_cycle,
    quote,
    raise_all,
    single_errors,
    type_problem,
    verify_graph,
)
from ..ops.language import Registry
from .files import read_text
from .graph_document import (
    FORMAT,
    NON_FINITE,
    VERSION,
    Constant,
    GraphDocument,
    Input,
    Operation,
    Type,
    document_to_value,
    parse_document,
    structure_document,
)
from .json_places import places_below
from .weights import WeightFile, open_weights, write_weights

MAX_BYTES = 1 << 28
#: Elements up to which `save_graph` writes a constant into the JSON document.
MAX_INLINE_ELEMENTS = 64
#: Text length up to which nodes keep their source for messages.
_MAX_LOCATED_LENGTH = 1 << 24


def load_graph(path: str | os.PathLike[str], infer: Infer | None = None) -> Graph:
    """Read a graph.json file and its weights.

    `infer` derives types where the vocabulary is not the built-in one.
    """
    file = Path(path)
    source = Source(str(file), read_text(file, MAX_BYTES))
    return _build(parse_document(source.text, source.name), file.parent, source, infer)


def graph_from_json(
    source: str | Mapping[str, object], folder: str | os.PathLike[str] | None = None, infer: Infer | None = None
) -> Graph:
    """Read a graph from JSON text or its decoded value.

    `folder` contains the weights file, where there is one.
    """
    text = Source("<json>", source if isinstance(source, str) else "")
    document = (
        parse_document(text.text, text.name) if isinstance(source, str) else structure_document(source, text.name)
    )
    return _build(document, None if folder is None else Path(folder), text, infer)


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph as graph.json, and large constants as `<stem>.safetensors`.

    Raises `UsageError` where they cannot be written, or the graph has state.
    """
    _check_pure(graph)
    file = Path(path)
    large = {name: array for name, array in graph.constants.items() if array.size > MAX_INLINE_ELEMENTS}
    weights = f"{file.stem}.safetensors" if large else None
    if weights:
        write_weights(file.with_name(weights), large)
    with atomic_write(file, "graph") as part:
        part.write_text(_to_text(graph, weights, MAX_INLINE_ELEMENTS), encoding="utf-8")


def graph_to_json(graph: Graph) -> str:
    """Return the JSON text of a graph, constants included.

    Raises `UsageError` where the graph has state.
    """
    _check_pure(graph)
    return _to_text(graph, None, max((array.size for array in graph.constants.values()), default=0))


def _check_pure(graph: Graph) -> None:
    """Raise `UsageError` where a graph has state or fixed results."""
    names = (*graph.interface.state, *graph.interface.fixed)
    if names:
        raise UsageError(
            f"graph {quote(graph.name)}: a graph.json holds no state and no result that is not computed, found "
            f"{', '.join(map(quote, names))}",
            hint="save its plan, or evolve(graph, interface=Interface()), in which state is inputs and outputs",
        )


def _to_text(graph: Graph, weights: str | None, inline: int) -> str:
    constants = [
        Constant(name, graph.types[name].dtype, array.shape, _elements(array) if array.size <= inline else None)
        for name, array in graph.constants.items()
    ]
    computed = [value for node in graph.nodes for value in node.outputs]
    document = GraphDocument(
        format=FORMAT,
        version=VERSION,
        name=graph.name,
        inputs=tuple(Input(v, graph.types[v].dtype, graph.types[v].shape) for v in graph.inputs),
        nodes=tuple(
            Operation(n.name, n.op, n.inputs, n.outputs, dict(n.attributes), n.origin, n.declaration)
            for n in graph.nodes
        ),
        outputs=graph.outputs,
        constants=tuple(constants),
        types={v: Type(graph.types[v].dtype, graph.types[v].shape) for v in computed},
        weights=weights,
    )
    return _layout(document_to_value(document))


def _layout(document: dict[str, object]) -> str:
    """Return JSON text with one node, constant or type per line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            body = "[\n" + ",\n".join(f"    {json.dumps(item, allow_nan=False)}" for item in value) + "\n  ]"
        elif isinstance(value, dict) and value:
            body = "{\n" + ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n  }"
        else:
            body = json.dumps(value)
        parts.append(f"  {json.dumps(key)}: {body}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _elements(array: Array) -> list[object]:
    values = array.reshape(-1).tolist()
    return [str(v) if isinstance(v, float) and not math.isfinite(v) else v for v in values]


def _build(document: GraphDocument, folder: Path | None, source: Source, infer: Infer | None) -> Graph:
    """Give a structured document its meaning: read constants, order nodes, derive types, verify."""
    where = source.name
    raise_all([GraphError(f"{where}: {problem}") for problem in _type_problems(document)])
    constants = _read_constants(document, folder, where)
    types = {entry.name: TensorType(entry.dtype, entry.shape) for entry in _typed_entries(document)}
    places = _node_spans(source, len(document.nodes))
    pairs = zip(document.nodes, places, strict=True)
    nodes = tuple(
        Node(o.name, o.op, o.inputs, o.outputs, o.attributes, o.origin, span=span, declaration=o.declaration)
        for o, span in pairs
    )
    nodes = sort_nodes(nodes, types)
    given = {name: TensorType(entry.dtype, entry.shape) for name, entry in document.types.items()}
    inputs = tuple(entry.name for entry in document.inputs)
    graph = Graph(document.name, inputs, document.outputs, {**types, **given, **types}, nodes, constants)
    derive = infer or Registry.builtin().instances.infer
    try:
        _verify_names(graph, document)
        return verify_graph(evolve(graph, types=infer_types(graph, derive)), derive)
    except CutsError as error:
        raise_all(
            [
                convert_error(part, GraphError, "" if _is_placed(part, source) else f"{where}: ")
                for part in single_errors(error)
            ]
        )
        raise


def _is_placed(error: CutsError, source: Source) -> bool:
    """Return whether an error has a position in the document."""
    return any(span is not None and span.source is source for span in (error.span, error.used))


def _node_spans(source: Source, count: int) -> Sequence[Span | None]:
    """Return the span of each node's operation name, None without text or beyond the limit."""
    if not source.text or len(source.text) > _MAX_LOCATED_LENGTH:
        return (None,) * count
    return [Span(source, *place) for place in places_below(source.text, ("nodes",), "op")]


def _verify_names(graph: Graph, document: GraphDocument) -> None:
    """Check names in the document, as mappings would drop duplicates."""
    counts = Counter(entry.name for entry in _typed_entries(document))
    message = "value {} is declared {} times among inputs and constants"
    raise_all([GraphError(message.format(quote(name), count)) for name, count in counts.items() if count > 1])


def _typed_entries(document: GraphDocument) -> tuple[Input | Constant, ...]:
    return *document.inputs, *document.constants


def _type_problems(document: GraphDocument) -> Iterator[str]:
    entries: list[tuple[str, Input | Constant | Type]] = [(entry.name, entry) for entry in _typed_entries(document)]
    for name, entry in [*entries, *document.types.items()]:
        if problem := type_problem(TensorType(entry.dtype, entry.shape)):
            yield f"value {quote(name)}: {problem}"
    for entry in _typed_entries(document):
        other = document.types.get(entry.name)
        if other is not None and (other.dtype, other.shape) != (entry.dtype, entry.shape):
            declared, found = TensorType(entry.dtype, entry.shape), TensorType(other.dtype, other.shape)
            yield f"value {quote(entry.name)}: expected {declared} as declared, found {found} among the types"


def _read_constants(document: GraphDocument, folder: Path | None, where: str) -> dict[str, Array]:
    """Return the arrays of all constants, from the document or from the weights file."""
    outside = [entry for entry in document.constants if entry.data is None]
    weights: WeightFile | None = None
    if outside and (document.weights is None or folder is None):
        missing = (
            "the document names no weights file"
            if document.weights is None
            else "the folder of its weights file is not given"
        )
        raise GraphError(
            f"{where}: constant {quote(outside[0].name)} has no data here and {missing}", hint="set `data` or `weights`"
        )
    if outside and document.weights is not None and folder is not None:
        weights = open_weights(folder, document.weights)
    arrays: dict[str, Array] = {}
    errors: list[CutsError] = []
    for entry in document.constants:
        type_ = TensorType(entry.dtype, entry.shape)
        try:
            if entry.data is not None:
                arrays[entry.name] = _inline_array(entry, type_)
            else:
                arrays[entry.name] = weights.array(entry.name, type_)  # type: ignore[union-attr]
        except GraphError as error:
            errors.append(GraphError(f"{where}: {error.message}", hint=error.hint))
    raise_all(errors)
    return arrays


def _inline_array(entry: Constant, type_: TensorType) -> Array:
    """Return inline elements as an array, checking their number, kinds and ranges."""
    where = f"constant {quote(entry.name)}"
    data = entry.data
    if not isinstance(data, list) or len(data) != type_.size:
        found = f"{len(data)}" if isinstance(data, list) else "something else"
        raise GraphError(f"{where}: expected a flat list of {type_.size} elements for {type_}, found {found}")
    kinds = (int, float) if type_.dtype.is_float else (bool,) if type_.dtype is DType.BOOL else (int,)
    values = [NON_FINITE.get(v, v) if type_.dtype.is_float and isinstance(v, str) else v for v in data]
    for position, value in enumerate(values):
        if type(value) not in kinds:
            raise GraphError(
                f"{where}: expected an element of type {type_.dtype} at position {position}, found "
                f"{json.dumps(value)[:60]}"
            )
    try:
        return np.array(values, type_.dtype.numpy).reshape(type_.shape)
    except OverflowError:
        raise GraphError(f"{where}: an element is out of the range of {type_.dtype}") from None


def sort_nodes(nodes: Sequence[Node], known: Mapping[str, object]) -> tuple[Node, ...]:
    """Return nodes in topological order, unchanged where they are sorted.

    The verifier reports a cycle.
    """
    if find_cycle(nodes):
        return tuple(nodes)
    producer = {value: node for node in nodes for value in node.outputs}
    placed: dict[int, Node] = {}
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [
                producer[v] for v in node.operands if v not in known and v in producer and id(producer[v]) not in placed
            ]
            if waiting and id(node) not in placed:
                stack.extend(reversed(waiting))
            else:
                placed.setdefault(id(node), node)
                stack.pop()
    return tuple(placed.values())


def infer_types(graph: Graph, infer: Infer) -> dict[str, TensorType]:
    """Return the types of all values, deriving absent ones.

    The verifier reports values whose type cannot be derived.
    """
    types = dict(graph.types)
    for node in graph.nodes:
        operands = [None if v is None else types.get(v) for v in node.inputs]
        if all(v in types for v in node.outputs) or any(
            v is not None and t is None for v, t in zip(node.inputs, operands, strict=True)
        ):
            continue
        try:
            derived = infer(node, operands)
        except CutsError:
            continue
        if len(derived) == len(node.outputs):
            types |= {value: type_ for value, type_ in zip(node.outputs, derived, strict=True) if value not in types}
    return types
