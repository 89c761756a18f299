"""What the first interrupt from the keyboard does while a session runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..ir import Budget


@contextmanager
def first_interrupt_stops(budget: Budget) -> Iterator[None]:
    """Let the first interrupt in a block end a budget, so that whoever looks at it takes the best so far; a second one
    is raised as usual.

    A program that handles interrupts itself is left alone, and so are threads other than the main one, which get none.
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
