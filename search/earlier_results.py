"""Valid results of earlier sessions.

These are finished searches, the best of unfinished ones, and winners of other machines. A time is valid where this
version of the compiler prints the measured source.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ..ir import CutsError
from ..passes.model import FITTED
from ..passes.schedule import Candidate, assess, check_schedule, choose
from .build import Factory, Scored
from .database import Database, Trial
from .kernels import Written
from .learned import FEWEST_RECALLED, LearnedOrder
from .problem import Problem, read_schedule
from .settings import Settings, TunedChoice
from .task import SearchTask

#: Origins of a choice without a measurement on this machine: another version, or the cost model.
ELSEWHERE, GUESSED = "elsewhere", "guessed"
#: Results of an unfinished search that are printed to test their validity: where the fastest few are invalid, another
#: version measured them all.
MAX_TESTED_RESULTS = 4
#: Largest number of points of another machine in an order, the fastest: workers read them for every search.
MOST_RECALLED = 80


def finished(database: Database, problem: Problem) -> TunedChoice | None:
    """Return the valid choice of a finished search, else None.

    An invalid one is removed and the next result stored for the task is tested.
    """
    while (winner := database.winner(problem)) is not None:
        candidate = _valid_candidate(database, problem, winner.schedule, winner.source)
        if candidate is not None:
            return TunedChoice(candidate, winner.seconds, winner.spread, "database", winner.trials)
        database.evict(problem)  # made by another version of the space or of the printer
    return None


def unfinished(task: SearchTask, database: Database) -> TunedChoice | None:
    """Return the fastest valid measurement of an unfinished search."""
    looks = 0
    for trial in sorted((t for t in task.trials.values() if t.ok and t.holds is not False), key=_order):
        looks += trial.holds is None
        if trial.holds is None and looks > MAX_TESTED_RESULTS:
            continue
        candidate = _valid_candidate(database, task.problem, trial.schedule, trial.source)
        if candidate is not None:
            return TunedChoice(candidate, trial.seconds, trial.spread, "database", len(task.trials))
    return None


def known_by_now(task: SearchTask, database: Database) -> TunedChoice | None:
    """Return the best valid choice of an unfinished or older search."""
    found = unfinished(task, database)
    if found is None:
        database.evict(task.problem)
        found = finished(database, task.problem)
    return found


def _order(trial: Trial) -> tuple[float, float, str]:
    return trial.seconds or 0.0, trial.score, trial.schedule


def _valid_candidate(database: Database, problem: Problem, text: str, source: str) -> Candidate | None:
    """Return the candidate of a stored schedule, None where this version does not print the stored source."""
    try:
        if source and written_today(database, Written(problem, text)) == source:
            return assess(problem.form, read_schedule(text), problem.target)
    except (CutsError, AssertionError):
        pass  # no schedule of this version
    return None


def written_today(database: Database, written: Written) -> str:
    """Return and store the digest of this version's source, if any."""
    known = database.sources_today([written.name])
    if not known:
        known = {written.name: Factory().source(written)}
        database.note_sources(known)
    return known[written.name]


def best_elsewhere(database: Database, problem: Problem) -> TunedChoice | None:
    """Return the best schedule of another version, not measured here."""
    found = hints(database, problem)
    if not found:
        return None
    return TunedChoice(found[0].candidate, None, origin=ELSEWHERE, reason="its schedule was best with another version")


def modelled(problem: Problem) -> TunedChoice:
    """Return the cost model's choice, where no result is known."""
    return TunedChoice(choose(problem.form, problem.target)[0], None, origin=GUESSED, reason="nothing is known of it")


def hints(database: Database, problem: Problem) -> list[Scored]:
    """Return the winners of other machines that are in this task's space."""
    return _points(database.hints(problem), problem)


def order_of(database: Database, problem: Problem, settings: Settings) -> LearnedOrder | None:
    """Return the learned order of candidates, with measurements of other machines.

    The result is None where the order is the cost model's.
    """
    times = database.elsewhere(problem) if settings.recalls else {}
    if len(times) < FEWEST_RECALLED:
        return settings.correction
    fastest = sorted(times.items(), key=lambda each: (each[1], each[0]))
    return evolve(settings.correction or LearnedOrder(FITTED), recalled=tuple(fastest[:MOST_RECALLED]))


def faster_before(task: SearchTask) -> list[Scored]:
    """Return faster measured candidates that a search has not proposed.

    A search must not end with less. Where the fastest may be printed differently today, the fastest valid one is
    returned too.
    """
    ran = [t for t in task.trials.values() if t.ok and t.schedule not in task.entries]
    best = (min(some, key=_order, default=None) for some in (ran, [t for t in ran if t.holds]))
    faster = dict.fromkeys(t.schedule for t in best if t is not None and (t.seconds or 0.0) < task.seconds)
    return _points([*faster], task.problem)


def _points(texts: Sequence[str], problem: Problem) -> list[Scored]:
    found = []
    for text in texts:
        try:
            schedule = read_schedule(text)
            if not check_schedule(problem.form, schedule, problem.target):
                found.append(Scored(None, assess(problem.form, schedule, problem.target)))
        except (CutsError, AssertionError):
            continue  # no schedule of this version
    return found
