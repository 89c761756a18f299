"""Progress of a compilation that takes longer than a few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console

from . import console

#: Seconds before the first line, between updates on a terminal, and between lines elsewhere.
PATIENCE, UPDATES, LINES = 2.0, 0.1, 10.0


class CompileProgress:
    """Progress of a compilation: its last finished pass and its duration."""

    def __init__(self) -> None:
        self.finished = ""

    def report_pass(self, name: str) -> None:
        """Record a finished pass."""
        self.finished = name

    @contextmanager
    def show(self) -> Iterator[None]:
        """Context manager that shows progress.

        It is a line that changes on a terminal, else a plain line now and then.
        """
        over = Event()
        thread = Thread(target=self._show, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _show(self, over: Event) -> None:
        start = time.monotonic()
        if over.wait(PATIENCE):
            return
        if not sys.stderr.isatty():
            console.note(self._text(start))
            while not over.wait(LINES):
                console.note(self._text(start))
            return
        with Console(stderr=True).status(self._text(start)) as line:
            while not over.wait(UPDATES):
                line.update(self._text(start))

    def _text(self, start: float) -> str:
        done = f", '{self.finished}' is done" if self.finished else ""
        return f"compiling: {time.monotonic() - start:.0f} s{done}"
