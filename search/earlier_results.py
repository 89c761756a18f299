"""What earlier sessions found, as far as it still holds: finished searches, the best of unfinished ones, and winners of
other machines.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import CutsError
from ..passes.schedule import Candidate, assess, check_schedule, choose
from .build import Built, Scored, make_kernel
from .database import Database
from .problem import Problem, read_schedule
from .settings import TunedChoice
from .task import SearchTask

#: Where a choice is from that no clock of this machine has seen: a clock with another version, or the model.
ELSEWHERE, GUESSED = "elsewhere", "guessed"


def finished(database: Database, problem: Problem) -> TunedChoice | None:
    """Return what a finished search chose, if it still builds to the code that was measured; forget it otherwise."""
    winner = database.winner(problem)
    if winner is None:
        return None
    candidate = _same(problem, winner.schedule, winner.source)
    if candidate is None:
        database.evict(problem)  # it was made by another version of the space or of the printer
        return None
    return TunedChoice(candidate, winner.seconds, winner.spread, "database", winner.trials)


def unfinished(task: SearchTask) -> TunedChoice | None:
    """Return the fastest point that an unfinished search measured, of those that still build to the code that was
    measured.
    """
    for trial in sorted(
        (t for t in task.trials.values() if t.ok), key=lambda t: (t.seconds or 0.0, t.score, t.schedule)
    ):
        candidate = _same(task.problem, trial.schedule, trial.source)
        if candidate is not None:
            return TunedChoice(candidate, trial.seconds, trial.spread, "database", len(task.trials))
    return None


def _same(problem: Problem, text: str, source: str | None) -> Candidate | None:
    """Return the point of a kept schedule, nothing where this version does not make the kept source of it."""
    try:
        schedule = read_schedule(text)
        legal = not check_schedule(problem.form, schedule, problem.target)
        if legal and Built(make_kernel(problem, schedule)).source == source:
            return assess(problem.form, schedule, problem.target)
    except (CutsError, AssertionError):
        pass  # it is no schedule of this version
    return None


def best_elsewhere(database: Database, problem: Problem) -> TunedChoice | None:
    """Return what was best with another version, unmeasured here."""
    found = hints(database, problem)
    if not found:
        return None
    return TunedChoice(found[0].candidate, None, origin=ELSEWHERE, reason="its schedule was best with another version")


def modelled(problem: Problem) -> TunedChoice:
    """Return what the model chooses, where nothing is known."""
    return TunedChoice(choose(problem.form, problem.target)[0], None, origin=GUESSED, reason="nothing is known of it")


def hints(database: Database, problem: Problem) -> list[Scored]:
    """Return the winners of other machines that are points of this problem's space."""
    return _points(database.hints(problem), problem)


def faster_before(task: SearchTask) -> list[Scored]:
    """Return the fastest point that was measured before, if a search has not proposed it and found none as fast: it
    must not end with less.
    """
    ran = [t for t in task.trials.values() if t.ok and t.seconds is not None and t.schedule not in task.entries]
    best = min(ran, key=lambda t: (t.seconds or 0.0, t.score, t.schedule), default=None)
    if best is None or (best.seconds or 0.0) >= task.seconds:
        return []
    return _points([best.schedule], task.problem)


def _points(texts: Sequence[str], problem: Problem) -> list[Scored]:
    found = []
    for text in texts:
        try:
            schedule = read_schedule(text)
            if not check_schedule(problem.form, schedule, problem.target):
                found.append(Scored(None, assess(problem.form, schedule, problem.target)))
        except (CutsError, AssertionError):
            continue  # it is no schedule of this version
    return found
