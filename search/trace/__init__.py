"""Trace of a search: best times, statistics, and activity of its processes."""

from .curve import SearchTrace
from .statistics import Rejected, Statistics
from .timeline import HERE, SLICE_SECONDS, Busy, Timeline
from .trace_events import trace_events
