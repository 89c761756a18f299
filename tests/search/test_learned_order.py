"""Learned order of points.

Used only where it is better on unseen operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from cuts.cli.main import main
from cuts.ir import BOUND_PRUNING
from cuts.ir.schedule import Schedule
from cuts.passes.schedule import make_space
from cuts.search.building.factory import Factory
from cuts.search.database import Database, Measurement
from cuts.search.learned.correction import LearnedOrder, Tree
from cuts.search.learned.evaluation import MIN_OPERATIONS, PLAIN, evaluate_held_out, evaluate_order, learn, train_order
from cuts.search.learned.rank_fit import estimate
from cuts.search.learned.rank_points import (
    MIN_POINTS,
    Array,
    MeasuredOperation,
    RankPoints,
    features_and_conflicts,
    of_database,
    rank_points,
)
from cuts.search.settings import Settings
from cuts.search.strategies import FullSpace, make_strategy
from cuts.search.strategies.proposer import interleave_structures
from cuts.search.tasks.tuning_task import TuningTask, machine_of, schedule_text

from .fakes import OPENCL, problem_of

pytest.importorskip("sklearn")
SIZES, COUNT = (16, 24, 32, 40, 48), 60


def schedules(problem: TuningTask, count: int) -> list[Schedule]:
    full = FullSpace(make_space(problem.form, problem.target))
    return [full.candidate_at(p).candidate.schedule for p in full.random(count, (3,))]


@pytest.fixture(scope="module")
def plain() -> list[MeasuredOperation]:
    """Return operations whose points take the plain estimate's times."""
    found = []
    for size in SIZES:
        problem = problem_of(size)
        rows = [features_and_conflicts(problem.form, s, OPENCL) for s in schedules(problem, COUNT)]
        points = rank_points([[*row, 1.0, 0.0] for row in rows if row])
        points = evolve(points, seconds=estimate(points, OPENCL))
        found.append(MeasuredOperation(problem.label, problem.work, "made up", OPENCL, points))
    return found


def with_times(
    operations: Sequence[MeasuredOperation], factor: Callable[[RankPoints], Array]
) -> list[MeasuredOperation]:
    return [evolve(o, points=evolve(o.points, seconds=o.points.seconds * factor(o.points))) for o in operations]


def many_threads_are_slow(points: RankPoints) -> Array:
    """Something that the estimate knows nothing of."""
    return np.where(points.features.threads > 2, 6.0, 1.0)


def test_errors_of_the_estimate_are_learned_for_others(plain: list[MeasuredOperation]) -> None:
    operations = with_times(plain, many_threads_are_slow)
    lesson = train_order(operations)
    assert lesson.chosen in ("trees", "both")
    assert lesson.correction is not None
    assert lesson.by_operation[lesson.chosen].means[1] < lesson.by_operation["plain"].means[1]
    assert any("used: " in line for line in lesson.lines())


def test_right_estimate_is_not_replaced(plain: list[MeasuredOperation]) -> None:
    lesson = train_order(plain)
    assert [s.best for s in lesson.by_operation["plain"].standings] == [1] * len(plain)
    assert (lesson.chosen, lesson.correction) == ("", None)
    assert "which stays" in lesson.lines()[-1]


def test_few_operations_teach_nothing(plain: list[MeasuredOperation]) -> None:
    lesson = train_order(plain[: MIN_OPERATIONS - 1])
    assert lesson.correction is None
    assert lesson.lines() == ["nothing learned: 3 measured operations, 4 at least are needed"]


def test_operation_is_evaluated_by_models_without_it(plain: list[MeasuredOperation]) -> None:
    met: list[tuple[set[str], str]] = []

    def learner(rest: Sequence[MeasuredOperation], variant: str) -> LearnedOrder:
        met.append(({o.work for o in rest}, variant))
        return PLAIN

    twice = [*plain, *(evolve(o, machine="another") for o in plain)]
    evaluate_held_out(twice, [{o.work} for o in plain], lambda o: o.work, learner)
    assert len(met) == 3 * len(plain)
    for number, (works, _) in enumerate(met):
        assert plain[number // 3].work not in works


def test_order_that_fails_on_another_machine_is_unused(plain: list[MeasuredOperation]) -> None:
    here = with_times(plain, many_threads_are_slow)
    there = [evolve(o, machine="another") for o in plain]
    better = learn(here, "trees")

    def learner(rest: Sequence[MeasuredOperation], variant: str) -> LearnedOrder:
        return better if {o.machine for o in rest} != {"another"} else PLAIN

    assert train_order(here, learner).chosen
    lesson = train_order([*here, *there], learner)
    assert not lesson.by_machine["trees"].beats(lesson.by_machine["plain"])
    assert lesson.correction is None


def test_trees_predict_here_as_where_they_were_trained() -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    rows = np.random.default_rng(0).random((80, 3))
    wanted = np.where(rows[:, 1] > 0.5, 1.0, rows[:, 0])
    learner = GradientBoostingRegressor(n_estimators=2, max_depth=3, random_state=0).fit(rows, wanted)
    found = learner.estimators_[0, 0].tree_
    tree = Tree(*(tuple(np.asarray(v).reshape(-1).tolist()) for v in (
        np.where(found.feature < 0, -1, found.feature), found.threshold, found.children_left, found.children_right,
        found.value)))  # fmt: skip
    assert tree.values_of(rows) == pytest.approx(learner.estimators_[0, 0].predict(rows))


def test_search_begins_and_continues_in_learned_order(plain: list[MeasuredOperation]) -> None:
    problem, correction = problem_of(32), learn(with_times(plain, many_threads_are_slow), "trees")
    first = Factory().rank(problem, BOUND_PRUNING, 6, correction)
    scores = [s.point.score for s in first if s.point is not None]
    assert scores == sorted(scores)
    assert [s.point for s in first] != [s.point for s in Factory().rank(problem, BOUND_PRUNING, 6)]
    space = make_space(problem.form, problem.target)
    strategy = make_strategy("rank", space, first, correction=Settings(correction=correction).correction)
    assert strategy.propose([], float("inf"), 6) == interleave_structures(first)
    near = FullSpace(space).near([first[0].point]) if first[0].point else set()
    assert {p.places for p in strategy.domain.near([first[0].point])} == {p.places for p in near}  # type: ignore[attr-defined]


def test_times_of_this_machine_come_from_a_database(plain: list[MeasuredOperation]) -> None:
    database, problem = Database(None), evolve(problem_of(16), machine=machine_of(OPENCL))
    texts = [schedule_text(s) for s in schedules(problem, MIN_POINTS)]
    for other in (problem, evolve(problem, machine={"target": "another"})):
        database.register(other)
        database.record(other, [Measurement(text, "ok", 1e-3 * n) for n, text in enumerate(texts, 1)])
    database.record(problem, [Measurement("no schedule", "ok", 1.0), Measurement("wrong one", "wrong")])
    (found,) = of_database(database, OPENCL)
    assert sorted(found.points.seconds) == pytest.approx([1e-3 * n for n in range(1, MIN_POINTS + 1)])
    assert evaluate_order(found, PLAIN).points == MIN_POINTS


def test_command_reports_the_learned_order_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    assert main(["tune", "--learn", "--target", "opencl"]) == 0
    assert "nothing learned: 0 measured operations" in capsys.readouterr().err
    assert main(["tune", "--recorded", "x.json.gz", "--target", "opencl"]) == 2
    assert "--recorded does nothing here" in capsys.readouterr().err
