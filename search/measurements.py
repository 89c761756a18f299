"""What devices are asked for, and what comes of it: candidates are checked and timed, beside what else there is to do
where a device can do so, and the database keeps the outcome.

What is much slower than the best so far is dropped after a few runs; other candidates are timed in turns with that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from attrs import frozen

from .bench import SideBench
from .build import Built
from .database import Trial
from .measure import DeviceAnswer, TimingTurns, Verdict
from .resources import Resources
from .settings import Rejected, Settings
from .task import Entry, SearchTask


@frozen(eq=False)
class _Asked:
    """What a device is asked for: a candidate to check, if there is one, and others to time in turns."""

    task: SearchTask
    entry: Entry | None
    turns: Sequence[Entry]


class Measurements:
    """Candidates of one search that are checked and timed."""

    def __init__(self, resources: Resources, settings: Settings) -> None:
        self.resources = resources
        self.settings = settings
        self._asked: dict[str, _Asked] = {}

    @property
    def under_way(self) -> Collection[SearchTask]:
        """The problems of which a device has something to do."""
        return [each.task for each in self._asked.values()]

    def free(self, task: SearchTask) -> bool:
        """Whether a candidate of a problem would be checked at once: its device has none to check."""
        bench = self.resources.bench
        return not isinstance(bench, SideBench) or bench.free(task.problem)

    def look(self, timeout: float = 0.0) -> None:
        """Take in what devices have checked and timed; what an earlier search asked for is nobody's."""
        bench = self.resources.bench if self.resources.opened else None
        if not isinstance(bench, SideBench):
            return
        with self.resources.statistics.phase("check"):
            ended = bench.ended(timeout)
        for key, measured in ended:
            if key in self._asked:
                asked = self._asked.pop(key)
                asked.task.waiting -= 1
                self._measured(asked, measured)

    def in_turns(self, task: SearchTask, entries: Sequence[Entry], rounds: int) -> bool:
        """Have candidates timed in turns, and say whether that was asked for and is waited for: there may be nothing to
        ask, or a device that answers at once.
        """
        turns = [entry for entry in entries if entry.outcome == "ok" and entry.built is not None] * rounds
        if turns and isinstance(self.resources.bench, SideBench):
            task.turns = turns
            return True
        for entry in turns:
            if entry.outcome == "ok":
                self.again(task, entry)
        return False

    def measure(self, task: SearchTask, entry: Entry) -> None:
        """Check a candidate, and time it: a few runs, and if it is not hopeless as many again, in turns with the best
        so far; all that beside what else there is to do where the device can do so.
        """
        bench = self.resources.bench
        if isinstance(bench, SideBench):
            self._ask(task, entry, self._turns_of(task, entry))
            return
        with self.resources.statistics.phase("check"):
            verdict = bench.check(task.problem, _code(entry))
        self._checked(task, entry, verdict)

    def _turns_of(self, task: SearchTask, entry: Entry) -> list[Entry]:
        """Return what is timed where a candidate is right, in order: nothing where that was done in an earlier session,
        and of what others are held against.
        """
        best = task.best
        if entry.trusted or entry.outcome:
            return []
        rivals = [best] if best is not None and best.built is not None and task.alternates else []
        return [entry, *([] if best is None else [*rivals, entry])]

    def time_turns(self, task: SearchTask) -> None:
        """Have the last candidates of a problem timed in turns."""
        turns, task.turns = task.turns, []
        self._ask(task, None, turns)

    def _ask(self, task: SearchTask, entry: Entry | None, turns: Sequence[Entry]) -> None:
        """Have a candidate checked, if there is one, and others timed in turns."""
        bench, best = self.resources.bench, task.best
        assert isinstance(bench, SideBench), "it does so beside what else there is to do"
        most = inf if entry is None or best is None else self.settings.hopeless * best.seconds
        asked = TimingTurns(tuple(_name(each) for each in turns), self.settings.runs, most) if turns else None
        with self.resources.statistics.phase("check"):
            bench.begin(task.problem, None if entry is None else _code(entry), asked)
        task.waiting += 1
        self._asked[task.problem.key] = _Asked(task, entry, turns)

    def _measured(self, asked: _Asked, measured: DeviceAnswer) -> None:
        """Take in times, each with the candidate that it is of."""
        task, entry, statistics = asked.task, asked.entry, self.resources.statistics
        if entry is None and measured.verdict.outcome != "ok":  # the process was lost: what they took before counts
            return
        if entry is not None and (measured.verdict.outcome != "ok" or not (asked.turns and any(measured.samples))):
            self._checked(task, entry, measured.verdict)
            return
        for each, samples in zip(asked.turns, measured.samples, strict=False):
            each.samples += samples or ()
        statistics.timed += entry is not None
        if measured.failure:
            failing, failed = asked.turns[len(measured.samples)], Verdict("failed", measured.failure)
            self.settle(task, failing, failed)
            if failing is entry:
                return
        elif len(measured.samples) < len(asked.turns):
            statistics.dropped += 1
        if entry is not None:
            self.settle(task, entry, measured.verdict)

    def _checked(self, task: SearchTask, entry: Entry, verdict: Verdict) -> None:
        """Time a candidate that is right, unless that was done in an earlier session."""
        if entry.trusted:
            task.untrusted = False
            self.resources.trusted.update([task.problem.key] if verdict.outcome == "ok" else [])
        elif verdict.outcome == "ok" and not entry.outcome:
            verdict = self._time(task, entry)
        self.settle(task, entry, verdict)

    def _time(self, task: SearchTask, entry: Entry) -> Verdict:
        """Time a candidate, which this process waits for."""
        best = task.best
        self.resources.statistics.timed += 1
        verdict = self._sample(task, entry)
        if verdict.outcome != "ok" or best is None:
            return verdict
        if entry.seconds > self.settings.hopeless * best.seconds:
            self.resources.statistics.dropped += 1
            return verdict
        if task.alternates:
            self.again(task, best)
        return self._sample(task, entry)

    def again(self, task: SearchTask, entry: Entry) -> None:
        """Time a candidate once more; one that fails now has lost."""
        if entry.built is not None and (verdict := self._sample(task, entry)).outcome != "ok":
            self.settle(task, entry, verdict)

    def _sample(self, task: SearchTask, entry: Entry) -> Verdict:
        with self.resources.statistics.phase("time"):
            timed = self.resources.bench.sample(task.problem, _code(entry), self.settings.runs)
        entry.samples += timed.samples
        return timed.verdict

    def settle(self, task: SearchTask, entry: Entry, verdict: Verdict) -> None:
        """Record what became of a candidate."""
        entry.outcome = verdict.outcome
        self.resources.statistics.outcomes[verdict.outcome] += 1
        if verdict.outcome != "ok":
            problem = task.problem
            self.resources.statistics.reject(
                Rejected(verdict.outcome, verdict.message, problem.label, entry.text, problem.work)
            )
        if not entry.trusted:
            with self.resources.statistics.phase("record"):
                self.resources.database.record(task.problem, [trial_of(entry, verdict.message)], today=True)


def trial_of(entry: Entry, message: str = "") -> Trial:
    """Return what the database keeps of a candidate."""
    built, candidate = entry.built, entry.scored.candidate
    seconds = entry.seconds if entry.outcome == "ok" and entry.samples else None
    registers, source = (built.registers, built.source) if built else (0, "")
    return Trial(
        entry.text, entry.outcome, seconds, entry.spread, registers, source, message, candidate.bound, candidate.score
    )


def _code(entry: Entry) -> Built:
    assert entry.built is not None, "only what was built reaches the device"
    return entry.built


def _name(entry: Entry) -> str:
    """Return the name of a candidate's kernel."""
    kernel = _code(entry).kernel
    assert kernel is not None, "only what was built is timed"
    return kernel.name
