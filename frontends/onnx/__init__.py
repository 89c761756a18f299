"""ONNX models as graphs."""

from .load import load_onnx
from .prepared import Prepared, ReferenceBackend, Runner
from .staged import Function, OpaqueWarning, PartKey, StagedModel, model_of_graph, staged_onnx

__all__ = [
    "Function",
    "OpaqueWarning",
    "PartKey",
    "Prepared",
    "ReferenceBackend",
    "Runner",
    "StagedModel",
    "load_onnx",
    "model_of_graph",
    "staged_onnx",
]
