"""Search for one unit with this place's workers and device."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from ...ir import Budget, CutsError, processor_count
from ..building import CandidateBuilder
from ..database import Database
from ..measurement import Bench
from ..tuner import SearchExecutor, TaskRecord, TuningLoop, best_known, space_key
from .unit import ReusableParts, SearchUnit, UnitResult

#: Reusable parts of this process, by the name of the target.
_PARTS: dict[str, ReusableParts] = {}


def search_unit(
    unit: SearchUnit,
    builder: Callable[[], CandidateBuilder] | None = None,
    bench: Callable[[], Bench] | None = None,
    workers: int | None = None,
) -> UnitResult:
    """Search for one task with this place's workers and device.

    Errors are part of the result; where time ends early, the best so far is returned.
    """
    target = unit.problem.target
    kept = _PARTS.setdefault(target.name, ReusableParts(target, workers or processor_count()))
    database = Database(None)
    budget = Budget.of_measuring(unit.seconds)
    executor = SearchExecutor(database, builder or kept.builder, bench or kept.bench, budget)
    same = unit.version == database.version
    known = unit.trials if same else [evolve(trial, holds=None) for trial in unit.trials]
    task = TaskRecord(unit.problem, stored={trial.schedule: trial for trial in known})
    try:
        database.record(unit.problem, unit.trials)
        if unit.ranked:
            executor.memory.ranked[space_key(unit.problem, unit.settings)] = list(unit.ranked)
        TuningLoop(executor, unit.settings).search([task])
        return _result(executor, unit, task)
    except CutsError as error:  # no device, for example
        executor.drop()
        return UnitResult(dict(unit.problem.machine), error=error.message.splitlines()[0])
    finally:
        if not executor.started:
            kept.forget()
        database.close()


def _result(executor: SearchExecutor, unit: SearchUnit, task: TaskRecord) -> UnitResult:
    """Return the result of a unit, the best so far where its search was cut short."""
    problem, database, settings = unit.problem, executor.database, unit.settings
    known = {t.schedule: t for t in unit.trials}
    built = [e for e in task.entries.values() if e.built is not None]
    return UnitResult(
        dict(problem.machine),
        tuple(t for t in database.measurements(problem) if known.get(t.schedule) != t),
        task.choice or best_known(task, settings, database, executor.memory.ranked),
        database.winner(problem),
        len(built),
        sum(bool(e.samples) for e in built),
        complete=task.choice is not None,
        ranked=() if unit.ranked else tuple(executor.memory.ranked.get(space_key(problem, settings), ())),
        rounds=task.round,
        version=database.version,
    )
