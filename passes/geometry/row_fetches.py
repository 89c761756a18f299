"""Division of a fetch among threads, by rows or elements.

Extents of a tile come in the order of memory, with the smallest stride last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from .footprint import Count

#: Least bytes of an asynchronous copy.
MIN_COPY_BYTES = 4
#: Bytes of a line of the L1 cache.
LINE_BYTES = 128
#: Least share of busy threads for fetches of whole rows, where a division by all threads would need divisions.
MIN_BUSY_SHARE = 0.75


def has_constant_strides(extents: Sequence[Count], threads: Count) -> Count:
    """Return whether a thread's elements of a tile have constant strides.

    All threads together take whole rows, or even parts of one.
    """
    left, even = threads, np.bool_(True)
    for size in reversed(extents):
        even = even & (np.equal(left % size, 0) | np.equal(size % left, 0))
        left = np.maximum(1, left // size)
    return even


def row_divisions(extents: Sequence[Count], threads: Count) -> Iterator[tuple[Count, Count, Count]]:
    """Yield the divisions of a tile into rows of its last dims.

    Each is whether threads may take such rows, how many at once, and the elements of these.
    """
    length: Count = 1
    for n in range(len(extents) - 1, 0, -1):
        length, size = length * extents[n], extents[n - 1]
        rows = np.maximum(1, threads // length)
        taken = rows * length
        fits = np.less_equal(taken, threads) & np.greater_equal(taken, MIN_BUSY_SHARE * threads)
        yield (fits if n == 1 else fits & (np.equal(rows % size, 0) | np.equal(size % rows, 0))), rows, taken


def whole_row_fetch(extents: Sequence[int], threads: int) -> tuple[int, int] | None:
    """Return the row coordinates of a fetch by whole rows.

    The second number is how many rows threads take at once. None where all elements of a thread have constant strides
    anyway, or where too many threads would idle.
    """
    if prod(extents) <= threads or has_constant_strides(extents, threads):
        return None
    fitting = [(n, int(rows)) for n, (fits, rows, _) in enumerate(row_divisions(extents, threads)) if fits]
    return (len(extents) - 1 - fitting[-1][0], fitting[-1][1]) if fitting else None


def line_fetch(extents: Sequence[int], threads: int, nbytes: int) -> int:
    """Return the lines of a row in a fetch of whole lines.

    One copy moves `nbytes`. 0 where threads would not take lines evenly.
    """
    *rows, length = extents
    together = LINE_BYTES // nbytes
    even = length % together == 0 and prod(extents) % threads == 0
    lines = length // together
    return lines if even and lines > 1 and has_constant_strides((lines, *rows, together), threads) else 0
