"""Sweeps: candidates sampled from tuning tasks' spaces are built, checked and timed.

Sampling does not depend on the cost model or a strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from math import inf

from attrs import define, field

from ...ir import PassError
from ..building import DRAW_LIMIT, JobResult, ScoredCandidate
from ..settings import Settings
from ..tasks import SampledCandidates, schedule_text
from ..tuner import BuildQueue, Entry, SearchExecutor, TaskRecord

#: Tasks whose candidates are sampled and built before the current one is finished.
PREFETCHED_TASKS = 4


@define(eq=False)
class CandidateList(TaskRecord):
    """Sampled candidates that are timed one by one, without a search.

    `turn` is the number of the list among those that are timed together.
    """

    turn: int = field(default=0, kw_only=True)

    @property
    def alternates(self) -> bool:
        """False: nothing is timed in turns."""
        return False

    @property
    def gain(self) -> float:
        """Infinity: candidates are timed in the order in which they are built."""
        return inf

    @property
    def finished(self) -> bool:
        """True if no candidate waits to be built or timed."""
        return not self.waiting and not self.ready


@define(eq=False)
class Sweep(CandidateList):
    """Sample of `count` candidates of a task, compared with the `chosen` one.

    Faster ones are timed again with it at the end.
    """

    chosen: Entry = field(kw_only=True)
    count: int = field(kw_only=True)
    drawn: SampledCandidates | None = None

    @property
    def best(self) -> Entry:
        """Candidate that the others are compared with."""
        return self.chosen


class SweepRunner:
    """Time sweeps one by one, while workers build the next ones."""

    def __init__(self, executor: SearchExecutor, settings: Settings) -> None:
        self._executor = executor
        self._settings = settings
        self._trials = BuildQueue(executor, settings)

    def run(self, sweeps: Iterable[Sweep]) -> Iterator[Sweep]:
        """Build, check and time the candidates of each sweep within the budget.

        Yield each sweep when it is finished.
        """
        remaining = enumerate(sweeps)
        begun: list[Sweep] = []
        try:
            with self._executor.interruptible():
                while not self._executor.over():
                    for turn, sweep in islice(remaining, PREFETCHED_TASKS - len(begun)):
                        begun.append(sweep)
                        self._begin(sweep, turn)
                    if not begun:
                        return
                    self._trials.step(begun)
                    self._executor.report(begun)
                    for sweep in [s for s in begun if s.finished]:
                        yield sweep
                        begun.remove(sweep)
        finally:
            if not self._executor.complete:
                self._executor.close()

    def compare(self, task: TaskRecord, entries: Sequence[Entry]) -> None:
        """Time candidates again, in turns, so that clock drift affects all equally.

        Workers go on meanwhile.
        """
        entries = [e for e in entries if e.outcome == "ok"]
        for entry in entries:
            entry.samples = []
        for entry in chain.from_iterable(repeat(entries, self._settings.rounds)):
            if entry.outcome == "ok" and entry.built is not None and not self._executor.over():
                timed = self._executor.bench.sample(task.problem, entry.built, self._settings.runs)
                entry.samples += timed.samples
                if timed.verdict.outcome != "ok":
                    self._trials.runner.record(task, entry, timed.verdict)
                self._executor.receive()

    def _begin(self, sweep: Sweep, turn: int) -> None:
        """Have candidates of a sweep sampled, and its choice built before them."""
        sweep.turn = turn
        self._executor.database.register(sweep.problem)
        self._trials.prepare_reference(sweep)
        sweep.entries[sweep.chosen.text] = sweep.chosen
        self._trials.build(sweep, sweep.chosen, turn)
        wanted = self._settings.pruning, sweep.count, self._settings.seed
        self._trials.submit(
            sweep, lambda done: self._take_sample(sweep, done), "draw", (-2.0, turn), *wanted, limit=DRAW_LIMIT
        )

    def _take_sample(self, sweep: Sweep, done: JobResult) -> None:
        if done.value is None:
            raise PassError(f"{sweep.problem.label or 'a kernel'}: no points can be drawn: {done.error}")
        sweep.drawn = done.value
        for candidate in sweep.drawn.candidates:
            text = schedule_text(candidate.schedule)
            if text not in sweep.entries:
                entry = sweep.entries[text] = Entry(ScoredCandidate(None, candidate), text)
                self._trials.build(sweep, entry, sweep.turn)
        self._executor.statistics.audited += len(sweep.entries) - 1
