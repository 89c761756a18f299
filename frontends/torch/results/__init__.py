"""Results of compiled graphs in the memory layout that PyTorch traced."""

from .checks import checked_results
from .outputs import (
    ALIGNMENT,
    MemoryForm,
    OutputAllocation,
    ResultFunction,
    form_of_memory,
    gather_results,
    output_allocation,
    result_views,
    view_of,
)
from .traced_memory import computes, is_view_of_input, result_memory
