"""In which order of its dims each tensor between kernels lies in memory."""

from .choose_layouts import choose_layouts, orders_dims

__all__ = ["choose_layouts", "orders_dims"]
