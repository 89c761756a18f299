"""Kernels as source text: one printer, and a table of what differs between dialects."""

from .dialects import DIALECTS
from .emit import emit

__all__ = ["DIALECTS", "emit"]
