"""Partial compilation: graphs of PyTorch cut around calls that cannot be imported."""

from .computed_function import compile_computed, present_elements
from .cut_graph import CompiledStages, compile_stages
from .double_backward import RepeatableModule
from .random_inputs import with_drawn_inputs
from .staged_function import StagedFunction
from .staged_program import (
    StagedProgram,
    StoredStage,
    array_results,
    reopen_program,
    stage_program,
    state_tensor,
    type_of_tensor,
)
