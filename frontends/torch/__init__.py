"""PyTorch importer: modules, exported programs and captured graphs.

Only this package imports `torch`. Programs are decomposed to PyTorch's core operations; `operators` has the conversion
of each.
"""

from .captured_graph import CapturedGraph, GraphSignature, UncompiledWarning
from .checkpoints import load_checkpoint, pack_layers
from .decompositions import allow_layers
from .devices import device_for
from .dynamo_backend import dynamo_backend
from .loading import MAX_UNBOUNDED_SIZE, SizedProgram, exported_program, program_name, read_torch, sized_program
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
