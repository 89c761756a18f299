"""Trace of a search: best times, and activity of its processes."""

from .curve import SearchTrace
from .timeline import HERE, SLICE_SECONDS, Busy, Timeline

__all__ = ["HERE", "SLICE_SECONDS", "Busy", "SearchTrace", "Timeline"]
