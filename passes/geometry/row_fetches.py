"""Division of a fetch among threads: whole rows, or all elements by divisions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

#: Least bytes of an asynchronous copy.
MIN_COPY_BYTES = 4
#: Least share of busy threads for fetches of whole rows, where a division by all threads would need divisions.
MIN_BUSY_SHARE = 0.75


def whole_row_fetch(extents: Sequence[int], threads: int) -> tuple[int, int] | None:
    """Return the row coordinates of a fetch by whole rows.

    The second number is how many rows threads take at once. None where all elements of a thread have constant strides
    anyway, or where too many threads would idle.
    """
    if prod(extents) <= threads or has_constant_strides(extents, threads):
        return None
    for outer in range(1, len(extents)):
        length, last = prod(extents[outer:]), extents[outer - 1]
        rows = min(threads // length, prod(extents[:outer]))
        if rows > 1 and outer > 1 and rows % last and last % rows:
            continue
        if rows * length >= MIN_BUSY_SHARE * threads:
            return outer, rows
    return None


def has_constant_strides(extents: Sequence[int], threads: int) -> bool:
    """Return whether a thread's elements of a tile have constant strides.

    Extents come with the smallest stride last: all threads together take whole rows, or even parts of one.
    """
    left = threads
    for size in reversed(extents):
        if left % size and size % left:
            return False
        left = max(1, left // size)
    return True
