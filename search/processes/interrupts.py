"""Handling of the first keyboard interrupt of a session."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...ir import Budget


@contextmanager
def first_interrupt_stops(budget: Budget) -> Iterator[None]:
    """End a budget at the first interrupt in a block.

    The search then returns the best so far. A program that handles interrupts itself keeps its handler; other threads
    than the main one get no interrupts.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield
        return

    def stop(number: int, frame: object) -> None:
        budget.stop()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
