"""Build queue: sends jobs to workers, and built candidates to the runner.

It also chooses the task that a device measures next, so that workers and devices stay busy. Candidates of a large task
are compared with its simple kernel, which is therefore built and checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

from ...ir import FULL_SHARE, Schedule
from ...passes.schedule import assess
from ..building import COMPILE_LIMIT, BuildResult, JobResult, ScoredCandidate, build_arguments, max_statements_of
from ..database import Measurement
from ..measurement import Verdict
from ..settings import Settings
from ..tasks import MAX_WHOLE_EVALUATIONS, Reference, evaluations, measurement_key, schedule_text
from .executor import Receiver, SearchExecutor
from .runner import MeasurementRunner
from .task_record import Entry, TaskRecord

#: A kernel with long code is built if its predicted time is below this share of all others' (64x64 tiles of a product
#: of odd sizes took 1,719 us where long guarded ones take 800).
PROMISING_SHARE = 0.9
#: Priority of replacements for failed candidates, among first candidates.
REPLACEMENT_PRIORITY = -0.5
#: Seconds in which only the device is awaited; then idle workers get new jobs.
DEVICE_WAIT_SECONDS = 0.003


class BuildQueue:
    """Candidates of one search, from proposal to time.

    `batches` is the number of batches of tasks, which begin one after another; further rounds of a task come after all
    of them. The search may take `share` of the budget.
    """

    def __init__(self, executor: SearchExecutor, settings: Settings, share: float = FULL_SHARE) -> None:
        self.executor = executor
        self.settings = settings
        self.share = share
        self.batches = 1
        self.runner = MeasurementRunner(executor, settings)
        self._current: list[TaskRecord] = []

    def submit(
        self,
        task: TaskRecord,
        receiver: Receiver,
        method: str,
        priority: tuple[float, ...],
        *arguments: object,
        limit: float = COMPILE_LIMIT,
    ) -> None:
        """Queue a job; its task waits until `receiver` has the answer."""

        def take(done: JobResult) -> None:
            task.waiting -= 1
            receiver(done)

        task.waiting += 1
        self.executor.submit(take, method, task.problem, *arguments, priority=priority, limit=limit)

    def prepare_reference(self, task: TaskRecord) -> None:
        """Have a large task's expected outputs and simple kernel computed."""
        if (
            evaluations(task.problem.form) > MAX_WHOLE_EVALUATIONS
            and task.problem.key not in self.executor.memory.trusted
        ):
            task.untrusted = task.unknown = True
            self.submit(task, lambda done: self._take_reference(task, done.value), "refer", (task.place, -1.5))
            self.submit(task, lambda done: self._build_simple(task, done.value), "simple", (task.place, -1.0))

    def propose(self, task: TaskRecord, proposals: Sequence[ScoredCandidate]) -> None:
        """Send proposals to the workers.

        A candidate that was measured in an earlier session counts at once if its source is known to be the same.
        """
        for number, scored in enumerate(proposals):
            text = schedule_text(scored.candidate.schedule)
            if text in task.entries:
                continue
            entry = task.entries[text] = Entry(scored, text)
            known = task.stored.get(text)
            if known is None or not known.holds:
                self.build(task, entry, task.round + number // 4)
                continue
            self._reuse(entry, known)

    def _reuse(self, entry: Entry, known: Measurement) -> None:
        """Use the result of an earlier session for a candidate."""
        self.executor.statistics.reused += 1
        entry.outcome = known.outcome
        entry.samples = [known.seconds] if known.seconds is not None else []

    def build(self, task: TaskRecord, entry: Entry, turn: int) -> None:
        """Have a candidate built, with a priority by its round.

        Replacements for failed first candidates come first, as others may wait for them at the end; then the first
        candidates of all tasks in their order; then those of later rounds, the most advanced task first, since it would
        end last.
        """
        priority = task.place if turn == 0 else self.batches + (1.0 / turn if turn > 1 else 0.0), 0.0, -task.gain
        if turn and task.tried and task.seconds == inf:
            priority = task.place, REPLACEMENT_PRIORITY, -task.gain
        self._build(task, entry, priority, max_statements_of(entry.scored.candidate))

    def build_long(self, task: TaskRecord) -> bool:
        """Build candidates with long code where nothing else runs, if any."""
        long = [e for e in task.entries.values() if e.outcome == "long"] if task.seconds == inf else []
        for entry in long:
            entry.outcome = ""
            self._build(task, entry, (self.batches + task.round, 0.0, -task.gain), inf)
        return bool(long)

    def step(self, tasks: Sequence[TaskRecord]) -> None:
        """Receive built candidates, then measure one, or time finalists in turns.

        A measurement that takes longer than the other work here is received by a later step.
        """
        runner, checked = self.runner, self.runner.running
        if checked:
            self.executor.receive()
        busy = any(task.idle or (task.measurable and runner.is_free(task)) for task in tasks)
        runner.receive(DEVICE_WAIT_SECONDS if checked and not busy else 0.0)
        task = self.next_task(tasks, runner.is_free, runner.running)
        if task is not None and task.ready:
            runner.measure(task, task.take())
        elif task is not None:
            runner.time_turns(task)

    def next_task(
        self,
        tasks: Sequence[TaskRecord],
        free: Callable[[TaskRecord], bool] = lambda task: True,
        checked: Collection[TaskRecord] = (),
    ) -> TaskRecord | None:
        """Receive built candidates and return the task to measure next.

        Return None where nothing is ready. While candidates of other tasks are `checked`, none is awaited.
        """
        ready = bool(checked) or any(t.measurable for t in tasks)
        with self.executor.statistics.phase("wait for workers"):
            self.executor.receive(0.0 if ready else self.executor.pause(self.share))
        waiting = [t for t in tasks if t.measurable and free(t)]
        if not waiting:
            return None
        # A task whose data is in use on a device goes first, then the one with the largest possible saving.
        known = next((t for t in self._current if t in waiting), None)
        chosen = known or max(waiting, key=lambda t: (t.gain, t.weight, t.problem.key))
        self._current = [chosen, *(t for t in self._current if t in checked)]
        return chosen

    # ---- building

    def _take_reference(self, task: TaskRecord, reference: object) -> None:
        """Pass the expected outputs to the device."""
        task.unknown = False
        if isinstance(reference, Reference):
            self.executor.bench.prepare(task.problem, reference)

    def _build_simple(self, task: TaskRecord, schedule: Schedule | None) -> None:
        """Have the simple kernel built, which the others are compared with."""
        task.untrusted = schedule is not None
        if schedule is not None:
            scored = ScoredCandidate(None, assess(task.problem.form, schedule, task.problem.target))
            self._build(task, Entry(scored, schedule_text(schedule), trusted=True), (task.place, -1.0))

    def _build(self, task: TaskRecord, entry: Entry, priority: tuple[float, ...], longest: float = inf) -> None:
        ready = self.executor.memory.ready.pop((task.problem.key, entry.text), None)
        if ready is not None:
            self._take_result(task, entry, ready)
            return
        wishes = build_arguments(entry.scored.candidate, self.settings.hasty, longest)
        self.submit(task, lambda done: self._take_built(task, entry, done), "build", priority, *wishes)

    def _take_built(self, task: TaskRecord, entry: Entry, done: JobResult) -> None:
        if done.value is not None and done.value.outcome == "long":  # not a result to store
            if self._is_promising(task, entry):
                self._build(task, entry, (task.place, 0.0, -task.gain))
                return
            entry.outcome = done.value.outcome
            self.executor.statistics.outcomes["long"] += 1
            return
        if done.value is not None:
            self.executor.memory.keep_built((task.problem.key, entry.text), done.value, done.seconds)
        failed = BuildResult(None, outcome="timeout" if done.hung else "failed", message=done.error)
        self._take_result(task, entry, done.value or failed)

    def _is_promising(self, task: TaskRecord, entry: Entry) -> bool:
        """Return whether a long kernel is predicted that much faster than all others that are not too long.

        Without such others it is compared with the next candidates in order.
        """
        others = [e.scored.candidate.score for e in task.entries.values() if e is not entry and e.outcome != "long"]
        others = others or [s.candidate.score for s in task.first if s.candidate != entry.scored.candidate]
        return entry.scored.candidate.score < PROMISING_SHARE * min(others, default=0.0)

    def _take_result(self, task: TaskRecord, entry: Entry, built: BuildResult) -> None:
        """Take the result of a build: the candidate is timed next, or was refused."""
        entry.built = built
        self.executor.statistics.compiled += 1
        earlier = task.stored.get(entry.text)
        if (
            earlier is not None and earlier.source != built.source
        ):  # measured with other source than this version prints
            entry.samples, entry.outcome = [], ""
            del task.stored[entry.text]
            self.executor.statistics.stale += 1
        elif earlier is not None and not (entry.outcome or entry.trusted) and built.outcome == "ok":
            with self.executor.statistics.phase("record"):
                self.executor.database.note_sources({measurement_key(task.problem.key, entry.text): built.source})
            self._reuse(entry, earlier)
            return
        if built.outcome == "ok":
            task.ready.append(entry)
            return
        task.untrusted = task.untrusted and not entry.trusted
        self.runner.record(task, entry, Verdict(built.outcome, built.message))
