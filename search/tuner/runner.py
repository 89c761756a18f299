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
from ..measurement import AsyncBench, DeviceAnswer, TimingTurns, Verdict
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
        bench = self.executor.bench
        return not isinstance(bench, AsyncBench) or bench.is_free(task.problem)

    def receive(self, timeout: float = 0.0) -> None:
        """Receive finished measurements; requests of an earlier search have no receiver."""
        bench = self.executor.bench if self.executor.opened else None
        if not isinstance(bench, AsyncBench):
            return
        with self.executor.statistics.phase("check"):
            ended = bench.take_finished(timeout)
        for key, measured in ended:
            if key in self._requests:
                asked = self._requests.pop(key)
                asked.task.waiting -= 1
                self._take_times(asked, measured)

    def time_in_turns(self, task: TaskRecord, entries: Sequence[Entry], rounds: int) -> bool:
        """Have candidates timed in turns; return whether the result is awaited.

        Nothing is awaited where no candidate is valid or the device answers at once.
        """
        turns = [entry for entry in entries if entry.outcome == "ok" and entry.built is not None] * rounds
        if turns and isinstance(self.executor.bench, AsyncBench):
            task.turns = turns
            return True
        for entry in turns:
            if entry.outcome == "ok":
                self.time_again(task, entry)
        return False

    def measure(self, task: TaskRecord, entry: Entry) -> None:
        """Check a candidate and time it, where possible asynchronously.

        A few runs come first, and as many again, in turns with the best so far, unless it is hopeless.
        """
        bench = self.executor.bench
        if isinstance(bench, AsyncBench):
            self._request(task, entry, self._turns_of(task, entry))
            return
        with self.executor.statistics.phase("check"):
            verdict = bench.check(task.problem, _code(entry))
        self._take_verdict(task, entry, verdict)

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
        bench, best = self.executor.bench, task.best
        assert isinstance(bench, AsyncBench), "it does so beside what else there is to do"
        most = inf if entry is None or best is None else self.settings.hopeless * best.seconds
        asked = TimingTurns(tuple(_name(each) for each in turns), self.settings.runs, most) if turns else None
        with self.executor.statistics.phase("check"):
            bench.begin(task.problem, None if entry is None else _code(entry), asked)
        task.waiting += 1
        self._requests[task.problem.key] = _Request(task, entry, turns)

    def _take_times(self, asked: _Request, measured: DeviceAnswer) -> None:
        """Store times with their candidates."""
        task, entry, statistics = asked.task, asked.entry, self.executor.statistics
        if (
            entry is None and measured.verdict.outcome != "ok"
        ):  # the process was lost: earlier times of the candidates stay
            return
        if entry is not None and (measured.verdict.outcome != "ok" or not (asked.turns and any(measured.samples))):
            self._take_verdict(task, entry, measured.verdict)
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

    def _take_verdict(self, task: TaskRecord, entry: Entry, verdict: Verdict) -> None:
        """Time a correct candidate, unless an earlier session did."""
        if entry.trusted:
            task.untrusted = False
            self.executor.memory.trusted.update([task.problem.key] if verdict.outcome == "ok" else [])
        elif verdict.outcome == "ok" and not entry.outcome:
            verdict = self._time(task, entry)
        self.record(task, entry, verdict)

    def _time(self, task: TaskRecord, entry: Entry) -> Verdict:
        """Time a candidate and wait for the result."""
        best = task.best
        self.executor.statistics.timed += 1
        verdict = self._sample(task, entry)
        if verdict.outcome != "ok" or best is None:
            return verdict
        if entry.seconds > self.settings.hopeless * best.seconds:
            self.executor.statistics.dropped += 1
            return verdict
        if task.alternates:
            self.time_again(task, best)
        return self._sample(task, entry)

    def time_again(self, task: TaskRecord, entry: Entry) -> None:
        """Time a candidate once more; one that fails now is rejected."""
        if entry.built is not None and (verdict := self._sample(task, entry)).outcome != "ok":
            self.record(task, entry, verdict)

    def _sample(self, task: TaskRecord, entry: Entry) -> Verdict:
        with self.executor.statistics.phase("time"):
            timed = self.executor.bench.sample(task.problem, _code(entry), self.settings.runs)
        entry.samples += timed.samples
        return timed.verdict

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
