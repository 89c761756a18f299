"""Constant folding of ONNX nodes at import.

Exporters leave whole subgraphs that compute shapes; with static input shapes they are all constant. The kernels are
those of ONNX's own reference implementation, save where it is wrong (GatherElements along more than 64 rows, or from a
larger tensor; axes out of order; `INEXACT`) or raises: our declarations compute these. Fills and broadcasts stay views
of one element, so that a large constant costs no memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ...ir import MAX_ELEMENTS, Array, GraphError, Node, TensorType, as_dtype
from ...ops import evaluate
from ...ops.language import Registry

#: Operations that the reference implementation computes wrongly for some attributes: coercion to a matrix before
#: operator set 13, bounds beyond an end, training, powers, samples, axes of one element.
INEXACT = {
    "AffineGrid", "BatchNormalization", "GridSample", "Hardmax", "LRN", "LogSoftmax", "LpNormalization", "LpPool",
    "Resize", "RoiAlign",
    "Shape", "Softmax", "Upsample",
}  # fmt: skip
#: Elements and steps beyond which a value of constants is left to a pass or a kernel.
_MAX_FOLDED_ELEMENTS, _MAX_FOLDED_STEPS = 1 << 24, 1 << 28
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}


class NoKernel(GraphError):
    """Raised where the reference evaluator cannot compute a node.

    It may have no operation of the version at hand.
    """


def can_fold(node: onnx.NodeProto) -> bool:
    """Return whether a node's outputs depend only on inputs and attributes."""
    return node.op_type not in _RANDOM and node.domain in ("", "ai.onnx")


def fold(
    node: onnx.NodeProto, arrays: Sequence[Array | None], attributes: Mapping[str, Any], opset: int, where: str
) -> list[Any]:
    """Return the values of a node's outputs, given those of its inputs.

    Raises `GraphError` where the result would be too large, its subclass `NoKernel` where nothing evaluates the node.
    """
    if node.op_type in ("ConstantOfShape", "Expand"):
        return [_broadcast(node, arrays, attributes, where)]
    if node.op_type == "GatherElements" and len(arrays) == 2:
        return [_gather_elements(arrays, int(attributes.get("axis", 0)), where)]
    if node.op_type in ("Squeeze", "Unsqueeze"):
        return [_with_axes(node.op_type, arrays, attributes.get("axes"), where)]
    if _elements(node, arrays) > MAX_ELEMENTS:
        raise GraphError(
            f"{where}: its constant result would have {_elements(node, arrays)} elements, expected fewer than 2^31"
        )
    names = [name for name in node.input if name]
    graph = onnx.helper.make_graph(
        [node],
        "fold",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names],
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name],
    )
    feeds = {name: array for name, array in zip(node.input, arrays, strict=True) if name}
    try:
        evaluator = _evaluator(graph, opset)
        results = evaluator.run(None, feeds)
    except NoKernel as error:
        raise NoKernel(f"{where}: {error.message}") from error
    except Exception as error:  # the reference kernels raise any exception of NumPy
        raise NoKernel(f"{where}: cannot be evaluated on its constant inputs: {error}") from error
    values = iter(results)
    return [next(values) if name else None for name in node.output]


def fold_by_declaration(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> dict[str, Array] | None:
    """Return the results of a node of constants by its declaration.

    Returns None where the node has computed operands, or takes long.
    """
    if (
        any(value not in constants for value in node.operands)
        or sum(types[v].size for v in node.outputs) > _MAX_FOLDED_ELEMENTS
    ):
        return None
    instance = Registry.builtin().instances.of(node, [None if v is None else types[v] for v in node.inputs])
    program = instance.program
    if sum(math.prod(v.extent for v in (*s.axes, *s.reduce)) for s in program.statements) > _MAX_FOLDED_STEPS:
        return None
    operands = {
        f: constants[v] for f, v in zip(instance.inputs, node.inputs, strict=False) if f is not None and v is not None
    }
    results = evaluate(program, operands)
    return {v: as_dtype(results[f], types[v].dtype.numpy) for f, v in zip(instance.outputs, node.outputs, strict=True)}


def _evaluator(graph: onnx.GraphProto, opset: int) -> ReferenceEvaluator:
    try:
        return ReferenceEvaluator(graph, opsets={"": opset})
    except RuntimeError as error:  # it looks its kernels up when it is made
        raise NoKernel(f"ONNX's reference evaluator has no {graph.node[0].op_type} of operator set {opset}") from error


def _elements(node: onnx.NodeProto, arrays: Sequence[Array | None]) -> int:
    """Return the number of elements where few operands ask for many, else 0."""
    values = [np.asarray([] if array is None else array).reshape(-1) for array in arrays]
    if node.op_type == "Range" and all(v.size == 1 for v in values):
        start, limit, delta = (float(v[0]) for v in values)
        return math.ceil(abs(limit - start) / abs(delta)) if delta else 0
    if node.op_type == "Tile" and len(values) == 2 and values[1].dtype.kind in "iu":
        return int(values[0].size) * math.prod(int(n) for n in values[1])
    if node.op_type == "Pad" and len(values) == 2 and arrays[0] is not None and values[1].size == 2 * arrays[0].ndim:
        shape = arrays[0].shape
        return math.prod(
            int(n + before + after) for n, before, after in zip(shape, values[1], values[1][len(shape) :], strict=False)
        )
    return 0


def _broadcast(
    node: onnx.NodeProto, arrays: Sequence[Array | None], attributes: Mapping[str, Any], where: str
) -> Array:
    expand = node.op_type == "Expand"
    sizes = arrays[1 if expand else 0]
    source = arrays[0] if expand else np.asarray(attributes.get("value", np.zeros(1, np.float32))).reshape(())
    if sizes is None or source is None:
        raise GraphError(f"{where}: an operand is absent")
    shape = tuple(int(e) for e in sizes.reshape(-1))
    try:
        target = np.broadcast_shapes(source.shape, shape)
        if math.prod(target) > MAX_ELEMENTS:
            raise ValueError(f"{math.prod(target)} elements are too many")
        return np.broadcast_to(source, target)
    except ValueError as error:
        raise GraphError(f"{where}: cannot make a tensor of shape {list(shape)}: {error}") from None


def _gather_elements(arrays: Sequence[Array | None], axis: int, where: str) -> Array:
    data, indices = arrays
    if data is None or indices is None:
        raise GraphError(f"{where}: an operand is absent")
    if data.ndim != indices.ndim:
        raise GraphError(f"{where}: expected indices of rank {data.ndim} as the tensor has, found rank {indices.ndim}")
    try:
        places: list[Array] = list(np.indices(indices.shape, sparse=True))
        places[axis] = indices
        return np.asarray(data[tuple(places)])
    except IndexError as error:
        raise GraphError(f"{where}: cannot be evaluated on its constant inputs: {error}") from None


def _with_axes(op: str, arrays: Sequence[Array | None], axes: Sequence[int] | None, where: str) -> Array:
    data = arrays[0] if arrays else None
    given = arrays[1] if len(arrays) > 1 else axes
    if data is None:
        raise GraphError(f"{where}: an operand is absent")
    places = None if given is None else tuple(int(axis) for axis in np.asarray(given).reshape(-1))
    try:
        return np.squeeze(data, places) if op == "Squeeze" else np.expand_dims(data, places or ())
    except ValueError as error:
        raise GraphError(f"{where}: cannot be evaluated on its constant inputs: {error}") from None
