"""Memory layout: dim order of constants and of tensors between kernels."""

from .choose_layouts import choose_layouts, orders_dims
from .pack import pack_constants
from .sum_orders import order_sums
