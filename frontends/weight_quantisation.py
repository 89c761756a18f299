"""Quantises weights by rounding to nearest, by channel or group.

    const %w: f32[4096, 512]                       const %w.int4: i8[512, 4096], %w.scale: f32[512, 32]
    %y = matmul(%x, %w)                     ->     %w.stored = dequantize(%w.int4, %w.scale) {axis = 1, block = 128}
                                                   %w = transpose(%w.stored) {perm = [1, 0]}
                                                   %y = matmul(%x, %w)

A weight is a constant of floats that a sum of products reads at plain axes, some of them reduced. Scales are positive
and symmetric: the number of largest size in a channel or group becomes the largest of the format. Reduced dims lie
innermost, so that threads that share a sum read neighbours. The compiler keeps the integers packed
(`passes.packing`). The graph is in canonical form, so that weights are read where they lie, or through a transposition
of a constant.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from attrs import evolve

from ..ir import (
    Array,
    CutsWarning,
    DType,
    Graph,
    Index,
    Node,
    Read,
    Statement,
    TensorType,
    Var,
    as_dtype,
    factors,
    fresh_name,
    live_graph,
    stored_factor,
    sums_products,
)
from ..ops.language import Instances
from .weight_formats import WeightFormat

#: Fewest elements of a weight: smaller constants cost nothing.
MIN_ELEMENTS = 1 << 10
#: Elements that are rounded at once: they stay in the caches.
ELEMENTS_AT_ONCE = 1 << 17


def quantise_weights(graph: Graph, instances: Instances, format_: WeightFormat) -> Graph:
    """Return a canonical graph with quantised weights.

    Warns where it has none.
    """
    given = with_turned_constants(graph, instances)
    wanted = {value: reduced for node in graph.nodes for value, reduced in find_weights(node, given, instances)}
    wanted = {value: reduced for value, reduced in wanted.items() if value not in graph.outputs}
    if not wanted:
        text = f"graph '{graph.name}' has no weights to quantise: no constant matrix of {MIN_ELEMENTS} floats or more"
        warnings.warn(text, CutsWarning, stacklevel=2)
        return graph
    constants = {n: a for n, a in given.constants.items() if n in graph.constants or n in wanted}
    types, left = dict(graph.types), [node for node in graph.nodes if not {*node.outputs} <= {*wanted}]
    names = {node.name for node in graph.nodes}
    nodes: list[Node] = []
    for value, reduced in wanted.items():
        order = tuple(sorted(range(len(types[value].shape)), key=lambda dim: (dim in reduced, dim)))
        weight = constants.pop(value).transpose(order)
        axis, block = _blocks(weight.shape, range(len(order) - len(reduced), len(order)), format_.group)
        numbers, scale = quantise_array(weight, format_, axis, block, types[value].dtype)
        inputs = []
        for array, suffix in ((numbers, format_.name), (scale, "scale")):
            name = fresh_name(types, f"{value}.{suffix}")
            dtype = format_.dtype if array is numbers else types[value].dtype
            constants[name], types[name] = array, TensorType(dtype, array.shape)
            inputs.append(name)
        node = fresh_name(names, f"{value}.dequantize")
        names.add(node)
        stored = value if order == tuple(sorted(order)) else fresh_name(types, f"{value}.stored")
        types[stored] = TensorType(types[value].dtype, weight.shape)
        nodes.append(Node(node, "dequantize", tuple(inputs), (stored,), {"axis": axis, "block": block}))
        if stored != value:
            turn = fresh_name(names, f"{value}.turn")
            names.add(turn)
            nodes.append(Node(turn, "transpose", (stored,), (value,), {"perm": tuple(map(order.index, sorted(order)))}))
    return live_graph(evolve(graph, nodes=(*nodes, *left), constants=constants, types=types))


def with_turned_constants(graph: Graph, instances: Instances) -> Graph:
    """Return a graph whose transpositions of constants are constants, too."""
    return evolve(graph, constants={**graph.constants, **dict(_turned_constants(graph, instances))})


def _turned_constants(graph: Graph, instances: Instances) -> Iterator[tuple[str, Array]]:
    """Yield the values of nodes that only exchange dims of a constant, as views of it."""
    for node in graph.nodes:
        if len(node.operands) != 1 or node.operands[0] not in graph.constants or len(node.outputs) != 1:
            continue
        statements = instances.of_node(node, graph).program.statements
        first, body = statements[0], statements[0].body
        if len(statements) != 1 or not first.is_pointwise or not isinstance(body, Read) or body.guards:
            continue
        source = [_axis(body.indices, dim) for dim in range(len(body.indices))]
        order = [source.index(axis) for axis in first.axes if axis in source]
        in_order = [_axis(first.write, dim) for dim in range(len(first.write))] == [*first.axes]
        if in_order and sorted(order) == [*range(len(source))]:
            yield node.outputs[0], graph.constants[node.operands[0]].transpose(order)


def quantise_array(weight: Array, format_: WeightFormat, axis: int, block: int, dtype: DType) -> tuple[Array, Array]:
    """Return the numbers of a weight and their scales.

    Each block along an axis has a scale; `dtype` is the type of the scales. A large weight is taken by rows, as its
    elements are computed in f64.
    """
    if axis and weight.size > len(weight) > 1 and weight.size > 2 * ELEMENTS_AT_ONCE:
        rows = max(1, ELEMENTS_AT_ONCE * len(weight) // weight.size)
        parts = [weight[n : n + rows] for n in range(0, len(weight), rows)]
        numbers, scales = zip(*(quantise_array(part, format_, axis, block, dtype) for part in parts), strict=True)
        return np.concatenate(numbers), np.concatenate(scales)
    extent = weight.shape[axis]
    starts = np.arange(0, extent, block)
    values = np.asarray(weight, np.float64)
    largest = np.maximum.reduceat(np.abs(values), starts, axis=axis)
    scale = as_dtype(np.where(largest > 0, largest / format_.largest, 1.0), dtype.numpy)
    scale = np.where(scale > 0, scale, as_dtype(1.0, dtype.numpy))  # a scale that is too small for its type
    steps = np.repeat(scale.astype(np.float64), block, axis=axis).take(np.arange(extent), axis=axis)
    divided = values / steps
    whole = np.rint(divided) if format_.dtype.is_int else divided
    return as_dtype(np.clip(whole, -format_.largest, format_.largest), format_.dtype.numpy), scale


def find_weights(node: Node, graph: Graph, instances: Instances) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the weights of a node, each with its reduced dims."""
    if not any(v in graph.constants for v in node.operands):
        return
    for statement, values in bound_statements(node, graph, instances):
        for value, read in read_factors(statement, values):
            if value not in graph.constants:
                continue
            type_ = graph.types[value]
            axes = [_axis(read.indices, dim) for dim in range(len(type_.shape))]
            reduced = tuple(dim for dim, axis in enumerate(axes) if axis in statement.reduce)
            large = type_.dtype.is_float and type_.size >= MIN_ELEMENTS
            if large and None not in axes and 0 < len(reduced) < len(axes):
                yield value, reduced


def bound_statements(node: Node, graph: Graph, instances: Instances) -> Iterator[tuple[Statement, Mapping[str, str]]]:
    """Yield the statements of a node, with the graph's values by operand."""
    instance = instances.of_node(node, graph)
    values = {f: v for f, v in zip(instance.inputs, node.inputs, strict=False) if f is not None and v is not None}
    for statement in instance.program.statements:
        yield statement, values


def read_factors(statement: Statement, values: Mapping[str, str]) -> Iterator[tuple[str, Read]]:
    """Yield the factors of a sum of products that read operands."""
    for factor in factors(statement.body) if sums_products(statement) else ():
        stored = stored_factor(factor)
        if isinstance(stored, Read) and stored.tensor in values:
            yield values[stored.tensor], stored


def _axis(indices: Sequence[Index], dim: int) -> Var | None:
    """Return the axis that indexes a dim alone, else None."""
    index = indices[dim]
    (primary, factor), *rest = index.terms or ((None, 0),)
    return primary if isinstance(primary, Var) and factor == 1 and not rest and not index.const else None


def _blocks(shape: Sequence[int], reduced: Sequence[int], group: int) -> tuple[int, int]:
    """Return the longest reduced dim, and the length of its blocks: groups, or all of it."""
    axis = max(reduced, key=lambda dim: shape[dim])
    return axis, min(group or shape[axis], shape[axis])
