"""Rows shared by a segment's statements: loop fusion and shared-memory cache."""

from .row_cache import cached_reads, cached_trips, row_parts
from .shared_loops import can_share_loop, shareable_loops

__all__ = ["cached_reads", "cached_trips", "can_share_loop", "row_parts", "shareable_loops"]
