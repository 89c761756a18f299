"""Rows that the statements of a segment share: one loop over them, and what is kept of them in shared memory."""

from .kept_rows import kept_reads, kept_trips, row_parts
from .shared_loops import may_share, share_loop

__all__ = ["kept_reads", "kept_trips", "may_share", "row_parts", "share_loop"]
