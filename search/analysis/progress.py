"""Progress of a search: a bar on a terminal, else lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..tuner import SearchExecutor, TaskRecord

#: Seconds between plain lines, and between updates of the bar.
LINE_SECONDS, UPDATE_SECONDS = 5.0, 0.1


class Monitor:
    """Show the progress of a search at intervals; `close` ends the bar."""

    def __init__(self, write: Callable[[str], None], terminal: bool) -> None:
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
        text = status(executor, tasks)
        if not self._terminal:
            self._write(f"tuning: {text}")
            return
        if self._bar is None:
            columns = (TextColumn("tuning"), BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task("", total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=share(tasks), description=text)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def share(tasks: Sequence[TaskRecord]) -> float:
    """Return the finished share of the work, by kernels and their candidates."""
    if not tasks:
        return 0.0
    parts = [
        1.0 if t.choice is not None else min(0.9, len([e for e in t.entries.values() if e.outcome]) / 40) for t in tasks
    ]
    return sum(parts) / len(parts)


def status(executor: SearchExecutor, tasks: Sequence[TaskRecord]) -> str:
    """Return a line of measurements, kernels, best time and time left."""
    done = share(tasks)
    finished = sum(t.choice is not None for t in tasks)
    start = sum(t.start * t.problem.uses for t in tasks if t.start is not None)
    best = sum(t.seconds * t.problem.uses for t in tasks if t.start is not None and t.seconds < inf)
    left = executor.elapsed * (1 - done) / done if done > 0.02 else inf
    left = min(left, executor.budget.remaining())
    words = [f"{executor.statistics.timed} trials", f"{finished}/{len(tasks)} kernels"]
    if start:
        words.append(f"best so far {best * 1e3:.3f} ms, at first {start * 1e3:.3f} ms")
    if left < inf:
        words.append(f"about {max(0.0, left):.0f} s left")
    return ", ".join(words)


def make_monitor(quiet: bool = False, environment: Mapping[str, str] = os.environ) -> Monitor:
    """Return the monitor that suits standard error."""
    terminal = sys.stderr.isatty() and environment.get("TERM") != "dumb" and not environment.get("CI")

    def write(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    return Monitor(write, terminal and not quiet)
