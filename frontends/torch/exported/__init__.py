"""Programs of `torch.export`: results, state, and shared buffer memory."""

from .names import rename_results, result_names
from .results import program_outputs, written_targets
from .storage import check_memory, separate_buffers
