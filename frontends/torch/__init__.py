"""PyTorch importer: modules, exported programs and captured graphs.

Only this package imports `torch`. Programs are decomposed to PyTorch's core operations; `operators` has the conversion
of each.
"""

from .captured_graph import CapturedGraph, GraphSignature
from .dynamo import dynamo_backend
from .importer import read_torch
from .operator_registry import OPERATORS, define_operator
from .program import ArrayFunction, CachedGraph, Choice, TensorProgram
from .recurrent import allow_layers
from .result_memory import ResultMemory
from .settings import matmul_precision

__all__ = [
    "OPERATORS",
    "ArrayFunction",
    "CachedGraph",
    "CapturedGraph",
    "Choice",
    "GraphSignature",
    "ResultMemory",
    "TensorProgram",
    "allow_layers",
    "define_operator",
    "dynamo_backend",
    "matmul_precision",
    "read_torch",
]
