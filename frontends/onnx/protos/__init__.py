"""Models of ONNX: order, masks, local functions and versions."""

from .contrib import has_contrib, unsupported_hint
from .functions import (
    attribute_types,
    declared_name,
    function_body,
    has_function,
    inline_body,
    max_operands,
    rename_values,
    standard_schema,
)
from .model import OnnxModel, Opaque, declared_shapes, element_type, initialisers, input_types, read_model, tensor_array
from .node_opset import opset_of
from .order import values_read
