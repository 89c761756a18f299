"""Programs of `torch.export`: results, state, and shared buffer memory."""

from .results import program_ends, written_targets
from .storage import check_memory, without_shared_memory

__all__ = ["check_memory", "program_ends", "without_shared_memory", "written_targets"]
