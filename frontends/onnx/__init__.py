"""ONNX models as graphs: one walk over the nodes, and models cut where an operation is outside the vocabulary.

What depends on constants alone is computed while a model is read. What each operation means is in `operators`.
"""

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
