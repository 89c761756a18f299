"""Long kernels: text that is long after unrolling takes a compiler long.

They are built where nothing else runs, and by searches that have the time.
"""

from __future__ import annotations

from math import inf

import pytest
from attrs import evolve
from cuts.backends.source import unrolled_statements
from cuts.ir import BOUND_PRUNING
from cuts.search.building.factory import BuildResult, Factory
from cuts.search.building.workers import JobResult
from cuts.search.database import Database
from cuts.search.settings import FIRST_CANDIDATES, Settings
from cuts.search.tasks.tuning_task import TuningTask

from .fakes import FakeBench, Inline, by_threads, fake_compile, group_of, problem_of, tuner_of

SHORT_SEARCH = Settings(first=4, most=8, prove=False)


class Long(Inline):
    """Builder that finds candidates at some positions too long.

    `asked` has the limit of each.
    """

    def __init__(self, places: range) -> None:
        super().__init__()
        self.places, self.asked = places, list[float]()

    def collect(self, timeout: float) -> list[JobResult]:
        found = super().collect(timeout)
        return [self._limit(done) if done.job.method == "build" else done for done in found]

    def _limit(self, done: JobResult) -> JobResult:
        longest = done.job.arguments[2] if len(done.job.arguments) > 2 else inf
        assert isinstance(longest, float | int)
        self.asked.append(longest)
        long = longest < inf and len(self.asked) - 1 in self.places
        return evolve(done, value=BuildResult(None, outcome="long")) if long else done


def test_long_candidate_is_left_out_and_not_remembered() -> None:
    builder, database = Long(range(2)), Database(None)
    tuner = tuner_of(FakeBench(by_threads), builder, database)
    (choice,) = tuner.run([problem_of(32)], SHORT_SEARCH)
    assert choice.seconds is not None
    assert tuner.statistics.outcomes["long"] == 2
    assert tuner.statistics.compiled == tuner.statistics.timed == len(database.measurements(problem_of(32)))
    assert all(t.ok for t in database.measurements(problem_of(32)))


def test_where_all_candidates_are_long_they_are_built() -> None:
    builder = Long(range(4))
    (choice,) = tuner_of(FakeBench(by_threads), builder).run([problem_of(32)], SHORT_SEARCH)
    assert choice.origin == "measured"
    assert builder.asked[4:8] == [inf] * 4


def test_next_candidates_replace_long_first_ones() -> None:
    builder = Long(range(FIRST_CANDIDATES))
    (choice,) = tuner_of(FakeBench(by_threads), builder).run([problem_of(32)], SHORT_SEARCH)
    assert choice.origin == "measured"
    assert inf not in builder.asked


def test_replacement_of_first_candidate_is_built_first() -> None:
    """Sixteen workers waited for one task's ninth candidate.

    Each of those was after all others in the queue.
    """
    builder, order = Long(range(FIRST_CANDIDATES)), list[str]()
    collect = builder.collect

    def collect_noting(timeout: float) -> list[JobResult]:
        done = collect(timeout)
        order.extend(each.job.arguments[0].key for each in done if each.job.method == "build")
        return done

    builder.collect = collect_noting  # type: ignore[method-assign]
    problems = [problem_of(size) for size in range(32, 64, 8)]
    tuner_of(FakeBench(by_threads), builder).run(problems, SHORT_SEARCH)
    assert len(set(order[:FIRST_CANDIDATES])) == 1, "two candidates of one problem are too long"
    again = [number for number, key in enumerate(order) if key == order[0]][FIRST_CANDIDATES]
    assert again <= FIRST_CANDIDATES + 1


@pytest.mark.parametrize(("promising", "built"), [(0.0, 0), (100.0, 1)])
def test_promising_long_candidate_is_built(promising: float, built: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the short candidates of a product of odd sizes were timed.

    They took twice as long.
    """
    monkeypatch.setattr("cuts.search.tuner.build_queue.PROMISING_SHARE", promising)
    builder = Long(range(1))
    tuner = tuner_of(FakeBench(by_threads), builder)
    tuner.run([problem_of(32)], SHORT_SEARCH)
    assert builder.asked.count(inf) == built
    assert tuner.statistics.outcomes["long"] == 1 - built


def test_a_deeper_search_builds_long_candidates() -> None:
    builder = Long(range(100))
    tuner_of(FakeBench(by_threads), builder).run([problem_of(32)], SHORT_SEARCH.deeper_settings(1))
    assert set(builder.asked) == {inf}


def test_worker_does_not_compile_too_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuts.backends.devices import find_target

    monkeypatch.setattr("cuts.search.building.factory.compile_kernel", fake_compile)
    target = find_target("cuda:h200")
    problem = TuningTask(group_of("matmul", ((64, 64), (64, 64))), {}, target, {})
    (scored,) = Factory().rank(problem, BOUND_PRUNING, 1)
    built = Factory().build(problem, scored.candidate.schedule)
    assert built.kernel is not None
    statements = unrolled_statements(built.kernel.source)
    assert Factory().build(problem, scored.candidate.schedule, statements).outcome == "ok"
    refused = Factory().build(problem, scored.candidate.schedule, statements - 1)
    assert (refused.outcome, refused.kernel) == ("long", None)
    assert str(statements) in refused.message
