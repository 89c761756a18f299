"""PyTorch importer: modules, exported programs and captured graphs.

Only this package imports `torch`. Programs are decomposed to PyTorch's core operations; `operators` has the conversion
of each.
"""

from .captured_graph import CapturedGraph, GraphSignature, UncompiledWarning
from .decompositions import allow_layers
from .devices import device_for
from .dynamo_backend import dynamo_backend
from .loading import exported_program, program_name, read_torch
from .operator_registry import OPERATORS, define_operator
from .partial import (
    StagedProgram,
    StoredStage,
    array_results,
    reopen_program,
    stage_program,
    state_tensor,
    type_of_tensor,
)
from .program import ArrayFunction, CachedGraph, Choice, TensorProgram
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
    "StagedProgram",
    "StoredStage",
    "TensorProgram",
    "UncompiledWarning",
    "allow_layers",
    "array_results",
    "define_operator",
    "device_for",
    "dynamo_backend",
    "exported_program",
    "matmul_precision",
    "program_name",
    "read_torch",
    "reopen_program",
    "stage_program",
    "state_tensor",
    "type_of_tensor",
]
