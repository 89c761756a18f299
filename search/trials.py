"""What becomes of candidates: workers build them, the device checks and times them, the database keeps the outcome.

Those of a large problem are held against its simple kernel, which is therefore built and checked before them. What is
much slower than the best so far is dropped after a few runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from attrs import frozen

from ..ir import Schedule
from ..passes.schedule import assess
from .bench import SideBench
from .build import Built, Done, Scored, longest_of, wishes_of
from .data import Reference
from .database import Trial
from .loop import DispatchLoop
from .measure import Measured, Turns, Verdict
from .oracle import WHOLE, evaluations
from .problem import schedule_text, trial_key
from .resources import Resources
from .settings import Rejected, Settings
from .task import Entry, SearchTask

#: Part of the estimates of all others by which a long kernel is worth its time all the same: a product of odd sizes,
#: whose tiles are guarded, took 1,719 us in 64x64 where those that were left out take 800.
PROMISING = 0.9
#: Seconds in which nothing but the device is waited for: then workers that are done get something else to do.
SOON = 0.003


@frozen(eq=False)
class _Asked:
    """What a device is asked for: a candidate to check, if there is one, and others to time in turns."""

    task: SearchTask
    entry: Entry | None
    turns: Sequence[Entry]


class Trials:
    """Candidates of one search on their way from a proposal to a time. `batches` is how many batches of problems there
    are, which begin one after another; further rounds of a problem come behind all of them.
    """

    def __init__(self, resources: Resources, settings: Settings) -> None:
        self.resources = resources
        self.settings = settings
        self.loop = DispatchLoop(resources)
        self.batches = 1
        self._asked: dict[str, _Asked] = {}

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
        """Have a candidate built: the first of all problems, then what is first proposed of each; of problems that are
        further those before others that are furthest, as what goes on for most rounds would end last, by itself.
        """
        first = task.place if turn == 0 else self.batches + (1.0 / turn if turn > 1 else 0.0)
        self._build(task, entry, (first, 0.0, -task.gain), longest_of(entry.scored.candidate))

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
        if self._asked:
            self.loop.take_in()
        busy = any(task.idle or (task.measurable and self._free(task)) for task in tasks)
        self.look(SOON if self._asked and not busy else 0.0)
        asked = [each.task for each in self._asked.values()]
        task = self.loop.next(tasks, self._free, asked)
        if task is not None and not task.ready:
            turns, task.turns = task.turns, []
            self._ask(task, None, turns)
        elif task is not None:
            self._measure(task, task.take())

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

    def _free(self, task: SearchTask) -> bool:
        """Whether a candidate of a problem would be checked at once: its device has none to check."""
        bench = self.resources.bench
        return not isinstance(bench, SideBench) or bench.free(task.problem)

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
        """Whether the model expects that much more of a long kernel than of all others that are not too long."""
        others = [e.scored.candidate.score for e in task.entries.values() if e is not entry and e.outcome != "long"]
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
        self._settle(task, entry, Verdict(built.outcome, built.message))

    # ---- checking and timing

    def _measure(self, task: SearchTask, entry: Entry) -> None:
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

    def _ask(self, task: SearchTask, entry: Entry | None, turns: Sequence[Entry]) -> None:
        """Have a candidate checked, if there is one, and others timed in turns."""
        bench, best = self.resources.bench, task.best
        assert isinstance(bench, SideBench), "it does so beside what else there is to do"
        most = inf if entry is None or best is None else self.settings.hopeless * best.seconds
        asked = Turns(tuple(_name(each) for each in turns), self.settings.runs, most) if turns else None
        with self.resources.statistics.phase("check"):
            bench.begin(task.problem, None if entry is None else _code(entry), asked)
        task.waiting += 1
        self._asked[task.problem.key] = _Asked(task, entry, turns)

    def _measured(self, asked: _Asked, measured: Measured) -> None:
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
            self._settle(task, failing, failed)
            if failing is entry:
                return
        elif len(measured.samples) < len(asked.turns):
            statistics.dropped += 1
        if entry is not None:
            self._settle(task, entry, measured.verdict)

    def _checked(self, task: SearchTask, entry: Entry, verdict: Verdict) -> None:
        """Time a candidate that is right, unless that was done in an earlier session."""
        if entry.trusted:
            task.untrusted = False
            self.resources.trusted.update([task.problem.key] if verdict.outcome == "ok" else [])
        elif verdict.outcome == "ok" and not entry.outcome:
            verdict = self._time(task, entry)
        self._settle(task, entry, verdict)

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
            self._settle(task, entry, verdict)

    def _sample(self, task: SearchTask, entry: Entry) -> Verdict:
        with self.resources.statistics.phase("time"):
            timed = self.resources.bench.sample(task.problem, _code(entry), self.settings.runs)
        entry.samples += timed.samples
        return timed.verdict

    def _settle(self, task: SearchTask, entry: Entry, verdict: Verdict) -> None:
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
