"""Dequantisation of weights in 4-bit integers and 8-bit floats at import.

w = initializer int4[4, 2]
d = DequantizeLinear(w, scale)   ->   d = initializer f32[4, 2]
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from ....ir import dtype_of_numpy

#: Operations whose results, of weights alone, are weights.
_CONVERSIONS = ("DequantizeLinear", "Cast", "CastLike")


def dequantise_weights(graph: onnx.GraphProto, opset: int) -> onnx.GraphProto:
    """Return a graph whose conversions of narrow weights are weights."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    narrow = {name for name, tensor in tensors.items() if _is_narrow(tensor)}
    wider = [
        n for n in graph.node if n.op_type in _CONVERSIONS and narrow & set(n.input) and {*n.input} <= {*tensors, ""}
    ]
    found = [_evaluate(node, tensors, opset) for node in wider]
    made = {tensor.name for tensor in found if not _is_narrow(tensor)}
    if not made:
        return graph
    result = onnx.GraphProto()
    result.CopyFrom(graph)
    nodes = [node for node in graph.node if node.output[0] not in made]
    read = {name for node in nodes for name in node.input}
    kept = [tensor for name, tensor in tensors.items() if name not in narrow or name in read]
    del result.node[:], result.initializer[:]
    result.node.extend(nodes)
    result.initializer.extend([*kept, *(tensor for tensor in found if tensor.name in made)])
    return result


def _is_narrow(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor in the file has a numeric type that is none of ours."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        return False
    inside = tensor.data_location != onnx.TensorProto.EXTERNAL
    return inside and tensor.data_type != onnx.TensorProto.STRING and dtype_of_numpy(dtype) is None


def _evaluate(node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto], opset: int) -> onnx.TensorProto:
    """Return the result of a node of constants."""
    result = onnx.helper.make_value_info(node.output[0], onnx.TypeProto())
    graph = onnx.helper.make_graph([node], "weight", [], [result], [tensors[name] for name in node.input if name])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    results: Any = ReferenceEvaluator(model).run(None, {})
    return numpy_helper.from_array(results[0], node.output[0])
