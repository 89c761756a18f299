"""Progress of a search: a bar on a terminal, else lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from ..tuner import SearchExecutor, TaskRecord

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

#: Seconds between plain lines, and between updates of the bar.
LINE_SECONDS, UPDATE_SECONDS = 5.0, 0.1
#: Columns of a terminal that the bar takes at most, and those that its title, the time and the gaps take.
BAR_COLUMNS, OTHER_COLUMNS = 24, 18


class Monitor:
    """Show the progress of a search at intervals; `close` ends the bar.

    Without a terminal, `write` gets plain lines.
    """

    def __init__(self, write: Callable[[str], None], terminal: Console | None = None) -> None:
        self._write = write
        self._terminal = terminal
        self._last = time.monotonic()
        self._bar: Progress | None = None

    def __call__(self, executor: SearchExecutor, tasks: Sequence[TaskRecord]) -> None:
        """Show the state of the tasks now."""
        now = time.monotonic()
        if now - self._last < (UPDATE_SECONDS if self._terminal else LINE_SECONDS):
            return
        self._last = now
        self.show(share(tasks), status(executor, tasks))

    def show(self, done: float, words: Sequence[str]) -> None:
        """Show a finished share, and the first words that fit."""
        if self._terminal is None:
            self._write(f"tuning: {', '.join(words)}")
            return
        width = min(BAR_COLUMNS, self._terminal.width // 6)
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("tuning"), BarColumn(width), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._terminal, transient=True, redirect_stdout=False)
            self._bar.add_task("", total=1.0)
            self._bar.start()
        text = fitting(words, self._terminal.width - width - OTHER_COLUMNS)
        self._bar.update(self._bar.task_ids[0], completed=done, description=text)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def fitting(words: Sequence[str], columns: int) -> str:
    """Return the first words that fit into so many columns."""
    count = max((n for n in range(len(words) + 1) if len(", ".join(words[:n])) <= columns), default=0)
    return ", ".join(words[:count])


def share(tasks: Sequence[TaskRecord]) -> float:
    """Return the finished share of the work, by kernels and their candidates."""
    if not tasks:
        return 0.0
    parts = [
        1.0 if t.choice is not None else min(0.9, len([e for e in t.entries.values() if e.outcome]) / 40) for t in tasks
    ]
    return sum(parts) / len(parts)


def status(executor: SearchExecutor, tasks: Sequence[TaskRecord]) -> list[str]:
    """Return kernels, time left, times and measurements in words."""
    done = share(tasks)
    finished = sum(t.choice is not None for t in tasks)
    start = sum(t.start * t.problem.uses for t in tasks if t.start is not None)
    best = sum(t.seconds * t.problem.uses for t in tasks if t.start is not None and t.seconds < inf)
    left = executor.elapsed * (1 - done) / done if done > 0.02 else inf
    left = min(left, executor.budget.remaining())
    words = [f"{finished}/{len(tasks)} kernels"]
    if left < inf:
        words.append(f"about {max(0.0, left):.0f} s left")
    if start:
        words += [f"best {best * 1e3:.3f} ms", f"at first {start * 1e3:.3f} ms"]
    return [*words, f"{executor.statistics.timed} trials"]


def make_monitor(quiet: bool = False, environment: Mapping[str, str] = os.environ) -> Monitor:
    """Return the monitor that suits standard error."""
    if quiet:
        return Monitor(lambda line: None)
    terminal: Console | None = None
    if sys.stderr.isatty() and environment.get("TERM") != "dumb" and not environment.get("CI"):
        from rich.console import Console

        terminal = Console(stderr=True)
    return Monitor(lambda line: print(line, file=sys.stderr, flush=True), terminal)
