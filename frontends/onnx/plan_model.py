"""ONNX model of one node that runs a packed plan.

x: f32[4, 8]   ->   cuts.Plan(x, file="model.cutsplan")   ->   y: f32[4, 16]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import helper

from ...ir import TensorType

#: Domain and name of the operation that `libcuts_onnxruntime` adds; versions that every ONNX Runtime with it reads.
DOMAIN, OPERATION = "cuts", "Plan"
OPSET, IR_VERSION = 17, 9


def plan_model(
    name: str, file: str, inputs: Mapping[str, TensorType], outputs: Mapping[str, TensorType]
) -> onnx.ModelProto:
    """Return a model of one node that runs a packed plan.

    Further attributes choose a device: `ordinal`, `library` of the driver, `platform` of OpenCL.
    """
    node = helper.make_node(OPERATION, list(inputs), list(outputs), name, domain=DOMAIN, file=file)
    graph = helper.make_graph([node], name, list(_values(inputs)), list(_values(outputs)))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _values(types: Mapping[str, TensorType]) -> Iterator[onnx.ValueInfoProto]:
    for name, type_ in types.items():
        code = helper.np_dtype_to_tensor_dtype(type_.dtype.numpy)
        yield helper.make_tensor_value_info(name, code, type_.shape)
