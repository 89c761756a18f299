"""Rows shared by a segment's statements: loop fusion and shared-memory cache."""

from .kept_rows import kept_reads, kept_trips, row_parts
from .shared_loops import may_share, share_loop

__all__ = ["kept_reads", "kept_trips", "may_share", "row_parts", "share_loop"]
