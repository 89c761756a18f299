"""Kernels as source text: one printer, and a table of what differs between dialects."""

from .ahead import asking_ahead
from .dialects import DIALECTS
from .emit import emit

__all__ = ["DIALECTS", "asking_ahead", "emit"]
