"""The tuner: which schedule of each problem is fastest, by measurement, within a budget and with an answer at any moment.

Every problem starts with the best points by the model. While workers build candidates, the device checks and times those that are ready;
what is much slower than the best so far is dropped after three runs. When a batch has been measured, the strategy proposes the next one,
until neither time nor patience is left, or every point that remains is proven slower. The few fastest are then timed in turns, and ties
are broken by rule, so that noise does not choose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from math import inf

from ..ir.errors import CutsError, PassError, UsageError
from ..ir.schedule import Schedule
from ..ir.target import Target
from ..passes.check import check_schedule
from ..passes.choose import assess, choose
from ..passes.fragments import Fragment, Priced
from ..passes.space import make_space
from .bench import Bench
from .build import DRAW_LIMIT, Builder, Built, Done, Job, Scored, make_kernel
from .database import Database, Trial, Winner
from .measure import Reference, Verdict
from .oracle import WHOLE, evaluations
from .problem import Problem, read_schedule, schedule_text
from .settings import Choice, Settings, Statistics
from .strategies import make_strategy
from .task import Entry, Sweep, Task

#: Problems whose points are drawn and built ahead of the one that is timed.
AHEAD = 4


class Tuner:
    """Searches for several problems at once; `run` returns a choice for each of them, whatever happens.

    Workers and device are made when they are first needed, and kept for further runs until `close`. `monitor` is called whenever something
    happened. Behind an interrupt or the end of the budget, `complete` is false and every further run answers with what is known.
    """

    def __init__(
        self,
        database: Database,
        builder: Callable[[], Builder],
        bench: Callable[[], Bench],
        *,
        budget: float | None = None,
        frozen: bool = False,
        monitor: Callable[[Tuner], None] = lambda tuner: None,
    ) -> None:
        self.database = database
        self.budget = inf if budget is None else budget
        self.frozen = frozen
        self.statistics = Statistics()
        self.tasks: list[Task] = []
        self.begin = time.monotonic()
        self.interrupted = self.expired = False
        self._settings = Settings()
        self._until = inf
        self._makers = builder, bench
        self._builder: Builder | None = None
        self._bench: Bench | None = None
        self._monitor = monitor
        self._current: Task | None = None

    @property
    def complete(self) -> bool:
        """Whether every search so far was brought to its end."""
        return not (self.interrupted or self.expired)

    @property
    def elapsed(self) -> float:
        """Seconds since the tuner was made."""
        return time.monotonic() - self.begin

    def run(self, problems: Sequence[Problem], settings: Settings | None = None, share: float = 1.0) -> list[Choice]:
        """Return a choice for every problem; equal ones are searched once. The run ends when a share of the budget is used up."""
        self._settings = settings or Settings()
        self._until = self.budget * share
        unique = {p.key: p for p in problems}
        with self.statistics.phase("database"):
            kept = {key: self._kept(problem) for key, problem in unique.items()}
        found = {key: choice for key, choice in kept.items() if choice is not None}
        self.statistics.problems += len(unique)
        self.statistics.hits += len(found)
        missing = [problem for key, problem in unique.items() if key not in found]
        if missing and self.frozen:
            raise UsageError(
                f"{len(missing)} of {len(unique)} kernels are not in the tuning database; the first is {missing[0].key[:12]},"
                f" {missing[0].label or 'without a name'}",
                hint="tune the same model for the same target with the same compiler once without --frozen",
            )
        if missing:
            found |= self._search([Task(p, trials={t.schedule: t for t in self.database.trials(p)}) for p in missing])
        return [found[p.key] for p in problems]

    def estimate(self, problems: Sequence[Problem], settings: Settings, share: float = 1.0) -> list[float | None]:
        """Return about what each problem takes, from a short search; none where there was no time for it.

        Estimates are kept apart from later, better times: what was decided by them is decided alike in every further session.
        """
        known = {p.key: self.database.cost(f"estimate {p.key}") for p in problems}
        missing = [p for p in problems if known[p.key] is None]
        if missing and not self.frozen:
            for problem, choice in zip(missing, self.run(missing, settings, share), strict=True):
                known[problem.key] = choice.seconds
                if choice.seconds is not None:
                    self.database.keep_cost(f"estimate {problem.key}", choice.seconds)
        return [known[p.key] for p in problems]

    def overhead(self, target: Target) -> float:
        """Return the seconds that timing adds to a kernel of a target; what was decided by it is decided alike in every further session."""
        key = f"overhead {target.name}"
        kept = self.database.cost(key)
        if kept is None:
            kept = 0.0 if self.frozen else self.bench.overhead()
            self.database.keep_cost(key, kept)
        return kept

    def plan(self, fragments: Sequence[Fragment]) -> list[Priced]:
        """Return the kernels of small graphs, found by the workers side by side; none for those that there was no time for."""
        self._until = self.budget
        found: list[Priced] = [None] * len(fragments)
        waiting = set(range(len(fragments)))
        try:
            for number in waiting if not self._over() else ():
                self.builder.submit(Job(number, "plan", (fragments[number],)))
            with self.statistics.phase("algorithms"):
                while waiting and not self._over():
                    for done in self.builder.collect(min(0.1, max(0.0, self._until - self.elapsed))):
                        found[done.job.owner] = done.value
                        waiting.discard(done.job.owner)
        except KeyboardInterrupt:
            self.interrupted = True
        if waiting:
            self.close()
        return found

    def close(self) -> None:
        """End the workers and give the device back."""
        for part in (self._builder, self._bench):
            if part is not None:
                part.close()
        self._builder = self._bench = None

    # ---- given candidates

    def time_points(self, sweeps: Iterable[Sweep], settings: Settings) -> Iterator[Sweep]:
        """Build, check and time points drawn for each sweep, and yield the sweeps as they are finished, as far as the budget reaches.

        Some sweeps are begun ahead: while the last points of one are timed, workers build those of the next.
        """
        self._settings, self._until = settings, self.budget
        coming = enumerate(sweeps)
        begun: list[Sweep] = []
        try:
            while not self._over():
                for turn, sweep in islice(coming, AHEAD - len(begun)):
                    begun.append(sweep)
                    self._sweep(sweep, turn)
                if not begun:
                    return
                self.tasks = list(begun)
                self._step()
                for sweep in [s for s in begun if s.finished]:
                    begun.remove(sweep)
                    yield sweep
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.tasks = []
            if not self.complete:
                self.close()

    def compare(self, task: Task, entries: Sequence[Entry], settings: Settings) -> None:
        """Time candidates that ran anew, in turns, so that a drifting clock hits each alike; the workers go on meanwhile."""
        entries = [e for e in entries if e.outcome == "ok"]
        for entry in entries:
            entry.samples = []
        for entry in chain.from_iterable(repeat(entries, settings.rounds)):
            if entry.outcome == "ok" and not self._over():
                self._again(task, entry)
                self._take_in(0.0)

    def _sweep(self, sweep: Sweep, turn: int) -> None:
        """Have the points of a sweep drawn, and its choice built before them."""
        sweep.turn = turn
        self.database.register(sweep.problem)
        self._refer(sweep)
        sweep.entries[sweep.chosen.text] = sweep.chosen
        self._build(sweep, sweep.chosen, turn)
        sweep.waiting += 1
        wanted = (sweep.problem, self._settings.model, sweep.count, self._settings.seed)
        self.builder.submit(Job((sweep, None), "draw", wanted, (-2.0, turn), DRAW_LIMIT))

    def _drawn(self, sweep: Sweep, done: Done) -> None:
        if done.value is None:
            raise PassError(f"{sweep.problem.label or 'a kernel'}: no points can be drawn: {done.error}")
        sweep.drawn = done.value
        for candidate in sweep.drawn.candidates:
            text = schedule_text(candidate.schedule)
            if text not in sweep.entries:
                entry = sweep.entries[text] = Entry(Scored(None, candidate), text)
                self._build(sweep, entry, sweep.turn)
        self.statistics.audited += len(sweep.entries) - 1

    # ---- the whole search

    @property
    def builder(self) -> Builder:
        """The workers."""
        if self._builder is None:
            self._builder = self._makers[0]()
        return self._builder

    @property
    def bench(self) -> Bench:
        """The device."""
        if self._bench is None:
            self._bench = self._makers[1]()
        return self._bench

    def _search(self, tasks: list[Task]) -> dict[str, Choice]:
        self.tasks = tasks
        try:
            for task in tasks if not self._over() else ():
                self._begin(task)
            while any(t.choice is None for t in tasks) and not self._over():
                self._step()
        except KeyboardInterrupt:
            self.interrupted = True
        if not self.complete:
            self.close()
        return {t.problem.key: t.choice or self._so_far(t) for t in tasks}

    def _over(self) -> bool:
        over = self.elapsed >= self._until
        self.expired = self.expired or over
        return over or self.interrupted

    def _step(self) -> None:
        """Take in what was built, time one candidate, move on what waits for nothing."""
        ready = any(t.measurable for t in self.tasks)
        with self.statistics.phase("wait for workers"):
            self._take_in(0.0 if ready else min(0.1, max(0.0, self._until - self.elapsed)))
        waiting = [t for t in self.tasks if t.measurable]
        if waiting:  # the problem whose data is in use goes first, then the one that promises most
            if self._current not in waiting:
                self._current = max(waiting, key=lambda t: (t.gain, t.problem.key))
            assert self._current is not None
            self._measure(self._current, self._current.take())
        for task in self.tasks:
            if task.idle:
                self._advance(task)
        self._monitor(self)

    def _take_in(self, timeout: float) -> None:
        """Take in what the workers have done; wait for something, but no longer than `timeout`."""
        for each in self.builder.collect(timeout):
            self._receive(each)

    def _kept(self, problem: Problem) -> Choice | None:
        """Return what a finished search chose, if it still builds to the code that was measured; forget it otherwise."""
        winner = self.database.winner(problem)
        if winner is None:
            return None
        try:
            schedule = read_schedule(winner.schedule)
            legal = not check_schedule(problem.form, schedule, problem.target)
            if legal and Built(make_kernel(problem, schedule)).source == winner.source:
                candidate = assess(problem.form, schedule, problem.target)
                return Choice(candidate, winner.seconds, winner.spread, "database", winner.trials)
        except (CutsError, AssertionError):
            pass  # it was made by another version of the space or of the printer
        self.database.evict(problem)
        return None

    # ---- one problem: from the start to proposals

    def _begin(self, task: Task) -> None:
        self.database.register(task.problem)
        self._submit(task, "rank", None, (-2.0,), self._settings.model, self._settings.first)
        self._refer(task)

    def _refer(self, task: Task) -> None:
        """Have computed what the outputs of a large problem must be, and its simple kernel made."""
        if evaluations(task.problem.form) > WHOLE:
            task.untrusted = task.unknown = True
            self._submit(task, "refer", None, (-1.5,))
            self._submit(task, "simple", None, (-1.0,))

    def _submit(self, task: Task, method: str, entry: Entry | None, priority: tuple[float, ...], *arguments: object) -> None:
        task.waiting += 1
        self.builder.submit(Job((task, entry), method, (task.problem, *arguments), priority))

    def _receive(self, done: Done) -> None:
        task: Task
        entry: Entry | None
        task, entry = done.job.owner
        task.waiting -= 1
        if done.job.method == "rank":
            self._ranked(task, done)
        elif done.job.method == "simple":
            self._simple(task, done.value)
        elif done.job.method == "refer":
            task.unknown = False
            if isinstance(done.value, Reference):
                self.bench.prepare(task.problem, done.value)
        elif done.job.method == "prove":
            task.proof = done.value
        elif isinstance(task, Sweep) and done.job.method == "draw":
            self._drawn(task, done)
        elif entry is not None:
            self._built(task, entry, done)

    def _ranked(self, task: Task, done: Done) -> None:
        """Make the strategy and propose the first candidates: hints of other machines, then the model's order."""
        if not done.value:
            raise PassError(f"{task.problem.label or 'a kernel'}: {done.error or 'no schedule fits the target'}")
        space = make_space(task.problem.form, task.problem.target)
        task.points = space.size
        self.statistics.points += space.size
        task.first = done.value
        task.strategy = make_strategy(self._settings.strategy, space, done.value, self._settings.model, self._settings.seed)
        self._propose(task, [*self._hints(task), *task.strategy.propose([], inf, self._settings.first)])

    def _hints(self, task: Task) -> list[Scored]:
        problem, found = task.problem, []
        for text in self.database.hints(problem):
            schedule = read_schedule(text)
            if not check_schedule(problem.form, schedule, problem.target):
                found.append(Scored(None, assess(problem.form, schedule, problem.target)))
        return found

    def _simple(self, task: Task, schedule: Schedule | None) -> None:
        """Build the simple kernel: the others are held against it, and where all of them fail it is the last resort."""
        task.untrusted = schedule is not None and not task.ending
        if schedule is None:
            return
        scored = Scored(None, assess(task.problem.form, schedule, task.problem.target))
        if task.ending:
            self._propose(task, [scored])
            return
        self._submit(task, "build", Entry(scored, schedule_text(schedule), trusted=True), (-1.0,), schedule)

    def _propose(self, task: Task, proposals: Sequence[Scored]) -> None:
        """Send proposals to the workers; those that were tried in an earlier session count at once."""
        for number, scored in enumerate(proposals):
            text = schedule_text(scored.candidate.schedule)
            if text in task.entries:
                continue
            entry = task.entries[text] = Entry(scored, text)
            known = task.trials.get(text)
            if known is None:
                self._build(task, entry, task.round + number // 4)
                continue
            self.statistics.reused += 1
            entry.outcome = known.outcome
            entry.samples = [known.seconds] if known.seconds is not None else []

    def _build(self, task: Task, entry: Entry, turn: int) -> None:
        self._submit(task, "build", entry, (float(turn), -task.gain), entry.scored.candidate.schedule)

    # ---- one problem: building, checking, timing

    def _built(self, task: Task, entry: Entry, done: Done) -> None:
        built = done.value or Built(None, outcome="timeout" if done.hung else "failed", message=done.error)
        entry.built = built
        self.statistics.compiled += 1
        earlier = task.trials.get(entry.text)
        if earlier is not None and earlier.source != built.source:  # measured with other code than this version makes
            entry.samples, entry.outcome = [], ""
        if built.outcome == "ok":
            task.ready.append(entry)
            return
        task.untrusted = task.untrusted and not entry.trusted
        self._settle(task, entry, Verdict(built.outcome, built.message))

    def _measure(self, task: Task, entry: Entry) -> None:
        """Check a candidate, and time it unless that was done in an earlier session."""
        with self.statistics.phase("check"):
            verdict = self.bench.check(task.problem, self._code(entry))
        if entry.trusted:
            task.untrusted = False
        elif verdict.outcome == "ok" and not entry.outcome:
            verdict = self._time(task, entry)
        self._settle(task, entry, verdict)

    @staticmethod
    def _code(entry: Entry) -> Built:
        assert entry.built is not None, "only what was built reaches the device"
        return entry.built

    def _time(self, task: Task, entry: Entry) -> Verdict:
        """Time a candidate: a few runs, and if it is not hopeless as many again, in turns with the best so far."""
        best = task.best
        self.statistics.timed += 1
        verdict = self._sample(task, entry)
        if verdict.outcome != "ok" or best is None:
            return verdict
        if entry.seconds > self._settings.hopeless * best.seconds:
            self.statistics.dropped += 1
            return verdict
        if not isinstance(task, Sweep):  # what beats the choice of a sweep is compared with it at the end
            self._again(task, best)
        return self._sample(task, entry)

    def _sample(self, task: Task, entry: Entry) -> Verdict:
        with self.statistics.phase("time"):
            timed = self.bench.sample(task.problem, self._code(entry), self._settings.runs)
        entry.samples += timed.samples
        return timed.verdict

    def _again(self, task: Task, entry: Entry) -> None:
        """Time a candidate once more; one that fails now has lost."""
        if entry.built is not None and (verdict := self._sample(task, entry)).outcome != "ok":
            self._settle(task, entry, verdict)

    def _settle(self, task: Task, entry: Entry, verdict: Verdict) -> None:
        """Record what became of a candidate."""
        entry.outcome = verdict.outcome
        self.statistics.outcomes[verdict.outcome] += 1
        if not entry.trusted:
            self.database.record(task.problem, [_trial(entry, verdict.message)])

    # ---- one problem: the next round, and the end

    def _advance(self, task: Task) -> None:
        """Propose the next batch, or end the search."""
        if task.ending:
            self._end(task)
            return
        task.stale = 0 if task.seconds < task.reached * (1 - self._settings.tie) else task.stale + 1
        task.reached = min(task.reached, task.seconds)
        task.round += 1
        room = min(self._settings.batch, self._settings.most - len(task.entries))
        proposals: list[Scored] = []
        if room > 0 and task.stale <= self._settings.patience and task.strategy is not None:
            proposals = task.strategy.propose(task.known(), task.seconds, room)
        if proposals:
            self._propose(task, proposals)
        else:
            self._final(task)

    def _final(self, task: Task) -> None:
        """Let the fastest be built, where an earlier session measured them, and ask how much of the space is proven slower."""
        task.ending = True
        if task.seconds == inf:
            self._submit(task, "simple", None, (float(task.round),))
            return
        finalists = task.finalists(self._settings)
        if len(finalists) > 1:
            for entry in finalists:
                if entry.built is None:
                    self._build(task, entry, task.round)
        if self._settings.prove:
            self._submit(task, "prove", None, (inf,), task.seconds)
        if task.idle:
            self._end(task)

    def _end(self, task: Task) -> None:
        """Time the finalists in turns and choose."""
        finalists = task.finalists(self._settings)
        for _ in range(self._settings.rounds if len(finalists) > 1 else 0):
            for entry in finalists:
                if entry.outcome == "ok":
                    self._again(task, entry)
        task.choice = self._so_far(task)
        winner = task.winner(self._settings)
        if task.proof is not None:
            self.statistics.legal += task.proof.legal
            self.statistics.slower += task.proof.slower
        if winner is None:
            return
        self.database.record(task.problem, [_trial(e) for e in finalists if e.outcome == "ok" and e.built is not None])
        if self._settings.final:
            self.database.finish(task.problem, _winner(task, winner))

    def _so_far(self, task: Task) -> Choice:
        """Return the best that is known: what was measured now or in an earlier session, else the model's first choice."""
        winner = task.winner(self._settings)
        if winner is not None:
            return Choice(winner.scored.candidate, winner.seconds, winner.spread, "measured", len(task.entries), task.start, task.proof)
        if (known := self._recorded(task)) is not None:
            return known
        if task.first:
            return Choice(task.first[0].candidate, None, origin="model", trials=len(task.entries))
        (candidate,) = choose(task.problem.form, task.problem.target)
        return Choice(candidate, None, origin="model")

    @staticmethod
    def _recorded(task: Task) -> Choice | None:
        """Return the fastest point that an unfinished search measured, if it is still a point of this version's space."""
        form, target = task.problem.form, task.problem.target
        for trial in sorted((t for t in task.trials.values() if t.ok), key=lambda t: (t.seconds or 0.0, t.score, t.schedule)):
            try:
                schedule = read_schedule(trial.schedule)
            except (CutsError, AssertionError):
                continue
            if not check_schedule(form, schedule, target):
                return Choice(assess(form, schedule, target), trial.seconds, trial.spread, "database", len(task.trials))
        return None


def _trial(entry: Entry, message: str = "") -> Trial:
    built, candidate = entry.built, entry.scored.candidate
    seconds = entry.seconds if entry.outcome == "ok" and entry.samples else None
    registers, source = (built.registers, built.source) if built else (0, "")
    return Trial(entry.text, entry.outcome, seconds, entry.spread, registers, source, message, candidate.bound, candidate.score)


def _winner(task: Task, entry: Entry) -> Winner:
    source = entry.built.source if entry.built else task.trials[entry.text].source
    proven = task.proof.share if task.proof else 0.0
    return Winner(entry.text, entry.seconds, entry.spread, source, len(task.entries), float(task.points), proven)
