"""Transfer: measurements of another machine order an operation's points here.

Measured points keep their order, others follow similar ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from attrs import evolve
from cuts.ir import BOUND_PRUNING
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir
from cuts.passes.schedule import Point, candidate_of, columns_of, evaluate, make_space
from cuts.search.building.factory import Factory
from cuts.search.database import Database, Measurement
from cuts.search.learned.correction import LearnedOrder
from cuts.search.learned.evaluation import PLAIN, TRANSFER_VARIANT, LearnedModel, evaluate_order, evaluate_transfer
from cuts.search.learned.rank_points import Array, MeasuredOperation, operations_of
from cuts.search.learned.rescoring import rescore
from cuts.search.learned.schedule_features import feature_table, features_of_batch, features_of_schedule
from cuts.search.learned.schedule_lookup import place_of_schedule
from cuts.search.learned.transfer import MIN_RECALLED, TransferModel, ordered_seconds, recalled_of, times_of
from cuts.search.settings import Settings
from cuts.search.strategies import FullSpace
from cuts.search.tasks.tuning_task import TuningTask, schedule_text
from cuts.search.tuner.earlier_results import learned_order
from hypothesis import given, settings
from hypothesis import strategies as st

from .fakes import OPENCL, FakeBench, group_of, problem_of, tuner_of

SIZES, COUNT = (16, 24, 32, 40), 40
GROUPS = (group_of("matmul", ((32, 48), (48, 40))), group_of("softmax", ((24, 96),)),
          group_of("reduce_sum", ((64, 30),), {"axes": (0,)}), group_of("add", ((31, 17), (31, 17))))  # fmt: skip


def texts_of(problem: TuningTask, count: int = COUNT, seed: int = 3) -> list[str]:
    full = FullSpace(make_space(problem.form, problem.target))
    return [schedule_text(full.candidate_at(p).candidate.schedule) for p in full.random(count, (seed,))]


def many_threads_are_slow(operation: MeasuredOperation) -> Array:
    """Something that the estimate knows nothing of."""
    return np.asarray(operation.points.features.threads) ** 1.5


def measured_operation(
    problem: TuningTask, machine: str, factor: Callable[[MeasuredOperation], Array]
) -> MeasuredOperation:
    """Return the points of a task with scaled times of the estimate."""
    times = dict.fromkeys(texts_of(problem), 1.0)
    (operation,) = operations_of(problem.label, problem.work, {"target": machine}, OPENCL, times)
    expected = ordered_seconds(operation, PLAIN, None) * factor(operation)
    return evolve(operation, points=evolve(operation.points, seconds=expected))


@pytest.fixture(scope="module")
def remote() -> MeasuredOperation:
    return measured_operation(problem_of(32), "remote", many_threads_are_slow)


@settings(max_examples=20)
@given(st.sampled_from(GROUPS), st.integers(0, 1000))
def test_point_and_its_schedule_have_equal_features(group: FusedGroup, seed: int) -> None:
    space = make_space(group, OPENCL)
    for point in FullSpace(space).random(3, (seed,)):
        structure = space.templates[point.structure]
        batch = evaluate(space, structure, columns_of(structure, np.asarray([point.places], np.int64)), 0)
        sizes = features_of_batch(batch), features_of_schedule(group, candidate_of(space, point).schedule)
        names = sorted({*sizes[0], *sizes[1]})
        here, remote = feature_table(sizes, names)
        assert here == pytest.approx(remote)


def test_transferred_measurements_keep_their_order(remote: MeasuredOperation) -> None:
    here = evolve(
        remote,
        machine="here",
        points=evolve(remote.points, seconds=remote.points.seconds * 0.25),
    )
    elsewhere = TransferModel.of(remote, PLAIN)
    assert np.argsort(ordered_seconds(here, PLAIN, elsewhere)).tolist() == np.argsort(remote.points.seconds).tolist()
    assert evaluate_order(here, PLAIN).best > evaluate_order(here, PLAIN, elsewhere).best == 1


@pytest.mark.parametrize("speed", [0.01, 3.0])
def test_overall_speed_of_another_machine_changes_no_order(remote: MeasuredOperation, speed: float) -> None:
    slower = evolve(remote, points=evolve(remote.points, seconds=remote.points.seconds * speed))
    some = np.arange(len(remote.schedules)) < 20
    found = [ordered_seconds(remote, PLAIN, TransferModel.of(each.where(some), PLAIN)) for each in (remote, slower)]
    assert found[1] / found[0] == pytest.approx(speed, rel=1e-6)


def test_unmeasured_points_are_ordered_by_similar_ones(remote: MeasuredOperation) -> None:
    half = np.arange(len(remote.points.seconds)) % 2 == 0
    rest = remote.where(~half)
    each = None, TransferModel.of(remote.where(half), PLAIN)
    errors = [np.log(ordered_seconds(rest, PLAIN, known) / rest.points.seconds).std() for known in each]
    assert errors[1] < 0.7 * errors[0]


def test_points_of_a_space_are_rescored_by_transfer(remote: MeasuredOperation) -> None:
    problem = problem_of(32)
    remote = measured_operation(problem, "remote", many_threads_are_slow)
    order = evolve(PLAIN, recalled=times_of(remote))
    space = make_space(problem.form, OPENCL)
    points = FullSpace(space).random(COUNT, (3,))
    scores = {schedule_text(candidate_of(space, p).schedule): p.score for p in rescore(space, points, order)}
    expected = dict(
        zip(
            remote.schedules,
            ordered_seconds(remote, PLAIN, TransferModel.of(remote, PLAIN)),
            strict=True,
        )
    )
    assert {text: scores[text] for text in expected} == pytest.approx(expected)
    assert rescore(space, points, evolve(order, recalled=order.recalled[: MIN_RECALLED - 1])) == rescore(
        space, points, PLAIN
    )


def test_schedules_unknown_to_this_version_are_not_recalled(remote: MeasuredOperation) -> None:
    problem = problem_of(32)
    remote = measured_operation(problem, "remote", many_threads_are_slow)
    strange = tuple((f"no schedule {k}", 1.0) for k in range(20))
    order = LearnedOrder(PLAIN.costs, (), (*times_of(remote)[: MIN_RECALLED - 1], *strange))
    assert recalled_of(problem.work, OPENCL, order) is None


def test_transfer_is_evaluated_on_operations_of_two_machines() -> None:
    remote = [measured_operation(problem_of(size), "remote", many_threads_are_slow) for size in SIZES]
    here = [measured_operation(problem_of(size), "here", many_threads_are_slow) for size in SIZES]
    judged = evaluate_transfer([*remote, *here])
    assert judged[TRANSFER_VARIANT].beats(judged["plain"])
    assert len(judged["plain"].standings) == 2 * len(SIZES)
    assert LearnedModel(4, {}, {}, "", None, judged).recalls
    otherwise = [measured_operation(problem_of(size), "here", lambda o: 1 / many_threads_are_slow(o)) for size in SIZES]
    assert not LearnedModel(4, {}, {}, "", None, evaluate_transfer([*remote, *otherwise])).recalls
    assert evaluate_transfer(remote) == {}
    assert LearnedModel(4, {}, {}, "", None, {}).recalls, "nothing says that it is no better"


def test_recalled_schedule_belongs_to_the_operation(remote: MeasuredOperation) -> None:
    assert [print_of for print_of, _ in times_of(remote)] == list(remote.schedules)
    assert all(schedule_text(parse_ir(text)) == text for text in remote.schedules)  # type: ignore[arg-type]


@settings(max_examples=20)
@given(st.sampled_from(GROUPS), st.integers(0, 1000))
def test_a_schedule_is_found_in_its_space(group: FusedGroup, seed: int) -> None:
    space = make_space(group, OPENCL)
    for point in FullSpace(space).random(3, (seed,)):
        schedule = candidate_of(space, point).schedule
        place = place_of_schedule(space, schedule)
        assert place is not None
        assert candidate_of(space, Point(0.0, *place)).schedule == schedule


def with_trials(problem: TuningTask, texts: Sequence[str]) -> Database:
    """Return a database of another machine with one very fast schedule.

    It is the last one.
    """
    database = Database(None)
    database.register(problem)
    database.record(problem, [Measurement(text, "ok", 1e-3 / n**4) for n, text in enumerate(texts, 1)])
    return database


def test_search_begins_with_fast_points_of_another_machine() -> None:
    problem = problem_of(32)
    texts = texts_of(problem)
    database = with_trials(evolve(problem, machine={"device": "another"}), texts)
    order = learned_order(database, problem, Settings())
    assert order is not None
    first = [schedule_text(s.candidate.schedule) for s in Factory().rank(problem, BOUND_PRUNING, 6, order)]
    assert texts[-1] in first
    plain = [schedule_text(s.candidate.schedule) for s in Factory().rank(problem, BOUND_PRUNING, 6)]
    assert texts[-1] not in plain
    tuner_of(FakeBench(lambda kernel: 1e-3), database=database).run([problem], Settings(remembers=False))
    assert texts[-1] in {t.schedule for t in database.measurements(problem)}


def test_order_follows_the_machine_with_most_measurements() -> None:
    problem = problem_of(32)
    texts = texts_of(problem)
    database = with_trials(evolve(problem, machine={"device": "another"}), texts[:MIN_RECALLED])
    third = evolve(problem, machine={"device": "a third"})
    database.register(third)
    database.record(third, [Measurement(texts[0], "ok", 1.0), Measurement(texts[1], "wrong")])
    database.register(problem)
    database.record(problem, [Measurement(text, "ok", 1.0) for text in texts])
    assert {*database.transferred_times(problem)} == {*texts[:MIN_RECALLED]}
    order = learned_order(database, problem, Settings())
    assert order is not None
    assert [text for text, _ in order.recalled] == texts[MIN_RECALLED - 1 :: -1]
    assert learned_order(database, problem, Settings(recalls=False)) is None
    few = with_trials(evolve(problem, machine={"device": "another"}), texts[: MIN_RECALLED - 1])
    assert learned_order(few, problem, Settings(correction=PLAIN)) is PLAIN
    assert learned_order(database, problem_of(48), Settings()) is None
