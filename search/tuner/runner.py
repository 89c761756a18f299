"""Runner: checks and times candidates on devices and stores the results.

Where a device can, it works while this process continues. A candidate that is much slower than the best so far is
dropped after a few runs; others are timed in turns with the best.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from attrs import frozen

from ..building import BuildResult
from ..database import Measurement
from ..measurement import DeviceAnswer, TimingTurns, Verdict
from ..settings import Settings
from ..trace import Rejected
from .executor import SearchExecutor
from .task_record import Entry, TaskRecord


@frozen(eq=False)
class _Request:
    """Request to a device: a candidate to check, if any, and others to time in turns."""

    task: TaskRecord
    entry: Entry | None
    turns: Sequence[Entry]


class MeasurementRunner:
    """Candidates of one search that are checked and timed."""

    def __init__(self, executor: SearchExecutor, settings: Settings) -> None:
        self.executor = executor
        self.settings = settings
        self._requests: dict[str, _Request] = {}

    @property
    def running(self) -> Collection[TaskRecord]:
        """Tasks with a running request to a device."""
        return [each.task for each in self._requests.values()]

    def is_free(self, task: TaskRecord) -> bool:
        """Return whether the device of a task has nothing to check."""
        return self.executor.bench.is_free(task.problem)

    def receive(self, timeout: float = 0.0) -> None:
        """Receive finished measurements; requests of an earlier search have no receiver."""
        if not self.executor.opened:
            return
        with self.executor.statistics.phase("check"):
            ended = self.executor.bench.take_finished(timeout)
        for key, measured in ended:
            if key in self._requests:
                asked = self._requests.pop(key)
                asked.task.waiting -= 1
                self._take_times(asked, measured)

    def time_in_turns(self, task: TaskRecord, entries: Sequence[Entry], rounds: int) -> bool:
        """Have valid candidates timed in turns; return whether there are any."""
        task.turns = [entry for entry in entries if entry.outcome == "ok" and entry.built is not None] * rounds
        return bool(task.turns)

    def measure(self, task: TaskRecord, entry: Entry) -> None:
        """Have a candidate checked and timed.

        A few runs come first, and as many again, in turns with the best so far, unless it is hopeless.
        """
        self._request(task, entry, self._turns_of(task, entry))

    def _turns_of(self, task: TaskRecord, entry: Entry) -> list[Entry]:
        """Return the candidates to time after a successful check, in order.

        Nothing is timed for a reference kernel and for a candidate with times of an earlier session.
        """
        best = task.best
        if entry.trusted or entry.outcome:
            return []
        rivals = [best] if best is not None and best.built is not None and task.alternates else []
        return [entry, *([] if best is None else [*rivals, entry])]

    def time_turns(self, task: TaskRecord) -> None:
        """Have the finalists of a task timed in turns."""
        turns, task.turns = task.turns, []
        self._request(task, None, turns)

    def _request(self, task: TaskRecord, entry: Entry | None, turns: Sequence[Entry]) -> None:
        """Request a check of a candidate, if any, and timing of others in turns."""
        best = task.best
        most = inf if entry is None or best is None else self.settings.hopeless * best.seconds
        asked = TimingTurns(tuple(_name(each) for each in turns), self.settings.runs, most) if turns else None
        with self.executor.statistics.phase("check"):
            self.executor.bench.begin(task.problem, None if entry is None else _code(entry), asked)
        task.waiting += 1
        self._requests[task.problem.key] = _Request(task, entry, turns)
        self.receive()  # a bench in this process has answered

    def _take_times(self, asked: _Request, measured: DeviceAnswer) -> None:
        """Store times with their candidates."""
        task, entry, statistics = asked.task, asked.entry, self.executor.statistics
        if measured.lost and entry is not None:
            task.ready.appendleft(entry)
            return
        if entry is None and measured.verdict.outcome != "ok":  # earlier times of the candidates stay
            return
        if entry is not None and entry.trusted:
            task.untrusted = False
            self.executor.memory.trusted.update([task.problem.key] if measured.verdict.outcome == "ok" else [])
        if entry is not None and (measured.verdict.outcome != "ok" or not asked.turns):
            self.record(task, entry, measured.verdict)
            return
        for each, samples in zip(asked.turns, measured.samples, strict=False):
            each.samples += samples or ()
        statistics.timed += entry is not None
        if measured.failure:
            failing, failed = asked.turns[len(measured.samples)], Verdict("failed", measured.failure)
            self.record(task, failing, failed)
            if failing is entry:
                return
        elif len(measured.samples) < len(asked.turns):
            statistics.dropped += 1
        if entry is not None:
            self.record(task, entry, measured.verdict)

    def record(self, task: TaskRecord, entry: Entry, verdict: Verdict) -> None:
        """Record the result of a candidate."""
        entry.outcome = verdict.outcome
        self.executor.statistics.outcomes[verdict.outcome] += 1
        if verdict.outcome != "ok":
            problem = task.problem
            self.executor.statistics.reject(
                Rejected(verdict.outcome, verdict.message, problem.label, entry.text, problem.work)
            )
        if not entry.trusted:
            with self.executor.statistics.phase("record"):
                self.executor.database.record(task.problem, [measurement_of(entry, verdict.message)], today=True)


def measurement_of(entry: Entry, message: str = "") -> Measurement:
    """Return the database record of a candidate."""
    built, candidate = entry.built, entry.scored.candidate
    seconds = entry.seconds if entry.outcome == "ok" and entry.samples else None
    registers, source = (built.registers, built.source) if built else (0, "")
    return Measurement(
        entry.text, entry.outcome, seconds, entry.spread, registers, source, message, candidate.bound, candidate.score
    )


def _code(entry: Entry) -> BuildResult:
    assert entry.built is not None, "only what was built reaches the device"
    return entry.built


def _name(entry: Entry) -> str:
    kernel = _code(entry).kernel
    assert kernel is not None, "only what was built is timed"
    return kernel.name
