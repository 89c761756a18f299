"""What searches work with: the database, workers and a device that are made when they are first needed, and time that
runs out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from .bench import Bench
from .build import CandidateBuilder
from .database import Database
from .settings import Statistics
from .task import SearchTask


class Resources:
    """Workers, device, database, budget and statistics of all searches of a session.

    Workers and device are kept for further searches until `close`. A run ends when `until` seconds have passed.
    `monitor` is called with the problems that are searched for whenever something happened.
    """

    def __init__(
        self,
        database: Database,
        builder: Callable[[], CandidateBuilder],
        bench: Callable[[], Bench],
        budget: float | None = None,
        monitor: Callable[[Resources, Sequence[SearchTask]], None] = lambda resources, tasks: None,
    ) -> None:
        self.database = database
        self.budget = inf if budget is None else budget
        self.until = inf
        self.statistics = Statistics()
        self.interrupted = self.expired = False
        self._begin = time.monotonic()
        self._makers = builder, bench
        self._builder: CandidateBuilder | None = None
        self._bench: Bench | None = None
        self._monitor = monitor

    @property
    def builder(self) -> CandidateBuilder:
        """The workers."""
        if self._builder is None:
            self._builder = self._makers[0]()
        return self._builder

    @property
    def bench(self) -> Bench:
        """The device."""
        if self._bench is None:
            self._bench = self._makers[1]()
        return self._bench

    @property
    def complete(self) -> bool:
        """Whether every search so far was brought to its end."""
        return not (self.interrupted or self.expired)

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self._begin

    @property
    def pause(self) -> float:
        """Seconds that may be spent waiting before it is looked whether the run is over."""
        return min(0.1, max(0.0, self.until - self.elapsed))

    def over(self) -> bool:
        """Whether the run must end; that it had to is remembered."""
        over = self.elapsed >= self.until
        self.expired = self.expired or over
        return over or self.interrupted

    def report(self, tasks: Sequence[SearchTask]) -> None:
        """Tell the monitor how far the problems are."""
        self._monitor(self, tasks)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let an interrupt end a block and be remembered."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True

    def close(self) -> None:
        """End the workers and give the device back."""
        for part in (self._builder, self._bench):
            if part is not None:
                part.close()
        self._builder = self._bench = None
