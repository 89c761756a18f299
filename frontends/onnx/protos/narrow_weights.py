"""Conversion of weights in foreign element types at import.

Integers of 2 and 4 bits become bytes, other types are dequantised:

w = initializer int4[4, 2]             w = initializer int8[4, 2]
d = DequantizeLinear(w, scale)   ->    d = DequantizeLinear(w, scale)

w = initializer float4[4, 2]
d = DequantizeLinear(w, scale)   ->    d = initializer f32[4, 2]

The compiler packs bytes again, in as few bits as their numbers need.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from ....ir import dtype_of_numpy
from ...files import map_inside

#: Operations whose results, of weights alone, are weights.
_CONVERSIONS = ("DequantizeLinear", "Cast", "CastLike")
#: Integers of fewer bits than a byte, the bytes that hold their numbers, and the bits of a number.
_SMALL_INTEGERS: dict[int, tuple[np.dtype[Any], int]] = {
    onnx.TensorProto.INT4: (np.dtype(np.int8), 4),
    onnx.TensorProto.UINT4: (np.dtype(np.uint8), 4),
    **{
        getattr(onnx.TensorProto, name): (np.dtype(kind), 2)
        for name, kind in (("INT2", np.int8), ("UINT2", np.uint8))
        if hasattr(onnx.TensorProto, name)
    },
}


def widen_weights(graph: onnx.GraphProto, opset: int, folder: Path | None) -> onnx.GraphProto:
    """Return a graph whose weights have element types of the vocabulary.

    `folder` is that of external data. Raises `GraphError` where that lies outside.
    """
    return _dequantise(_widen_integers(graph, folder), opset)


def _widen_integers(graph: onnx.GraphProto, folder: Path | None) -> onnx.GraphProto:
    """Store weights of small integers as bytes, save those that fix the type of a result."""
    fixed = {name for node in graph.node if node.op_type not in _CONVERSIONS for name in node.input[2:]}
    fixed |= {value.name for value in graph.output}
    fixed |= {node.input[1] for node in graph.node if node.op_type == "CastLike" and len(node.input) > 1}
    small = [t for t in graph.initializer if t.data_type in _SMALL_INTEGERS and t.name not in fixed]
    if not small:
        return graph
    wider = {tensor.name: _bytes_of(tensor, folder) for tensor in small}
    result = onnx.GraphProto()
    result.CopyFrom(graph)
    del result.initializer[:]
    result.initializer.extend(wider.get(tensor.name) or tensor for tensor in graph.initializer)
    return result


def _bytes_of(tensor: onnx.TensorProto, folder: Path | None) -> onnx.TensorProto | None:
    """Return the bytes of a tensor of small integers, None where its data is damaged or absent."""
    kind, bits = _SMALL_INTEGERS[tensor.data_type]
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    shape, count = tuple(tensor.dims), 8 // bits
    size = int(np.prod(shape, dtype=np.int64))
    if external:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if folder is None or "location" not in entries:
            return None
        data, start = map_inside(folder, entries["location"]), int(entries.get("offset", 0))
        packed = np.frombuffer(data, np.uint8)[start : start + -(-size // count)]
        if packed.size != -(-size // count):
            return None
        numbers = (packed[:, None] >> (np.arange(count, dtype=np.uint8) * bits) & ((1 << bits) - 1)).reshape(-1)[:size]
        if kind == np.int8:
            numbers = (numbers ^ (1 << (bits - 1))).astype(np.int8) - np.int8(1 << (bits - 1))
        return numpy_helper.from_array(numbers.astype(kind).reshape(shape), tensor.name)
    try:
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind), tensor.name)
    except (ValueError, TypeError):
        return None


def _dequantise(graph: onnx.GraphProto, opset: int) -> onnx.GraphProto:
    """Return a graph whose conversions of weights in other types than ours are weights."""
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
