"""How a search went: how times fell, and what its processes did when."""

from .curve import Search
from .timeline import HERE, SLICE, Busy, Timeline

__all__ = ["HERE", "SLICE", "Busy", "Search", "Timeline"]
