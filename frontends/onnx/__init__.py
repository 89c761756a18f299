"""ONNX importer, and models cut at operations outside the vocabulary.

Values that depend on constants alone are computed at import. `operators` has the conversion of each operation.
"""

from .backend_representation import ReferenceBackend, Runner, Specialisation
from .foreign_nodes import Function
from .load import load_onnx
from .plan_model import plan_model
from .protos import declared_shapes
from .staged_model import OpaqueWarning, PartKey, StagedModel, model_of_graph, staged_onnx
