"""Kernels as source text: one printer, and a table of what differs between dialects."""

from .dialects import DIALECTS
from .emit import emit
from .unrolled import unrolled_statements

__all__ = ["DIALECTS", "emit", "unrolled_statements"]
