"""Conversion of a graph to unfused layers of the latency models.

Each node runs alone, as a library runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from ..ir import Graph, Node
from .operations import LayerOperation, ModelLayer, binary, concatenation, convolution_pieces, image, pool

#: Names of the vocabulary that were profiled under a name of their own, images in and out.
_UNARY: Mapping[str, str] = {
    "relu": "relu",
    "clip": "relu6",
    "sigmoid": "sigmoid",
    "swish": "silu",
    "hard_swish": "hardswish",
    "hard_sigmoid": "hardsigmoid",
    "gelu": "gelu",
    "batch_norm": "batch_norm",
    "global_average_pool": "global_average",
}
#: Names whose result is their operand with another shape: no kernel runs.
_VIEWS = ("reshape", "flatten", "squeeze", "unsqueeze", "identity", "dropout", "cast_like")
_POOLS = ("max_pool", "average_pool")


def graph_layers(graph: Graph) -> tuple[ModelLayer, ...]:
    """Return the nodes of a graph in order.

    Nodes on constants alone run at compilation and are left out.
    """
    known = set(graph.constants)
    layers = []
    for node in graph.nodes:
        if known.issuperset(node.operands):
            known.update(node.outputs)
            continue
        layers.append(ModelLayer(node.origin or node.name, node.op, _pieces(graph, node)))
    return tuple(layers)


def _pieces(graph: Graph, node: Node) -> tuple[LayerOperation, ...]:
    shapes = [graph.types[value].shape for value in node.operands]
    y = graph.types[node.outputs[0]].shape
    if node.op in _VIEWS:
        return ()
    if node.op in _UNARY:
        return (LayerOperation(_UNARY[node.op], image(shapes[0])),)
    build = _BUILDERS.get(node.op)
    found = build(node, shapes, y) if build else ()
    return found or (
        LayerOperation("move", (sum(map(prod, shapes)), sum(prod(graph.types[v].shape) for v in node.outputs))),
    )


def _conv(node: Node, shapes: Sequence[tuple[int, ...]], y: tuple[int, ...]) -> tuple[LayerOperation, ...]:
    """Return a convolution over two axes; others are not known."""
    x, weights = shapes[0], shapes[1]
    strides, dilations, pads = (_ints(node, name, 1) for name in ("strides", "dilations", "pads"))
    if len(x) != 4:
        return ()
    geometry = (
        *strides[:2],
        *(pads[:2] if "pads" in node.attributes else (0, 0)),
        dilations[0],
        _ints(node, "groups", 1)[0],
    )
    return convolution_pieces(x, y, weights[2:], geometry, len(shapes) > 2)


def _ints(node: Node, name: str, default: int) -> tuple[int, ...]:
    value = node.attributes.get(name, default)
    return tuple(int(each) for each in value) if isinstance(value, tuple) else (int(value), int(value))


def _product(node: Node, shapes: Sequence[tuple[int, ...]], y: tuple[int, ...]) -> tuple[LayerOperation, ...]:
    """Return a product of rows with a matrix; batches of products are not known."""
    if len(shapes[1]) != 2 or not y:
        return ()
    terms = prod(shapes[0]) // max(1, prod(y[:-1]))
    return (LayerOperation("linear", (prod(y[:-1]), terms, y[-1])),)


def _pool(node: Node, shapes: Sequence[tuple[int, ...]], y: tuple[int, ...]) -> tuple[LayerOperation, ...]:
    if len(shapes[0]) != 4:
        return ()
    window, stride, pad = (
        _ints(node, name, default)[0] for name, default in (("kernel_shape", 2), ("strides", 1), ("pads", 0))
    )
    return pool(node.op, shapes[0], window, stride, pad)


_BUILDERS: Mapping[str, Callable[[Node, Sequence[tuple[int, ...]], tuple[int, ...]], tuple[LayerOperation, ...]]] = {
    "conv": _conv,
    "gemm": _product,
    "matmul": _product,
    "max_pool": _pool,
    "average_pool": _pool,
    "add": lambda node, shapes, y: binary("add", shapes, y),
    "mul": lambda node, shapes, y: binary("multiply", shapes, y),
    "concat": lambda node, shapes, y: concatenation(y),
}
