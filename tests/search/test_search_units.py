"""Units of a search, each searched at its own place.

A ranked space is ranked once, an interrupted unit is handed over as it is, and no unit costs another.
"""

from __future__ import annotations

import pytest
from attrs import define, evolve
from cuts.ir.compiled import Budget
from cuts.search.building.workers import Job, JobResult
from cuts.search.database import Database
from cuts.search.remote.share_out import UnitAnswer
from cuts.search.remote.unit import SearchUnit, UnitResult
from cuts.search.remote.unit_search import search_unit
from cuts.search.settings import QUICK_SEARCH, Settings

from . import hosts
from .fakes import FakeBench, Inline, by_threads, problem_of
from .hosts import PROBLEMS, SHORT_SEARCH, Hosts, results, tune_problems
from .simulation import FakeClock, SimulatedGPU, SimulatedWorkers, constant_time


def unit(size: int, settings: Settings = SHORT_SEARCH, seconds: float | None = None) -> SearchUnit:
    return SearchUnit(problem_of(size), settings, seconds=seconds)


def test_space_ranked_at_one_place_is_not_reranked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of groups ranks spaces for the following search.

    That may run at another place.
    """
    ranked: list[str] = []

    class Noting(Inline):
        def submit(self, job: Job) -> None:
            ranked.extend([job.arguments[0].key] if job.method == "rank" else [])  # type: ignore[attr-defined]
            super().submit(job)

    def note_unit(unit: SearchUnit) -> UnitResult:
        return search_unit(unit, Noting, lambda: FakeBench(by_threads))

    monkeypatch.setattr(hosts, "made_up", note_unit)
    tuner = tune_problems(Hosts(2), PROBLEMS, Database(None), [])
    tuner.estimate(PROBLEMS, QUICK_SEARCH)
    tuner.run(PROBLEMS, Settings(prove=False))
    assert sorted(ranked) == sorted(p.key for p in PROBLEMS)


def test_unit_with_empty_space_reports_it() -> None:
    class Empty(Inline):
        def collect(self, timeout: float) -> list[JobResult]:
            found = super().collect(timeout)
            empty = [d.job.method == "rank" and d.job.arguments[0].label == "matmul 16" for d in found]
            return [evolve(d, value=None) if e else d for d, e in zip(found, empty, strict=True)]

    builder = Empty()
    found = [search_unit(unit(size), lambda: builder, lambda: FakeBench(by_threads)) for size in (8, 16, 24)]
    assert "no schedule fits" in found[1].error
    assert found[0].choice is not None
    assert found[2].choice is not None


def test_unit_is_handed_over_unfinished_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    budget = Budget.of(8.0, clock)
    monkeypatch.setattr("cuts.search.remote.unit_search.Budget.of_measuring", lambda seconds: budget)
    workers = SimulatedWorkers(clock, size=2)
    result = search_unit(unit(32, Settings(), 8.0), lambda: workers, lambda: SimulatedGPU(clock, constant_time))
    assert not result.complete
    assert result.choice is not None
    assert result.choice.seconds is not None
    assert result.winner is None
    assert clock.now < 10.0


def test_interrupted_search_leaves_measurements_but_no_estimate() -> None:
    @define
    class Late(Hosts):
        """Hosts that hand over their current results."""

        def __init__(self) -> None:
            super().__init__(1)

        def collect(self, timeout: float) -> list[UnitAnswer]:
            (answer,) = super().collect(timeout)
            assert answer.result is not None
            return [evolve(answer, result=evolve(answer.result, complete=False))]

    database = Database(None)
    tuner = tune_problems(Late(), PROBLEMS, database, [])
    found = tuner.estimate(PROBLEMS, evolve(QUICK_SEARCH, most=40, first=40))
    assert all(seconds is not None for seconds in found)
    assert not tuner.complete
    assert all(database.time(f"estimate of 40 {p.key}") is None for p in PROBLEMS)


@pytest.mark.parametrize("lies", [[0], [1]])
def test_results_beside_a_lie_are_discarded(lies: list[int]) -> None:
    class SeveralAnswers(Hosts):
        def collect(self, timeout: float) -> list[UnitAnswer]:
            return [answer for _ in range(len(self.queue)) for answer in super(SeveralAnswers, self).collect(timeout)]

        def submit(self, number: int, unit: SearchUnit, limit: float) -> None:
            self.queue.append((number, self.names[number % len(self.names)], unit))

        @property
        def free(self) -> int:
            return 4 - len(self.queue)

    database, hosts, notes, undisturbed = Database(None), SeveralAnswers(2, lies=lies), list[str](), Database(None)
    tune_problems(hosts, PROBLEMS, database, notes).run(PROBLEMS, SHORT_SEARCH)
    tune_problems(None, PROBLEMS, undisturbed, []).run(PROBLEMS, SHORT_SEARCH)
    assert results(database, PROBLEMS) == results(undisturbed, PROBLEMS)
    assert sum("below its bound" in note for note in notes) == 1
