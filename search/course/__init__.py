"""Trace of a search: best times, and activity of its processes."""

from .curve import Search
from .timeline import HERE, SLICE, Busy, Timeline

__all__ = ["HERE", "SLICE", "Busy", "Search", "Timeline"]
