"""Strategies over a made-up space of points, and recorded spaces.

No device is needed.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest
from attrs import asdict, evolve
from cuts.bench.tools.recorded_domain import RecordedDomain, recorded_domain
from cuts.bench.tools.recording import PoolRecorder, pool
from cuts.bench.tools.strategies import first_of, regrets, replay_search
from cuts.ir.errors import UsageError
from cuts.ir.text import use_former_keywords
from cuts.passes.schedule import make_space
from cuts.search.database import Database
from cuts.search.learned import layer_numbers
from cuts.search.learned.recorded_spaces import RecordedSpace, read_spaces, write_spaces
from cuts.search.settings import Settings
from cuts.search.strategies import FullSpace, Observation, place_of, strategy_on
from cuts.search.strategies.bayes import FIRST_CANDIDATES, Bayes
from cuts.search.strategies.ppo import generalised_advantages, moving_average, reward
from cuts.search.strategies.printed_genetic import selection
from cuts.search.strategies.printed_ppo import OBSERVED_NUMBERS, PRINTED_FORM, STEPWISE_FORM, PrintedPpo
from cuts.search.strategies.proposer import interleave_structures
from cuts.search.tuner.executor import SearchExecutor
from cuts.tests.search_space import groups

from .fakes import FakeBench, Inline, by_threads, problem_of
from .test_tuner import strategies


class InlinePools(Inline):
    """A builder that makes pools itself."""

    def collect(self, timeout: float) -> list:  # type: ignore[type-arg]
        from cuts.search.building.workers import JobResult

        pools = [job for job in self.queue if job.method == "pool"]
        if pools:
            self.queue.remove(pools[0])
            return [JobResult(pools[0], pool(*pools[0].arguments))]  # type: ignore[arg-type]
        return super().collect(timeout)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuts.search.strategies.proposer.NUM_RANDOM_POINTS", 100)
    monkeypatch.setattr("cuts.search.strategies.policy.EPOCHS", 1)


@pytest.fixture(scope="module")
def space() -> RecordedSpace:
    bench = FakeBench(by_threads)
    executor = SearchExecutor(Database(None), InlinePools, lambda: bench)
    (found,) = PoolRecorder(executor, Settings(), 160).run([problem_of(32)])
    return found


@pytest.fixture(scope="module")
def ground(space: RecordedSpace) -> RecordedDomain:
    return recorded_domain(space, problem_of(32))


def test_a_recording_is_read_as_it_was_written(space: RecordedSpace, tmp_path: Path) -> None:
    write_spaces(tmp_path / "spaces.json.gz", [space])
    (found,) = read_spaces(tmp_path / "spaces.json.gz")
    assert evolve(found, target=space.target) == space
    assert found.recorded_target == problem_of(32).target
    assert found.timed == len(found.points) >= 100


def test_a_recording_of_the_format_before_is_read(space: RecordedSpace, tmp_path: Path) -> None:
    import gzip
    import json

    path = tmp_path / "older.json.gz"
    write_spaces(path, [space])
    head, line = gzip.decompress(path.read_bytes()).decode().splitlines()
    values = json.loads(line)
    del values["version"]
    for point in values["points"]:
        point[0] = use_former_keywords(point[0])
    assert values["points"][0][0] != space.points[0].schedule
    path.write_bytes(
        gzip.compress(f"{json.dumps(json.loads(head) | {'recorded spaces': 1})}\n{json.dumps(values)}".encode())
    )
    (found,) = read_spaces(path)
    assert evolve(found, target=space.target) == space


def test_a_recording_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "newer.json.gz"
    path.write_bytes(gzip.compress(b'{"recorded spaces": 9}'))
    with pytest.raises(UsageError, match="format 9 of recorded spaces, this version reads 3"):
        read_spaces(path)
    path.write_bytes(b"no recording")
    with pytest.raises(UsageError, match="holds no recorded spaces"):
        read_spaces(path)


def test_search_domain_has_this_versions_points_only(space: RecordedSpace) -> None:
    first, *rest = space.points
    strange = RecordedSpace(**{**asdict(space, recurse=False), "points": (
        type(first)(**{**asdict(first), "schedule": "written otherwise"}), *rest)})  # fmt: skip
    ground = recorded_domain(strange, problem_of(32))
    assert len(ground.points) == len(space.points) - 1
    assert (first.structure, first.places) not in ground.seconds


@pytest.mark.parametrize("strategy", list(strategies()))
@pytest.mark.parametrize("aided", [True, False])
def test_strategy_tries_recorded_points_once_and_deterministically(
    ground: RecordedDomain, strategy: str, aided: bool
) -> None:
    first = first_of(ground)
    run = replay_search(ground, first, strategy, 0, aided, 24)
    assert run == replay_search(ground, first, strategy, 0, aided, 24)
    assert FIRST_CANDIDATES + 3 <= len(run) <= 24
    assert min(run) <= np.median(list(ground.seconds.values()))


@pytest.mark.parametrize("strategy", list(strategies()))
def test_pruned_points_are_proposed_without_model_only(strategy: str) -> None:
    problem = problem_of(32)
    full = FullSpace(make_space(problem.form, problem.target))
    first = [full.candidate_at(p) for p in full.random(12, (7,))]
    # no strategy ends after so few
    known = [Observation(s.point, 1e-3) for s in first[:FIRST_CANDIDATES] if s.point is not None]
    least = min(s.candidate.bound for s in first)
    assert not strategy_on(full, strategy, first).propose(known, 0.1 * least, 6)
    assert strategy_on(full, strategy, first, aided=False).propose(known, 0.1 * least, 6)


def test_features_of_a_batch_equal_single_ones() -> None:
    problem = problem_of(32)
    full = FullSpace(make_space(problem.form, problem.target))
    points = full.random(40, (7,))
    assert len({p.structure for p in points}) > 1
    bounds = full.bounds([*points, *points[:3]])
    np.testing.assert_allclose(
        bounds, [full.candidate_at(p).candidate.bound for p in (*points, *points[:3])], rtol=1e-12
    )
    alone = FullSpace(full.space)
    assert all(np.array_equal(full.features([p]), alone.features([p])) for p in points)


@pytest.mark.parametrize("strategy", ["bayes", "frugal", "thorough"])
def test_pruned_points_are_never_candidates(strategy: str) -> None:
    problem = problem_of(32)
    full = FullSpace(make_space(problem.form, problem.target))
    first = [full.candidate_at(p) for p in full.random(12, (7,))]
    known = [Observation(s.point, 2.0 * s.candidate.bound) for s in first if s.point is not None]
    searching = strategy_on(full, strategy, first)
    assert isinstance(searching, Bayes)
    looked = searching.candidates(known)
    assert looked
    assert full.bounds(looked).max() <= min(k.seconds for k in known)


def test_deterministic_strategies_begin_with_the_models_best(ground: RecordedDomain) -> None:
    first = first_of(ground)
    for name in ("rank", "genetic", "ppo", "bayes", "frugal", "thorough"):
        if name in {p.values[0] for p in strategies() if not p.marks[0].args[0]}:  # type: ignore[union-attr]
            begun = strategy_on(ground, name, first).propose([], inf, len(first))
            assert (
                begun
                == interleave_structures(first)[: FIRST_CANDIDATES if name in ("bayes", "frugal", "thorough") else None]
            )


def test_parent_chance_is_its_share_of_fitness() -> None:
    assert selection(np.asarray([1.0, 2.0, 4.0])) == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_generations_end_when_all_times_are_close(ground: RecordedDomain) -> None:
    strategy = strategy_on(ground, "genetic-printed", [], seed=3)
    population = [s.point for s in strategy.propose([], inf, 12) if s.point is not None]
    assert not strategy.propose([Observation(p, 1e-3) for p in population], 1e-3, 6)


def test_rewards_and_advantages_are_as_printed() -> None:
    assert reward(1.0, 0.7) == pytest.approx(0.3)
    assert reward(1.0, 9.0) == -1.0
    assert moving_average(0.0, 3.0, 1) == 3.0
    assert generalised_advantages([0.5], [0.2, 0.0]) == pytest.approx([0.3])
    second = 1.0 - 0.4
    assert generalised_advantages([0.5, 1.0], [0.2, 0.4, 0.0]) == pytest.approx(
        [0.5 + 0.99 * 0.4 - 0.2 + 0.99 * 0.95 * second, second]
    )


def test_regret_is_held_against_the_best_recorded_time() -> None:
    assert regrets([4.0, inf, 2.0], 2.0, (1, 2, 3, 40)) == [1.0, 1.0, 0.0, 0.0]
    assert regrets([inf], 2.0, (5, 10)) == [9.0, 9.0]


def test_neighbours_in_a_pool_are_recorded_points(ground: RecordedDomain) -> None:
    point = ground.points[0]
    near = ground.near([point])
    assert near
    assert point not in near
    assert {place_of(p) for p in near} <= ground.seconds.keys()


@pytest.mark.parametrize("name", ["ppo-printed", "ppo-stepwise"])
def test_printed_ppo_sets_one_parameter_a_round(ground: RecordedDomain, name: str) -> None:
    pytest.importorskip("torch")
    strategy = strategy_on(ground, name, [], 0, False)
    assert isinstance(strategy, PrintedPpo)
    known: list[Observation] = []
    for _ in range(3):
        found = [s.point for s in strategy.propose(known, inf, 3) if s.point is not None]
        assert len({place_of(p) for p in found}) == len(found) == 3
        known += [Observation(p, ground.seconds[place_of(p)]) for p in found]
    assert strategy.learned == 6
    start = strategy.starts[place_of(known[-1].point)]
    rounds = list(strategy._rounds(start, place_of(known[-1].point)))
    assert all(len(state) == OBSERVED_NUMBERS for state, _, _ in rounds)
    assert [block for _, block, _ in rounds][1:] == [
        (known[-1].point.structure, axis) for axis in range(len(known[-1].point.places))
    ]
    assert tuple(choice for _, _, choice in rounds) == (known[-1].point.structure, *known[-1].point.places)


def test_printed_average_is_divided_by_the_step() -> None:
    assert PRINTED_FORM.average(2.0, 1.0, 4) == pytest.approx((0.8 * 2.0 + 1.0) / 4)
    assert STEPWISE_FORM.average(2.0, 1.0, 4) == pytest.approx(0.8 * 2.0 + 0.2 * 1.0)


def test_the_observation_has_the_layers_own_numbers() -> None:
    assert layer_numbers(groups.conv(2, 16, 32, 14)) == (2, 16, 32, 3, 3, 14, 14, 1, 1)
    assert layer_numbers(groups.matmul(64, 96, 48)) == (64, 48, 96, 1, 1, 1, 1, 1, 0)
    assert layer_numbers(groups.pointwise(64, 32)) == (2048, 1, 1, 1, 1, 1, 1, 1, 0)
