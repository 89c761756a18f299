"""ONNX importer, and models cut at operations outside the vocabulary.

Values that depend on constants alone are computed at import. `operators` has the conversion of each operation.
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
