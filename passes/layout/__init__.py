"""In which order of its dims each tensor between kernels lies in memory."""

from .choose_layouts import choose_layouts

__all__ = ["choose_layouts"]
