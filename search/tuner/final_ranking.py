"""Final ranking: the best known choice, with ties broken by rule."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf

from ...passes.fusion import form_key
from ...passes.schedule import assess, choose_soon
from ..building import ScoredCandidate
from ..database import Database, Winner
from ..settings import Settings, TunedChoice
from ..tasks import TuningTask, simple_schedule
from .earlier_results import faster_before, unfinished_choice
from .task_record import Entry, TaskRecord


def space_key(problem: TuningTask, settings: Settings) -> Hashable:
    """Return the key of a task's order of candidates, without layouts."""
    return form_key(problem.form), settings.pruning


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


def winner_of(task: TaskRecord, entry: Entry) -> Winner:
    """Return the database record of a finished search."""
    source = entry.built.source if entry.built else task.stored[entry.text].source
    proven = task.proof.share if task.proof else 0.0
    return Winner(entry.text, entry.seconds, entry.spread, source, len(task.entries), float(task.points), proven)
