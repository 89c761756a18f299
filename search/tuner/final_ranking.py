"""Final ranking: times the fastest candidates in turns, breaks ties by rule.

The pruning certificate says how much of the rest of the space is proven slower.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf

from ...ir import Schedule
from ...passes.fusion import form_key
from ...passes.schedule import assess, choose_soon
from ..building import JobResult, ScoredCandidate
from ..database import Database, Winner
from ..settings import Settings, TunedChoice
from ..tasks import TuningTask, simple_schedule
from .build_queue import BuildQueue
from .earlier_results import faster_before, unfinished_choice
from .runner import measurement_of
from .task_record import Entry, TaskRecord


class FinalRanking:
    """Final ranking of searches; one may wait for workers in between."""

    def __init__(self, trials: BuildQueue) -> None:
        self._trials = trials
        self._settings = trials.settings

    def begin(self, task: TaskRecord) -> None:
        """Have the fastest candidates built and request the pruning certificate.

        Only candidates that an earlier session measured are not built yet.
        """
        task.ending = True
        loop = self._trials.loop
        self._trials.propose(task, faster_before(task) if self._settings.remembers else [])
        if task.seconds == inf:
            loop.submit(
                task, lambda done: self._try_simple(task, done.value), "simple", (task.place, float(task.round))
            )
            return
        finalists = task.finalists(self._settings)
        if len(finalists) > 1:
            for entry in finalists:
                if entry.built is None:
                    self._trials.build(task, entry, task.round)
        if self._settings.prove:
            loop.submit(task, lambda done: _take_proof(task, done), "prove", (inf,), task.seconds)
        if task.idle:
            self.end(task)

    def end(self, task: TaskRecord) -> None:
        """Time the finalists in turns, which may take several steps, and choose."""
        database, statistics = self._trials.resources.database, self._trials.resources.statistics
        finalists = task.finalists(self._settings)
        turned, task.turned = task.turned, True
        several = len(finalists) > 1 and not turned
        if several and self._trials.runner.time_in_turns(task, finalists, self._settings.rounds):
            return
        task.choice = best_known(task, self._settings, database)
        task.ended = self._trials.resources.budget.clock()
        winner = task.winner(self._settings)
        if task.proof is not None:
            statistics.legal += task.proof.legal
            statistics.slower += task.proof.slower
        if winner is None:
            return
        ran = [measurement_of(e) for e in finalists if e.outcome == "ok" and e.built is not None]
        database.record(task.problem, ran, today=True)
        if self._settings.final:
            database.finish(task.problem, _winner(task, winner))

    def _try_simple(self, task: TaskRecord, schedule: Schedule | None) -> None:
        """Try the simple kernel where all others failed."""
        if schedule is not None:
            self._trials.propose(
                task, [ScoredCandidate(None, assess(task.problem.form, schedule, task.problem.target))]
            )


def space_key(problem: TuningTask, settings: Settings) -> Hashable:
    """Return the key of a task's order of candidates, without layouts."""
    return form_key(problem.form), settings.model


def best_known(
    task: TaskRecord,
    settings: Settings,
    database: Database,
    ranked: Mapping[Hashable, Sequence[ScoredCandidate]] | None = None,
) -> TunedChoice:
    """Return the best known choice: measured, else the cost model's.

    Without a ranking it is the model's choice from a small part of the space. A measured candidate must be no slower
    than the prediction for the model's first choice while that one is unmeasured: without a measurement it would ship.
    """
    winner, awaited = task.winner(settings), task.awaited
    limit = inf if awaited is None else awaited.candidate.score
    winner = None if winner is not None and winner.seconds > limit else winner
    better_known = settings.remembers and bool(faster_before(task))
    known = unfinished_choice(task, database) if winner is None or better_known else None
    if known is not None and (known.seconds or 0.0) < min(limit, inf if winner is None else winner.seconds):
        return known
    if winner is not None:
        return TunedChoice(
            winner.scored.candidate,
            winner.seconds,
            winner.spread,
            "measured",
            len(task.entries),
            task.start,
            task.proof,
        )
    order = (*task.first, *(ranked or {}).get(space_key(task.problem, settings), ()))
    first = next((scored for scored in order if not task.is_refused(scored)), None)
    if first is not None:
        return TunedChoice(first.candidate, None, origin="model", trials=len(task.entries))
    problem = task.problem
    quick = None if task.lost else choose_soon(problem.form, problem.target)
    if quick is None or task.is_refused(ScoredCandidate(None, quick)):
        simple = simple_schedule(problem.form, problem.target)
        quick = assess(problem.form, simple, problem.target) if simple else quick
    candidate = quick or choose_soon(problem.form, problem.target)
    return TunedChoice(candidate, None, origin="model", reason=task.lost)


def _take_proof(task: TaskRecord, done: JobResult) -> None:
    task.proof = done.value


def _winner(task: TaskRecord, entry: Entry) -> Winner:
    source = entry.built.source if entry.built else task.stored[entry.text].source
    proven = task.proof.share if task.proof else 0.0
    return Winner(entry.text, entry.seconds, entry.spread, source, len(task.entries), float(task.points), proven)
