"""What becomes of candidates: workers build them, and what was built is measured (`measurements.py`). Jobs go out,
answers are handed on, and a device is told whose candidate it takes next, so that workers and devices are busy.

Those of a large problem are held against its simple kernel, which is therefore built and checked before them.
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

#: Part of the estimates of all others by which a long kernel is worth its time all the same: a product of odd sizes,
#: whose tiles are guarded, took 1,719 us in 64x64 where those that were left out take 800.
PROMISING = 0.9
#: The priority of what takes the place of what failed, among first candidates.
AGAIN = -0.5
#: Seconds in which nothing but the device is waited for: then workers that are done get something else to do.
SOON = 0.003
#: Takes the answer of a worker.
Then = Callable[[Done], None]


@frozen
class _Request:
    """Whom the answer to a job is for."""

    task: SearchTask
    then: Then


@define
class DispatchLoop:
    """Sends jobs of problems to the workers, and chooses between problems that have something to measure."""

    resources: Resources
    _current: list[SearchTask] = field(factory=list, init=False)

    def submit(
        self,
        task: SearchTask,
        then: Then,
        method: str,
        priority: tuple[float, ...],
        *arguments: object,
        limit: float = COMPILE_LIMIT,
    ) -> None:
        """Have a worker do a job for a problem; `then` takes the answer when it is taken in."""
        task.waiting += 1
        self.resources.builder.submit(Job(_Request(task, then), method, (task.problem, *arguments), priority, limit))

    def take_in(self, timeout: float = 0.0) -> None:
        """Take in what the workers have done; wait for something, but no longer than `timeout`. What was asked before a
        search, and is answered only now, is for whoever asked.
        """
        for done in self.resources.collect(timeout):
            request = done.job.owner
            if isinstance(request, _Request):
                request.task.waiting -= 1
                request.then(done)
            else:
                self.resources.take_in(done)

    def next(
        self,
        tasks: Sequence[SearchTask],
        free: Callable[[SearchTask], bool] = lambda task: True,
        checked: Collection[SearchTask] = (),
    ) -> SearchTask | None:
        """Take in what was built, and return the problem of which a candidate is measured now, on a device that is
        `free`; none where nothing is ready. Where candidates of others are `checked` meanwhile, none is waited for.
        """
        ready = bool(checked) or any(t.measurable for t in tasks)
        with self.resources.statistics.phase("wait for workers"):
            self.take_in(0.0 if ready else self.resources.pause)
        waiting = [t for t in tasks if t.measurable and free(t)]
        if not waiting:
            return None
        # A problem whose data is in use on some device goes first, then the one that promises most.
        known = next((t for t in self._current if t in waiting), None)
        chosen = known or max(waiting, key=lambda t: (t.gain, t.weight, t.problem.key))
        self._current = [chosen, *(t for t in self._current if t in checked)]
        return chosen


class Trials:
    """Candidates of one search on their way from a proposal to a time. `batches` is how many batches of problems there
    are, which begin one after another; further rounds of a problem come behind all of them.
    """

    def __init__(self, resources: Resources, settings: Settings) -> None:
        self.resources = resources
        self.settings = settings
        self.loop = DispatchLoop(resources)
        self.batches = 1
        self.measurements = Measurements(resources, settings)

    def refer(self, task: SearchTask) -> None:
        """Have computed what the outputs of a large problem must be, and its simple kernel made."""
        if evaluations(task.problem.form) > WHOLE and task.problem.key not in self.resources.trusted:
            task.untrusted = task.unknown = True
            self.loop.submit(task, lambda done: self._known(task, done.value), "refer", (task.place, -1.5))
            self.loop.submit(task, lambda done: self._trust(task, done.value), "simple", (task.place, -1.0))

    def propose(self, task: SearchTask, proposals: Sequence[Scored]) -> None:
        """Send proposals to the workers; those that were tried in an earlier session count at once, if it is known that
        they are written today as they were.
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
        """Take what became of a candidate in an earlier session for what becomes of it."""
        self.resources.statistics.reused += 1
        entry.outcome = known.outcome
        entry.samples = [known.seconds] if known.seconds is not None else []

    def build(self, task: SearchTask, entry: Entry, turn: int) -> None:
        """Have a candidate built: what takes the place of a problem's first ones that failed, for which others may have
        to wait in the end; the first of all problems, then what is first proposed of each; of problems that are further
        those before others that are furthest, as what goes on for most rounds would end last, by itself.
        """
        priority = task.place if turn == 0 else self.batches + (1.0 / turn if turn > 1 else 0.0), 0.0, -task.gain
        if turn and task.tried and task.seconds == inf:
            priority = task.place, AGAIN, -task.gain
        self._build(task, entry, priority, longest_of(entry.scored.candidate))

    def build_long(self, task: SearchTask) -> bool:
        """Have built what was too long, where nothing else runs; say whether there is any."""
        long = [e for e in task.entries.values() if e.outcome == "long"] if task.seconds == inf else []
        for entry in long:
            entry.outcome = ""
            self._build(task, entry, (self.batches + task.round, 0.0, -task.gain), inf)
        return bool(long)

    def step(self, tasks: Sequence[SearchTask]) -> None:
        """Take in what was built, and have one candidate checked and timed, or the last ones of a problem timed in
        turns; what takes longer than there is to do here is taken in by a later step.
        """
        measurements, asked = self.measurements, self.measurements.under_way
        if asked:
            self.loop.take_in()
        busy = any(task.idle or (task.measurable and measurements.free(task)) for task in tasks)
        measurements.look(SOON if asked and not busy else 0.0)
        task = self.loop.next(tasks, measurements.free, measurements.under_way)
        if task is not None and task.ready:
            measurements.measure(task, task.take())
        elif task is not None:
            measurements.time_turns(task)

    # ---- building

    def _known(self, task: SearchTask, reference: object) -> None:
        """Tell the device what the outputs must be."""
        task.unknown = False
        if isinstance(reference, Reference):
            self.resources.bench.prepare(task.problem, reference)

    def _trust(self, task: SearchTask, schedule: Schedule | None) -> None:
        """Have the simple kernel built, which the others are held against."""
        task.untrusted = schedule is not None
        if schedule is not None:
            scored = Scored(None, assess(task.problem.form, schedule, task.problem.target))
            self._build(task, Entry(scored, schedule_text(schedule), trusted=True), (task.place, -1.0))

    def _build(self, task: SearchTask, entry: Entry, priority: tuple[float, ...], longest: float = inf) -> None:
        ready = self.resources.ready.pop((task.problem.key, entry.text), None)
        if ready is not None:
            self._have(task, entry, ready)
            return
        wishes = wishes_of(entry.scored.candidate, self.settings.hasty, longest)
        self.loop.submit(task, lambda done: self._built(task, entry, done), "build", priority, *wishes)

    def _built(self, task: SearchTask, entry: Entry, done: Done) -> None:
        if done.value is not None and done.value.outcome == "long":  # which is no result to remember
            if self._promises(task, entry):
                self._build(task, entry, (task.place, 0.0, -task.gain))
                return
            entry.outcome = done.value.outcome
            self.resources.statistics.outcomes["long"] += 1
            return
        self.resources.keep_made(task.problem, entry.scored.candidate.schedule, done)
        failed = Built(None, outcome="timeout" if done.hung else "failed", message=done.error)
        self._have(task, entry, done.value or failed)

    def _promises(self, task: SearchTask, entry: Entry) -> bool:
        """Whether the model expects that much more of a long kernel than of all others that are not too long, or of
        those that come next where there are none.
        """
        others = [e.scored.candidate.score for e in task.entries.values() if e is not entry and e.outcome != "long"]
        others = others or [s.candidate.score for s in task.first if s.candidate != entry.scored.candidate]
        return entry.scored.candidate.score < PROMISING * min(others, default=0.0)

    def _have(self, task: SearchTask, entry: Entry, built: Built) -> None:
        """Take in what became of a candidate: it is timed next, or was refused."""
        entry.built = built
        self.resources.statistics.compiled += 1
        earlier = task.trials.get(entry.text)
        if earlier is not None and earlier.source != built.source:  # measured with other code than this version makes
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
