"""Programs of `torch.export`: their results and their state (`results`), and buffers that share memory (`storage`)."""

from .results import program_ends, written_targets
from .storage import check_memory, without_shared_memory

__all__ = ["check_memory", "program_ends", "without_shared_memory", "written_targets"]
