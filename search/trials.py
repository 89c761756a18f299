"""Build queue: sends jobs to workers, and built candidates to the runner.

It also chooses the task that a device measures next, so that workers and devices stay busy. Candidates of a large task
are compared with its simple kernel, which is therefore built and checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

from attrs import define, field, frozen

from ..ir import Schedule
from ..passes.schedule import assess
from .build import COMPILE_LIMIT, Built, Done, Job, Scored, longest_of, wishes_of
from .data import Reference
from .database import Trial
from .measure import Verdict
from .measurements import Measurements
from .oracle import WHOLE, evaluations
from .problem import schedule_text, trial_key
from .resources import Resources
from .settings import Settings
from .task import Entry, SearchTask

#: A kernel with long code is built if its predicted time is below this share of all others' (64x64 tiles of a product
#: of odd sizes took 1,719 us where long guarded ones take 800).
PROMISING = 0.9
#: Priority of replacements for failed candidates, among first candidates.
REPLACEMENT_PRIORITY = -0.5
#: Seconds in which only the device is awaited; then idle workers get new jobs.
DEVICE_WAIT_SECONDS = 0.003
#: Callback that takes the answer of a worker.
OnDone = Callable[[Done], None]


@frozen
class _Request:
    """Receiver of a job's answer."""

    task: SearchTask
    on_done: OnDone


@define
class DispatchLoop:
    """Loop that sends jobs to workers and chooses tasks to measure."""

    resources: Resources
    _current: list[SearchTask] = field(factory=list, init=False)

    def submit(
        self,
        task: SearchTask,
        on_done: OnDone,
        method: str,
        priority: tuple[float, ...],
        *arguments: object,
        limit: float = COMPILE_LIMIT,
    ) -> None:
        """Queue a job of a task; `on_done` receives its answer."""
        task.waiting += 1
        self.resources.builder.submit(Job(_Request(task, on_done), method, (task.problem, *arguments), priority, limit))

    def take_in(self, timeout: float = 0.0) -> None:
        """Receive workers' answers; wait for one, at most `timeout` seconds.

        A late answer to a query from before the search goes to its receiver.
        """
        for done in self.resources.collect(timeout):
            request = done.job.owner
            if isinstance(request, _Request):
                request.task.waiting -= 1
                request.on_done(done)
            else:
                self.resources.take_in(done)

    def next(
        self,
        tasks: Sequence[SearchTask],
        free: Callable[[SearchTask], bool] = lambda task: True,
        checked: Collection[SearchTask] = (),
    ) -> SearchTask | None:
        """Receive built candidates and return the task to measure next.

        Return None where nothing is ready. While candidates of other tasks are `checked`, none is awaited.
        """
        ready = bool(checked) or any(t.measurable for t in tasks)
        with self.resources.statistics.phase("wait for workers"):
            self.take_in(0.0 if ready else self.resources.pause)
        waiting = [t for t in tasks if t.measurable and free(t)]
        if not waiting:
            return None
        # A task whose data is in use on a device goes first, then the one with the largest possible saving.
        known = next((t for t in self._current if t in waiting), None)
        chosen = known or max(waiting, key=lambda t: (t.gain, t.weight, t.problem.key))
        self._current = [chosen, *(t for t in self._current if t in checked)]
        return chosen


class Trials:
    """Candidates of one search, from proposal to time.

    `batches` is the number of batches of tasks, which begin one after another; further rounds of a task come after all
    of them.
    """

    def __init__(self, resources: Resources, settings: Settings) -> None:
        self.resources = resources
        self.settings = settings
        self.loop = DispatchLoop(resources)
        self.batches = 1
        self.measurements = Measurements(resources, settings)

    def refer(self, task: SearchTask) -> None:
        """Have a large task's expected outputs and simple kernel computed."""
        if evaluations(task.problem.form) > WHOLE and task.problem.key not in self.resources.trusted:
            task.untrusted = task.unknown = True
            self.loop.submit(task, lambda done: self._take_reference(task, done.value), "refer", (task.place, -1.5))
            self.loop.submit(task, lambda done: self._build_simple(task, done.value), "simple", (task.place, -1.0))

    def propose(self, task: SearchTask, proposals: Sequence[Scored]) -> None:
        """Send proposals to the workers.

        A candidate that was measured in an earlier session counts at once if its source is known to be the same.
        """
        for number, scored in enumerate(proposals):
            text = schedule_text(scored.candidate.schedule)
            if text in task.entries:
                continue
            entry = task.entries[text] = Entry(scored, text)
            known = task.trials.get(text)
            if known is None or not known.holds:
                self.build(task, entry, task.round + number // 4)
                continue
            self._reuse(entry, known)

    def _reuse(self, entry: Entry, known: Trial) -> None:
        """Use the result of an earlier session for a candidate."""
        self.resources.statistics.reused += 1
        entry.outcome = known.outcome
        entry.samples = [known.seconds] if known.seconds is not None else []

    def build(self, task: SearchTask, entry: Entry, turn: int) -> None:
        """Have a candidate built, with a priority by its round.

        Replacements for failed first candidates come first, as others may wait for them at the end; then the first
        candidates of all tasks in their order; then those of later rounds, the most advanced task first, since it would
        end last.
        """
        priority = task.place if turn == 0 else self.batches + (1.0 / turn if turn > 1 else 0.0), 0.0, -task.gain
        if turn and task.tried and task.seconds == inf:
            priority = task.place, REPLACEMENT_PRIORITY, -task.gain
        self._build(task, entry, priority, longest_of(entry.scored.candidate))

    def build_long(self, task: SearchTask) -> bool:
        """Build candidates with long code where nothing else runs, if any."""
        long = [e for e in task.entries.values() if e.outcome == "long"] if task.seconds == inf else []
        for entry in long:
            entry.outcome = ""
            self._build(task, entry, (self.batches + task.round, 0.0, -task.gain), inf)
        return bool(long)

    def step(self, tasks: Sequence[SearchTask]) -> None:
        """Receive built candidates, then measure one, or time finalists in turns.

        A measurement that takes longer than the other work here is received by a later step.
        """
        measurements, asked = self.measurements, self.measurements.under_way
        if asked:
            self.loop.take_in()
        busy = any(task.idle or (task.measurable and measurements.free(task)) for task in tasks)
        measurements.look(DEVICE_WAIT_SECONDS if asked and not busy else 0.0)
        task = self.loop.next(tasks, measurements.free, measurements.under_way)
        if task is not None and task.ready:
            measurements.measure(task, task.take())
        elif task is not None:
            measurements.time_turns(task)

    # ---- building

    def _take_reference(self, task: SearchTask, reference: object) -> None:
        """Pass the expected outputs to the device."""
        task.unknown = False
        if isinstance(reference, Reference):
            self.resources.bench.prepare(task.problem, reference)

    def _build_simple(self, task: SearchTask, schedule: Schedule | None) -> None:
        """Have the simple kernel built, which the others are compared with."""
        task.untrusted = schedule is not None
        if schedule is not None:
            scored = Scored(None, assess(task.problem.form, schedule, task.problem.target))
            self._build(task, Entry(scored, schedule_text(schedule), trusted=True), (task.place, -1.0))

    def _build(self, task: SearchTask, entry: Entry, priority: tuple[float, ...], longest: float = inf) -> None:
        ready = self.resources.ready.pop((task.problem.key, entry.text), None)
        if ready is not None:
            self._take_result(task, entry, ready)
            return
        wishes = wishes_of(entry.scored.candidate, self.settings.hasty, longest)
        self.loop.submit(task, lambda done: self._take_built(task, entry, done), "build", priority, *wishes)

    def _take_built(self, task: SearchTask, entry: Entry, done: Done) -> None:
        if done.value is not None and done.value.outcome == "long":  # not a result to store
            if self._is_promising(task, entry):
                self._build(task, entry, (task.place, 0.0, -task.gain))
                return
            entry.outcome = done.value.outcome
            self.resources.statistics.outcomes["long"] += 1
            return
        self.resources.keep_made(task.problem, entry.scored.candidate.schedule, done)
        failed = Built(None, outcome="timeout" if done.hung else "failed", message=done.error)
        self._take_result(task, entry, done.value or failed)

    def _is_promising(self, task: SearchTask, entry: Entry) -> bool:
        """Return whether a long kernel is predicted that much faster than all others that are not too long.

        Without such others it is compared with the next candidates in order.
        """
        others = [e.scored.candidate.score for e in task.entries.values() if e is not entry and e.outcome != "long"]
        others = others or [s.candidate.score for s in task.first if s.candidate != entry.scored.candidate]
        return entry.scored.candidate.score < PROMISING * min(others, default=0.0)

    def _take_result(self, task: SearchTask, entry: Entry, built: Built) -> None:
        """Take the result of a build: the candidate is timed next, or was refused."""
        entry.built = built
        self.resources.statistics.compiled += 1
        earlier = task.trials.get(entry.text)
        if (
            earlier is not None and earlier.source != built.source
        ):  # measured with other source than this version prints
            entry.samples, entry.outcome = [], ""
            del task.trials[entry.text]
            self.resources.statistics.stale += 1
        elif earlier is not None and not (entry.outcome or entry.trusted) and built.outcome == "ok":
            with self.resources.statistics.phase("record"):
                self.resources.database.note_sources({trial_key(task.problem.key, entry.text): built.source})
            self._reuse(entry, earlier)
            return
        if built.outcome == "ok":
            task.ready.append(entry)
            return
        task.untrusted = task.untrusted and not entry.trusted
        self.measurements.settle(task, entry, Verdict(built.outcome, built.message))
