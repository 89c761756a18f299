"""PyTorch importer: modules, exported programs and captured graphs.

Only this package imports `torch`. Programs are decomposed to PyTorch's core operations; `operators` has the conversion
of each.
"""

from .captured import Captured, Ends
from .dynamo import dynamo_backend
from .program import ArrayFunction, Choice, Found, TensorProgram
from .read import read_torch
from .recurrent import allow_layers
from .registered import OPERATORS, define_operator
from .result_memory import ResultMemory
from .settings import matmul_precision

__all__ = [
    "OPERATORS",
    "ArrayFunction",
    "Captured",
    "Choice",
    "Ends",
    "Found",
    "ResultMemory",
    "TensorProgram",
    "allow_layers",
    "define_operator",
    "dynamo_backend",
    "matmul_precision",
    "read_torch",
]
