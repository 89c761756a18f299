"""Results of compiled graphs in the memory layout that PyTorch traced."""

from .checks import checked_results
from .outlets import ALIGNMENT, Give, Made, MemoryForm, form_of_memory, give, givers, made_of, view_of
from .traced import is_view_of_input, result_memory

__all__ = [
    "ALIGNMENT",
    "Give",
    "Made",
    "MemoryForm",
    "checked_results",
    "form_of_memory",
    "give",
    "givers",
    "is_view_of_input",
    "made_of",
    "result_memory",
    "view_of",
]
