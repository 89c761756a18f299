"""Searching for garbage, seldom, while much is made that is none.

A compilation makes many small objects that stay, and hardly any cycles. Python searches all that there is for cycles
again and again, what PyTorch brought along included, which takes a quarter of a search's processor time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from attrs import define, field

#: Objects between two searches of the youngest; of ten such searches, one is of older objects.
SELDOM = 100_000, 10, 100


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


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Search for garbage seldom in a block; blocks may lie in one another and beside one another.

    What was there before is not frozen: only the third kind of search would look at it, which a block does not live to
    see, and whether somebody else froze something is told by walking through all of it.
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
                gc.set_threshold(*_INSIDE.usual)
