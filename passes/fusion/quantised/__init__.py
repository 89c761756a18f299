"""Rewrites of quantised programs: scales, extremes and products of bytes."""

from .fold_scales import fold_scales
from .narrow_extremes import narrow_extremes
from .narrow_products import multiply_bytes, widens_bytes
from .padded_images import pad_images
