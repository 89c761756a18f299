"""What earlier sessions found, as far as it still holds: finished searches, the best of unfinished ones, and winners of other machines."""

from __future__ import annotations

from ..ir.errors import CutsError
from ..passes.check import check_schedule
from ..passes.choose import assess
from .build import Built, Scored, make_kernel
from .database import Database
from .problem import Problem, read_schedule
from .settings import Choice
from .task import Task


def finished(database: Database, problem: Problem) -> Choice | None:
    """Return what a finished search chose, if it still builds to the code that was measured; forget it otherwise."""
    winner = database.winner(problem)
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
    database.evict(problem)
    return None


def unfinished(task: Task) -> Choice | None:
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


def hints(database: Database, problem: Problem) -> list[Scored]:
    """Return the winners of other machines that are points of this problem's space."""
    found = []
    for text in database.hints(problem):
        schedule = read_schedule(text)
        if not check_schedule(problem.form, schedule, problem.target):
            found.append(Scored(None, assess(problem.form, schedule, problem.target)))
    return found
