"""Searching for garbage, seldom, while much is made that is none; and keeping memory that is freed.

A compilation makes many small objects that stay, and hardly any cycles. Python searches all that there is for cycles
again and again, what PyTorch brought along included, which takes a quarter of a search's processor time.

A compiler asks for tens of megabytes, frees them, and asks again for the next kernel. What is given back to the system
comes back page by page, each with a fault: 3,200 of them a kernel in place of 50, which is 3 % of its time.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from attrs import define, field

#: Objects between two searches of the youngest; of ten such searches, one is of older objects.
SELDOM = 100_000, 10, 100


#: What the C library is told: how much that is free stays with the process, from which size on a block is mapped by
#: itself, and by how much more than is asked for the process grows. The options' numbers are those of malloc.h.
KEPT = {-1: 256 << 20, -3: 32 << 20, -2: 16 << 20}


@define
class _Inside:
    """How many blocks are under way, and what to go back to behind the last one."""

    blocks: int = 0
    usual: tuple[int, int, int] = (0, 0, 0)
    alone: Lock = field(factory=Lock)


_INSIDE = _Inside()


def collect_seldom() -> None:
    """Search for garbage seldom from now on, and not in what there is."""
    gc.freeze()
    gc.set_threshold(*SELDOM)


def keep_freed() -> None:
    """Keep memory that is freed from now on, where the C library can be told so."""
    try:
        option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # it is another library, or another system
        return
    for number, value in KEPT.items():
        option(number, value)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Search for garbage seldom in a block; blocks may lie in one another and beside one another.

    What was there before is not frozen: only the third kind of search would look at it, which a block does not live to
    see.
    """
    with _INSIDE.alone:
        _INSIDE.blocks += 1
        if _INSIDE.blocks == 1:
            _INSIDE.usual = gc.get_threshold()
            gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        with _INSIDE.alone:
            _INSIDE.blocks -= 1
            if not _INSIDE.blocks:
                _leave_old()
                gc.set_threshold(*_INSIDE.usual)


def _leave_old() -> None:
    """Have all that there is count as old and looked at where the next object that is made would lead to a search of
    everything by the usual thresholds: that takes 2 s behind a large graph, and finds what a block left of garbage
    later, too. What somebody else froze stays frozen; whether anything is, is told by walking through all of it, so
    that it is asked behind large blocks only.
    """
    if gc.get_count()[2] > _INSIDE.usual[2] and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
