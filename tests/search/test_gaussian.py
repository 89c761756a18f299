"""Gaussian process of Bayesian searches.

Predicted values, and the end of a search.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from attrs import evolve
from cuts.ir import BOUND_PRUNING
from cuts.passes.schedule import Point, best_points, make_space
from cuts.search.building.factory import Factory
from cuts.search.building.workers import Job, JobResult
from cuts.search.learned.gaussian import GaussianProcess, Posterior, expected_improvement
from cuts.search.settings import DEEPER_STRATEGIES, Settings
from cuts.search.strategies import (
    STRATEGIES,
    FullSpace,
    Observation,
    ProposingFactory,
    make_strategy,
    request_of,
    strategy_on,
)
from cuts.search.strategies.bayes_early_stop import (
    MAX_UNSUCCESSFUL,
    MIN_EXPECTED_GAIN,
    MIN_MEASURED_POINTS,
    EarlyStoppingBayes,
)
from cuts.search.strategies.proposer import interleave_structures
from cuts.search.strategies.surrogate import SurrogateEstimate
from cuts.search.tasks.kernels import make_kernel
from cuts.search.tuner import proposals
from threadpoolctl import threadpool_info, threadpool_limits

from .fakes import FakeBench, Inline, by_threads, problem_of, tuner_of


def smooth(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(2.0 * rows[:, 0]) + 0.3 * rows[:, 1])


def test_process_interpolates_its_data() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    process = GaussianProcess.fit(rows, smooth(rows))
    assert process.at(rows).mean == pytest.approx(smooth(rows), abs=0.1)
    between = 0.5 * rows
    beliefs = process.at(between)
    assert beliefs.mean == pytest.approx(smooth(between), abs=0.2)
    assert process.at(rows + 50.0).variance.min() > 10 * beliefs.variance.max()


def test_assumed_row_equals_a_process_fitted_to_it() -> None:
    rows = np.random.default_rng(1).normal(size=(12, 2))
    process, others = GaussianProcess.fit(rows, smooth(rows)), np.random.default_rng(2).normal(size=(8, 2))
    beliefs = process.at(others)
    means = beliefs.mean.copy()
    for row in (3, 5):
        beliefs.assume_measured(row)
    differences = np.concatenate([rows, others[[3, 5]]])[:, None, :] - np.concatenate([rows, others])[None, :, :]
    far = np.sqrt(5.0 * (differences**2).sum(axis=2)) / process.length
    covariance = (1.0 + far + far**2 / 3.0) * np.exp(-far)
    here = np.concatenate([covariance[:, :12], covariance[:, [15, 17]]], axis=1) + process.noise * np.eye(14)
    near = covariance[:, 12:].T
    exact = process.variance * (1.0 - np.einsum("ij,jk,ik->i", near, np.linalg.inv(here), near))
    assert beliefs.variance == pytest.approx(exact, rel=1e-6)
    assert beliefs.mean == pytest.approx(means)


def test_the_expected_gain_is_that_of_many_draws() -> None:
    drawn = np.random.default_rng(3).normal(1.0, 0.5, 200_000)
    (gain,) = expected_improvement(np.asarray([1.0]), np.asarray([0.25]), 0.8)
    assert gain == pytest.approx(np.maximum(0.8 - drawn, 0.0).mean(), rel=0.02)
    assert expected_improvement(np.asarray([9.0]), np.asarray([1e-4]), 0.8)[0] == pytest.approx(0.0, abs=1e-9)


def tried_points(strategy: str, cost: Callable[[Point], float], most: int = 40) -> list[Observation]:
    """Return the points that a strategy tried under a cost function."""
    problem = problem_of(32)
    space = FullSpace(make_space(problem.form, problem.target))
    first = [space.candidate_at(p) for p in best_points(problem.form, problem.target, BOUND_PRUNING, 12)]
    search, known = strategy_on(space, strategy, first), list[Observation]()
    while len(known) < most:
        proposed = search.propose(known, min((k.seconds for k in known), default=inf), 3 if known else 12)
        if not proposed:
            break
        known += [Observation(s.point, cost(s.point)) for s in proposed if s.point is not None]
    return known


def test_search_ends_without_gain_or_expectation() -> None:
    known = tried_points("frugal", lambda point: 2.0 * point.score)
    assert MIN_MEASURED_POINTS + MAX_UNSUCCESSFUL <= len(known) < 30
    assert len(tried_points("bayes", lambda point: 2.0 * point.score)) >= 40
    assert len(tried_points("thorough", lambda point: 2.0 * point.score)) >= 40
    assert Settings(strategy="frugal").deeper_settings(1).strategy == DEEPER_STRATEGIES["frugal"] == "thorough"
    assert Settings().strategy in STRATEGIES


def test_few_vain_points_suffice_for_small_expected_gain() -> None:
    problem = problem_of(32)
    space = FullSpace(make_space(problem.form, problem.target))
    first = [space.candidate_at(p) for p in best_points(problem.form, problem.target, BOUND_PRUNING, 12)]
    search = strategy_on(space, "frugal", first)
    points = [s.point for s in first if s.point is not None]
    known = [
        Observation(point, 2.0 if n else 1.0)
        for n, point in enumerate(points[: MIN_MEASURED_POINTS + MAX_UNSUCCESSFUL])
    ]
    assert isinstance(search, EarlyStoppingBayes)
    assert search.continues(known[:-1], expecting(0.0))
    assert search.continues([*known[:-1], evolve(known[-1], seconds=0.9)], expecting(0.0))
    assert search.continues(known, expecting(1.5 * MIN_EXPECTED_GAIN))
    assert not search.continues(known, expecting(0.75 * MIN_EXPECTED_GAIN))
    assert not search.continues(known, None)


def test_equal_times_need_more_points_to_end() -> None:
    problem = problem_of(32)
    space = FullSpace(make_space(problem.form, problem.target))
    first = [space.candidate_at(p) for p in best_points(problem.form, problem.target, BOUND_PRUNING, 12)]
    search = strategy_on(space, "frugal", first)
    known = [Observation(s.point, 1.0) for s in first if s.point is not None]
    assert isinstance(search, EarlyStoppingBayes)
    assert search.continues(known[: MIN_MEASURED_POINTS + MAX_UNSUCCESSFUL], expecting(0.0))
    assert not search.continues(known[: MIN_MEASURED_POINTS + 2 * MAX_UNSUCCESSFUL], expecting(0.0))


def expecting(gain: float) -> SurrogateEstimate:
    """Return an outlook on one point with a certain expected gain."""
    row = np.zeros((1, 1))
    process = GaussianProcess.fit(row, np.zeros(1))
    return SurrogateEstimate(Posterior(process, row, row, np.asarray([-gain]), np.asarray([1e-12])), np.zeros(1), 0.0)


def test_model_points_are_tried_where_nothing_runs() -> None:
    assert len(tried_points("frugal", lambda point: inf)) == 12


def test_searches_begin_with_the_best_of_every_structure() -> None:
    problem = problem_of(32)
    space = FullSpace(make_space(problem.form, problem.target))
    points = [space.candidate_at(p) for p in sorted(space.random(40, (5,)))]
    ordered = [s.point.structure for s in interleave_structures(points) if s.point is not None]
    assert sorted(ordered) == sorted(s.point.structure for s in points if s.point is not None)
    count = len(set(ordered))
    assert count > 1
    assert len(set(ordered[:count])) == count


def test_proposals_take_one_thread_beside_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, threads = GaussianProcess.fit, []

    def watch_fit(rows: np.ndarray, values: np.ndarray) -> GaussianProcess:
        threads.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return fitted(rows, values)

    monkeypatch.setattr(GaussianProcess, "fit", staticmethod(watch_fit))
    with threadpool_limits(2):
        tuner_of(FakeBench(by_threads)).run([problem_of(32)])
    assert threads
    assert set(threads) == {1}


@pytest.mark.parametrize("name", ["bayes", "frugal", "thorough"])
def test_a_worker_proposes_what_the_strategy_itself_does(name: str) -> None:
    problem, settings = problem_of(32), Settings(strategy=name)
    ranked = Factory().rank(problem, settings.pruning, 16)
    space = make_space(problem.form, problem.target)
    here, there = (make_strategy(name, space, ranked) for _ in range(2))
    known: list[Observation] = []
    for _ in range(4):
        best = min((k.seconds for k in known), default=inf)
        asked = request_of(settings, there, known, best, 3)
        assert asked is not None
        found, seen = ProposingFactory().propose(problem, pickle.loads(pickle.dumps(asked)))
        there.seen.update(seen)
        assert found == here.propose(known, best, 3)
        assert there.seen == here.seen
        known += [Observation(s.point, by_threads(make_kernel(problem, s.candidate.schedule))) for s in found]
    assert request_of(settings, make_strategy("rank", space, ranked), known, 1.0, 3) is None


@pytest.mark.parametrize("fails", [False, True])
def test_search_asks_workers_and_continues_alone_on_failure(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "MAX_PENDING_SHARE", 0.0)  # who proposes before all is known proposes something else

    class FailingInline(Inline):
        def collect(self, timeout: float) -> list[JobResult]:
            return [evolve(d, value=None, error="no") if fails and d.job.method == "propose" else d
                    for d in super().collect(timeout)]  # fmt: skip

        def submit(self, job: Job) -> None:
            asked.append(job.method)
            super().submit(job)

    asked: list[str] = []
    workers = FailingInline()
    (alone,) = tuner_of(FakeBench(by_threads)).run([problem_of(32)])
    workers.size = 4
    (chosen,) = tuner_of(FakeBench(by_threads), workers).run([problem_of(32)])
    assert "propose" in asked
    assert (chosen.candidate, chosen.trials) == (alone.candidate, alone.trials)
