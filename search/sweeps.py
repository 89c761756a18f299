"""Sweeps: points drawn from the spaces of problems are built, checked and timed, whatever the model or a strategy
thinks of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from math import inf
from typing import TypeAlias

from attrs import define, field

from ..ir import WHOLE, PassError
from .build import DRAW_LIMIT, Done, Scored
from .problem import schedule_text
from .resources import Resources
from .sample_points import Drawn
from .settings import Settings
from .task import Entry, SearchTask
from .trials import Trials

#: Problems whose points are drawn and built ahead of the one that is timed.
AHEAD = 4
#: By how much clocks may differ from those of an earlier sweep, as a part of a time.
DRIFT = 0.05
#: What became of points of an earlier sweep that was cut short: outcome and samples by problem and schedule.
KeptPoints: TypeAlias = dict[str, dict[str, tuple[str, list[float]]]]


@define(eq=False)
class PointList(SearchTask):
    """No search: points that were drawn beforehand are timed, each by itself; `turn` is the number of the list among
    those that are timed together.
    """

    turn: int = field(default=0, kw_only=True)

    @property
    def alternates(self) -> bool:
        """Nothing is timed in turns."""
        return False

    @property
    def gain(self) -> float:
        """Points are timed in the order in which they are built."""
        return inf

    @property
    def finished(self) -> bool:
        """Whether no point of it waits to be built or timed."""
        return not self.waiting and not self.ready


@define(eq=False)
class Sweep(PointList):
    """`count` points drawn from the space of a problem, each held against the `chosen` one; what beats it is compared
    with it at the end.
    """

    chosen: Entry = field(kw_only=True)
    count: int = field(kw_only=True)
    drawn: Drawn | None = None

    @property
    def best(self) -> Entry:
        """What the others are held against."""
        return self.chosen


class Sweeps:
    """Times sweeps one after another, while workers build the points of those that follow. Points that an earlier sweep
    timed are `kept`, as are those of sweeps that are cut short.
    """

    def __init__(self, resources: Resources, settings: Settings, kept: KeptPoints | None = None) -> None:
        self._resources = resources
        self._settings = settings
        self._trials = Trials(resources, settings)
        self._kept = {} if kept is None else kept

    def run(self, sweeps: Iterable[Sweep]) -> Iterator[Sweep]:
        """Build, check and time the points of each sweep, and yield the sweeps as they are finished, as far as the
        budget reaches.
        """
        self._resources.share = WHOLE
        coming = enumerate(sweeps)
        begun: list[Sweep] = []
        try:
            with self._resources.interruptible():
                while not self._resources.over():
                    for turn, sweep in islice(coming, AHEAD - len(begun)):
                        begun.append(sweep)
                        self._begin(sweep, turn)
                    if not begun:
                        return
                    self._trials.step(begun)
                    self._resources.report(begun)
                    for sweep in [s for s in begun if s.finished and not self._doubted(s)]:
                        yield sweep
                        begun.remove(sweep)
                        self._kept.pop(sweep.problem.key, None)
        finally:
            for sweep in begun:
                self._keep(sweep)
            if not self._resources.complete:
                self._resources.close()

    def compare(self, task: SearchTask, entries: Sequence[Entry]) -> None:
        """Time candidates that ran anew, in turns, so that a drifting clock hits each alike; the workers go on
        meanwhile.
        """
        entries = [e for e in entries if e.outcome == "ok"]
        for entry in entries:
            entry.samples = []
        for entry in chain.from_iterable(repeat(entries, self._settings.rounds)):
            if entry.outcome == "ok" and not self._resources.over():
                self._trials.measurements.again(task, entry)
                self._trials.loop.take_in()

    def _keep(self, sweep: Sweep) -> None:
        """Keep what became of the points of a sweep that was cut short."""
        others = [e for e in sweep.entries.values() if e is not sweep.chosen]
        done = [e for e in others if e.outcome and (e.samples or e.outcome != "ok")]
        if done:
            found = self._kept.setdefault(sweep.problem.key, {})
            found.update((entry.text, (entry.outcome, entry.samples)) for entry in done)

    def _doubted(self, sweep: Sweep) -> bool:
        """Have those points timed again that beat the choice, or nearly do, by the clock of an earlier sweep; say
        whether there are any.
        """
        limit = (1.0 + DRIFT) * sweep.chosen.seconds
        doubtful = [e for e in sweep.entries.values() if e.built is None and e.outcome == "ok" and e.seconds < limit]
        for entry in doubtful:
            entry.samples, entry.outcome = [], ""
            self._trials.build(sweep, entry, sweep.turn)
        return bool(doubtful)

    def _begin(self, sweep: Sweep, turn: int) -> None:
        """Have the points of a sweep drawn, and its choice built before them."""
        sweep.turn = turn
        self._resources.database.register(sweep.problem)
        self._trials.refer(sweep)
        sweep.entries[sweep.chosen.text] = sweep.chosen
        self._trials.build(sweep, sweep.chosen, turn)
        wanted = self._settings.model, sweep.count, self._settings.seed
        self._trials.loop.submit(
            sweep, lambda done: self._drawn(sweep, done), "draw", (-2.0, turn), *wanted, limit=DRAW_LIMIT
        )

    def _drawn(self, sweep: Sweep, done: Done) -> None:
        if done.value is None:
            raise PassError(f"{sweep.problem.label or 'a kernel'}: no points can be drawn: {done.error}")
        sweep.drawn, kept = done.value, self._kept.get(sweep.problem.key, {})
        for candidate in sweep.drawn.candidates:
            text = schedule_text(candidate.schedule)
            if text in sweep.entries:
                continue
            entry = sweep.entries[text] = Entry(Scored(None, candidate), text)
            if text in kept:
                entry.outcome, entry.samples = kept[text]
            else:
                self._trials.build(sweep, entry, sweep.turn)
        self._resources.statistics.audited += len(sweep.entries) - 1
