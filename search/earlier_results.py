"""What earlier sessions found, as far as it still holds: finished searches, the best of unfinished ones, and winners of
other machines. A time holds where this version of the compiler writes the code that was measured.
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

#: Where a choice is from that no clock of this machine has seen: a clock with another version, or the model.
ELSEWHERE, GUESSED = "elsewhere", "guessed"
#: Results of an unfinished search that are written to see whether they hold: where the fastest few do not, another
#: version made them all.
LOOKS = 4
#: Most points of another machine that an order recalls, the fastest: workers read them for every search.
MOST_RECALLED = 80


def finished(database: Database, problem: Problem) -> TunedChoice | None:
    """Return what a finished search chose, if it is still written as it was measured; forget it otherwise, and look at
    what waited behind it.
    """
    while (winner := database.winner(problem)) is not None:
        candidate = _same(database, problem, winner.schedule, winner.source)
        if candidate is not None:
            return TunedChoice(candidate, winner.seconds, winner.spread, "database", winner.trials)
        database.evict(problem)  # it was made by another version of the space or of the printer
    return None


def unfinished(task: SearchTask, database: Database) -> TunedChoice | None:
    """Return the fastest point that an unfinished search measured, of those that are still written as they were
    measured.
    """
    looks = 0
    for trial in sorted((t for t in task.trials.values() if t.ok and t.holds is not False), key=_order):
        looks += trial.holds is None
        if trial.holds is None and looks > LOOKS:
            continue
        candidate = _same(database, task.problem, trial.schedule, trial.source)
        if candidate is not None:
            return TunedChoice(candidate, trial.seconds, trial.spread, "database", len(task.trials))
    return None


def known_by_now(task: SearchTask, database: Database) -> TunedChoice | None:
    """Return the best that is known of an unfinished search; where nothing of it holds, what waited behind it."""
    found = unfinished(task, database)
    if found is None:
        database.evict(task.problem)
        found = finished(database, task.problem)
    return found


def _order(trial: Trial) -> tuple[float, float, str]:
    return trial.seconds or 0.0, trial.score, trial.schedule


def _same(database: Database, problem: Problem, text: str, source: str) -> Candidate | None:
    """Return the point of a kept schedule, nothing where this version does not write the kept source of it."""
    try:
        if source and written_today(database, Written(problem, text)) == source:
            return assess(problem.form, read_schedule(text), problem.target)
    except (CutsError, AssertionError):
        pass  # it is no schedule of this version
    return None


def written_today(database: Database, written: Written) -> str:
    """Return the digest of what this version writes, which the database then knows; nothing where it writes none."""
    known = database.sources_today([written.name])
    if not known:
        known = {written.name: Factory().source(written)}
        database.note_sources(known)
    return known[written.name]


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


def order_of(database: Database, problem: Problem, settings: Settings) -> LearnedOrder | None:
    """Return the order in which a search looks at points: as it was learned, with what other machines measured of the
    same problem; nothing where that is the model's.
    """
    times = database.elsewhere(problem) if settings.recalls else {}
    if len(times) < FEWEST_RECALLED:
        return settings.correction
    fastest = sorted(times.items(), key=lambda each: (each[1], each[0]))
    return evolve(settings.correction or LearnedOrder(FITTED), recalled=tuple(fastest[:MOST_RECALLED]))


def faster_before(task: SearchTask) -> list[Scored]:
    """Return the fastest point that was measured before, if a search has not proposed it and found none as fast: it
    must not end with less. Where that may be written otherwise today, return the fastest that is not, too.
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
            continue  # it is no schedule of this version
    return found
