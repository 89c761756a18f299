"""Appends a loss to a predicting graph, with its target as input.

output %logits: f32[8, 10]     ->     input %target: i64[8]; output %loss: f32[] = cross_entropy(%logits, %target)
"""

from __future__ import annotations

from attrs import evolve

from ...ir import Attribute, DType, Graph, GraphError, Node, TensorType, UsageError, fresh_name, quote, verify_graph
from ...ops import OpDecl, Registry
from ...ops.language import syntax as s


def with_loss(
    graph: Graph,
    op: str,
    prediction: str | None = None,
    target: str = "target",
    *,
    name: str = "loss",
    registry: Registry | None = None,
    **attributes: Attribute,
) -> Graph:
    """Return the graph with a loss of a value as first output.

    The value is the only output by default.

    The operation's first operand is the prediction, and its second the target, whose dims the first one names.

    Raises `UsageError` where the prediction is no value of the graph, or is not named and there is not one output.
    """
    if prediction is None:
        results = graph.interface.caller_outputs(graph.outputs)
        if len(results) != 1:
            raise UsageError(
                f"expected the name of the prediction, as there are {len(results)} outputs",
                hint="pass prediction=...",
            )
        prediction = results[0]
    if prediction not in graph.types:
        raise UsageError(f"graph {quote(graph.name)} has no value {quote(prediction)}")
    vocabulary = registry or Registry.builtin()
    target, name = fresh_name(graph.types, target), fresh_name(graph.types, name)
    types = {**graph.types, target: target_type(vocabulary[op], graph.types[prediction])}
    node = Node(fresh_name({n.name for n in graph.nodes}, name), op, (prediction, target), (name,), attributes)
    infer = vocabulary.instances.infer
    types[name] = infer(node, (types[prediction], types[target]))[0]
    outputs = (name, *(o for o in graph.outputs if o != name))
    whole = evolve(graph, inputs=(*graph.inputs, target), outputs=outputs, types=types, nodes=(*graph.nodes, node))
    return verify_graph(whole, infer)


def target_type(decl: OpDecl, prediction: TensorType) -> TensorType:
    """Return the type of a declared loss's second operand, given its first.

    Raises `GraphError` where the operation is no loss.
    """
    if len(decl.operands) < 2:
        raise GraphError(
            f"op '{decl.name}' is no loss: expected operands for the prediction and the target, found "
            f"{len(decl.operands)}"
        )
    first, second = decl.operands[:2]
    known = _bind(decl, first, prediction.shape)
    shape: list[int] = []
    for dim in second.dims:
        node = dim.value if isinstance(dim, s.Spread) else dim
        if not isinstance(node, s.Name) or node.id not in known:
            raise GraphError(
                f"op '{decl.name}' is no loss: the shape of '{second.name}' does not follow from that of '{first.name}'"
            )
        shape.extend(known[node.id])
    if second.dtype == first.dtype:
        return TensorType(prediction.dtype, tuple(shape))
    classes = decl.element_types.get(second.dtype, (second.dtype,))
    return TensorType(DType.I64 if {"i64", "int", "number", "any"} & set(classes) else DType(classes[0]), tuple(shape))


def _bind(decl: OpDecl, operand: s.Operand, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the sizes that each name in an operand's declared shape stands for."""
    plain = sum(not isinstance(d, s.Spread) for d in operand.dims)
    spread = len(shape) - plain
    if spread < 0 or (spread and plain == len(operand.dims)):
        raise GraphError(
            f"op '{decl.name}': operand '{operand.name}': expected {plain} or more axes, found shape {list(shape)}"
        )
    found: dict[str, tuple[int, ...]] = {}
    position = 0
    for dim in operand.dims:
        node, size = (dim.value, spread) if isinstance(dim, s.Spread) else (dim, 1)
        if isinstance(node, s.Name):
            found[node.id] = shape[position : position + size]
        position += size
    return found
