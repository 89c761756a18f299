"""Garbage collector and malloc settings for compilation.

A compilation makes many small objects that stay, and hardly any cycles. With the default thresholds Python scans all
objects for cycles again and again, those of PyTorch included, which takes a quarter of a search's processor time.

A compiler allocates tens of megabytes, frees them, and allocates again for the next kernel. Memory returned to the
system comes back page by page, each with a page fault: 3,200 for each kernel instead of 50, which is 3 % of its time.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from attrs import define, field

#: Thresholds of the garbage collector's three generations.
GC_THRESHOLDS = 400_000, 10, 100


#: Options of mallopt, by their numbers in malloc.h: bytes of free memory that stay with the process, the smallest block
#: that is mapped separately, and the growth of the heap beyond a request.
MALLOC_OPTIONS = {-1: 256 << 20, -3: 32 << 20, -2: 16 << 20}


@define
class _ActiveBlocks:
    """Number of active blocks, the thresholds to restore after the last one, and whether other code froze objects."""

    blocks: int = 0
    frozen: bool = False
    usual: tuple[int, int, int] = (0, 0, 0)
    alone: Lock = field(factory=Lock)


_ACTIVE = _ActiveBlocks()


def reduce_garbage_collection() -> None:
    """Collect garbage rarely from now on, and ignore existing objects."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def keep_freed_memory() -> None:
    """Keep freed memory in the process, where malloc has options."""
    try:
        option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library or system
        return
    for number, value in MALLOC_OPTIONS.items():
        option(number, value)


@contextmanager
def reduced_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely in a block; blocks may be nested or concurrent.

    Existing objects are not frozen: only the oldest generation would look at them, and a block ends before that.
    """
    with _ACTIVE.alone:
        _ACTIVE.blocks += 1
        if _ACTIVE.blocks == 1:
            _ACTIVE.usual = gc.get_threshold()
            gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        with _ACTIVE.alone:
            _ACTIVE.blocks -= 1
            if not _ACTIVE.blocks:
                _age_objects()
                gc.set_threshold(*_ACTIVE.usual)


def _age_objects() -> None:
    """Move all objects into the oldest generation where the usual thresholds would trigger a full collection next.

    A full collection takes 2 s after a large graph; the garbage of a block is found later. Objects that other code
    froze stay frozen. Counting frozen objects walks through all of them, so it is done after large blocks only, and no
    longer once there are some.
    """
    if gc.get_count()[2] > _ACTIVE.usual[2] and not _ACTIVE.frozen:
        _ACTIVE.frozen = gc.get_freeze_count() > 0
        if not _ACTIVE.frozen:
            gc.freeze()
            gc.unfreeze()
