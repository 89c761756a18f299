"""Simulated hosts that search, on made-up devices.

Some are lost over a task, some report wrong times.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Sequence

from attrs import evolve
from cuts.search.database import Database
from cuts.search.remote import RemoteTuningLoop
from cuts.search.remote.share_out import UnitAnswer
from cuts.search.remote.unit import SearchUnit, UnitResult
from cuts.search.remote.unit_search import search_unit
from cuts.search.settings import Settings
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.tuner import Tuner

from .fakes import FakeBench, Inline, by_threads, problem_of

SHORT_SEARCH = Settings(first=4, most=8, prove=False)


def made_up(unit: SearchUnit) -> UnitResult:
    """Search on a made-up device."""
    return search_unit(unit, Inline, lambda: FakeBench(by_threads))


class Hosts:
    """Simulated hosts.

    Each unit is `lost` with a chance, or its host tells `lies` about every time.
    """

    def __init__(self, places: int, lost: float = 0.0, lies: Sequence[int] = (), seed: int = 0) -> None:
        self.names = [f"host {k}" for k in range(places)]
        self.lost, self.lies, self.random = lost, [f"host {k}" for k in lies], random.Random(seed)
        self.queue: deque[tuple[int, str, SearchUnit]] = deque()
        self.kills = 0
        self.done: list[str] = []

    @property
    def places(self) -> int:
        return len(self.names)

    @property
    def free(self) -> int:
        return len(self.names) - len(self.queue)

    def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
        busy = {name for _, name, _ in self.queue}
        self.queue.append((number, next(n for n in self.names if n not in busy), unit))

    def collect(self, timeout: float) -> list[UnitAnswer]:
        number, name, unit = self.queue.popleft()
        if self.random.random() < self.lost:
            self.kills += 1
            return [UnitAnswer(number, name, reason=f"{name} is gone")]
        result = made_up(unit)
        self.done.append(unit.problem.key)
        if name in self.lies:
            result = evolve(result, trials=tuple(evolve(t, seconds=0.5 * t.bound) for t in result.trials))
        return [UnitAnswer(number, name, result)]

    def exclude(self, place: Hashable) -> None:
        self.names.remove(str(place))

    def drop(self) -> None:
        self.queue.clear()

    def close(self) -> None:
        self.queue.clear()


def tune_problems(hosts: Hosts | None, problems: Sequence[TuningTask], database: Database, notes: list[str]) -> Tuner:
    tuner = Tuner(SearchExecutor(database, Inline, lambda: FakeBench(by_threads)))
    if hosts is not None:
        tuner = evolve(
            tuner,
            make_search=lambda executor, settings, share: RemoteTuningLoop(
                hosts, executor, settings, share, notes.append
            ),
        )
    return tuner


def results(database: Database, problems: Sequence[TuningTask]) -> list[tuple[str, float]]:
    """Return the winners and how many trials there are of each."""
    return [(w.schedule, w.seconds) for p in problems if (w := database.winner(p)) is not None]


PROBLEMS = [problem_of(size) for size in (8, 16, 24, 32)]
