"""In which order of its dims each tensor lies in memory: those between kernels, and constants."""

from .choose_layouts import choose_layouts, orders_dims
from .pack import pack_constants

__all__ = ["choose_layouts", "orders_dims", "pack_constants"]
