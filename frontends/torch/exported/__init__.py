"""Programs of `torch.export`: results, state, and shared buffer memory."""

from .results import program_outputs, written_targets
from .storage import check_memory, separate_buffers

__all__ = ["check_memory", "program_outputs", "separate_buffers", "written_targets"]
