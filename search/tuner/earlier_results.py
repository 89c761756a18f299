"""Valid results of earlier sessions.

These are finished searches, the best of unfinished ones, and winners of other machines. A time is valid where this
version of the compiler prints the measured source.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from attrs import evolve

from ...ir import CutsError
from ...passes import ScheduleRequest
from ...passes.schedule import Candidate, assess, check_schedule, choose
from ..building import Factory, PlanningWorkers, ScoredCandidate
from ..database import Database, Measurement
from ..learned import MIN_RECALLED, LearnedOrder
from ..settings import Settings, TunedChoice
from ..tasks import KernelSpec, TuningTask, read_schedule
from .task_record import TaskRecord

#: Origins of a choice without a measurement on this machine: another version, or the cost model.
ORIGIN_ELSEWHERE, ORIGIN_GUESSED = "elsewhere", "guessed"
#: Results of an unfinished search that are printed to test their validity: where the fastest few are invalid, another
#: version measured them all.
MAX_TESTED_RESULTS = 4
#: Seconds of predicted choices before workers start, which takes as long.
SECONDS_WITHOUT_WORKERS = 1.0
#: Largest number of points of another machine in an order, the fastest: workers read them for every search.
MOST_RECALLED = 80


def finished_choice(database: Database, problem: TuningTask) -> TunedChoice | None:
    """Return the valid choice of a finished search, else None.

    An invalid one is removed and the next result stored for the task is tested.
    """
    while (winner := database.winner(problem)) is not None:
        candidate = _valid_candidate(database, problem, winner.schedule, winner.source)
        if candidate is not None:
            return TunedChoice(candidate, winner.seconds, winner.spread, "database", winner.trials)
        database.invalidate(problem)  # made by another version of the space or of the printer
    return None


def unfinished_choice(task: TaskRecord, database: Database) -> TunedChoice | None:
    """Return the fastest valid measurement of an unfinished search."""
    looks = 0
    for trial in sorted((t for t in task.stored.values() if t.ok and t.holds is not False), key=_order):
        looks += trial.holds is None
        if trial.holds is None and looks > MAX_TESTED_RESULTS:
            continue
        candidate = _valid_candidate(database, task.problem, trial.schedule, trial.source)
        if candidate is not None:
            return TunedChoice(candidate, trial.seconds, trial.spread, "database", len(task.stored))
    return None


def best_stored_choice(task: TaskRecord, database: Database) -> TunedChoice | None:
    """Return the best valid choice of an unfinished or older search."""
    found = unfinished_choice(task, database)
    if found is None:
        database.invalidate(task.problem)
        found = finished_choice(database, task.problem)
    return found


def _order(trial: Measurement) -> tuple[float, float, str]:
    return trial.seconds or 0.0, trial.score, trial.schedule


def _valid_candidate(database: Database, problem: TuningTask, text: str, source: str) -> Candidate | None:
    """Return the candidate of a stored schedule, None where this version does not print the stored source."""
    try:
        if source and current_source(database, KernelSpec(problem, text)) == source:
            return assess(problem.form, read_schedule(text), problem.target)
    except (CutsError, AssertionError):
        pass  # no schedule of this version
    return None


def current_source(database: Database, written: KernelSpec) -> str:
    """Return and store the digest of this version's source, if any."""
    known = database.current_sources([written.name])
    if not known:
        known = {written.name: Factory().source(written)}
        database.note_sources(known)
    return known[written.name]


def transferred_choice(database: Database, problem: TuningTask) -> TunedChoice | None:
    """Return the best schedule of another version, not measured here."""
    found = hints(database, problem)
    if not found:
        return None
    return TunedChoice(
        found[0].candidate, None, origin=ORIGIN_ELSEWHERE, reason="its schedule was best with another version"
    )


def predicted_choice(problem: TuningTask) -> TunedChoice:
    """Return the cost model's choice, where no result is known."""
    return _guess(choose(problem.form, problem.target)[0])


def predicted_choices(problems: Sequence[TuningTask]) -> list[TunedChoice]:
    """Return predicted choices; workers answer the rest of a long series."""
    found: list[TunedChoice] = []
    end = monotonic() + SECONDS_WITHOUT_WORKERS
    while len(found) < len(problems) and monotonic() < end:
        found.append(predicted_choice(problems[len(found)]))
    rest = problems[len(found) :]
    with PlanningWorkers() as workers:
        answers = workers.submit([ScheduleRequest(each.form, each.target) for each in rest])()
    # Answers to few questions are left to this process.
    found += [_guess(a) if a is not None else predicted_choice(p) for p, a in zip(rest, answers, strict=True)]
    return found


def _guess(candidate: Candidate) -> TunedChoice:
    return TunedChoice(candidate, None, origin=ORIGIN_GUESSED, reason="nothing is known of it")


def hints(database: Database, problem: TuningTask) -> list[ScoredCandidate]:
    """Return the winners of other machines that are in this task's space."""
    return _points(database.hints(problem), problem)


def learned_order(database: Database, problem: TuningTask, settings: Settings) -> LearnedOrder | None:
    """Return the learned order of candidates, with measurements of other machines.

    The result is None where the order is the cost model's.
    """
    times = database.transferred_times(problem) if settings.recalls else {}
    if len(times) < MIN_RECALLED:
        return settings.correction
    fastest = sorted(times.items(), key=lambda each: (each[1], each[0]))
    return evolve(settings.correction or LearnedOrder(), recalled=tuple(fastest[:MOST_RECALLED]))


def faster_before(task: TaskRecord) -> list[ScoredCandidate]:
    """Return faster measured candidates that a search has not proposed.

    A search must not end with less. Where the fastest may be printed differently today, the fastest valid one is
    returned too.
    """
    ran = [t for t in task.stored.values() if t.ok and t.schedule not in task.entries]
    best = (min(some, key=_order, default=None) for some in (ran, [t for t in ran if t.holds]))
    faster = dict.fromkeys(t.schedule for t in best if t is not None and (t.seconds or 0.0) < task.seconds)
    return _points([*faster], task.problem)


def _points(texts: Sequence[str], problem: TuningTask) -> list[ScoredCandidate]:
    found = []
    for text in texts:
        try:
            schedule = read_schedule(text)
            if not check_schedule(problem.form, schedule, problem.target):
                found.append(ScoredCandidate(None, assess(problem.form, schedule, problem.target)))
        except (CutsError, AssertionError):
            continue  # no schedule of this version
    return found
