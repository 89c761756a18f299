"""The audit over a made-up device.

It finds losses of pruning and of the search, and reports nothing else.
"""

from __future__ import annotations

from math import inf

from attrs import evolve
from cuts.ir import BOUND_PRUNING
from cuts.ir.compiled import KernelFunction
from cuts.passes.schedule.space import make_space
from cuts.search.analysis.audit import Audit, audits
from cuts.search.measurement.bench import Timed
from cuts.search.measurement.verdicts import Verdict
from cuts.search.settings import Settings
from cuts.search.tasks.pruning_certificate import MAX_EXACT_POINTS
from cuts.search.tasks.sample_points import SampledCandidates, draw
from cuts.search.tasks.tuning_task import TuningTask, schedule_text
from cuts.search.tuner.tuner import Tuner

from ..search_space.groups import illegal_histogram
from .fakes import MACHINE, OPENCL, FakeBench, Inline, by_threads, group_of, problem_of, tuner_of

ONE = Settings(first=1, batch=0, most=1, prove=False)
SMALL_TASK = TuningTask(group_of("relu", ((6, 40),)), {}, OPENCL, MACHINE, "relu 6x40")


def run_audit(bench: FakeBench, settings: Settings = ONE, count: int = 30, problem: TuningTask | None = None) -> Audit:
    tuner, problems = tuner_of(bench), [problem or problem_of()]
    (found,) = audits(tuner, problems, tuner.run(problems, settings), count, settings)
    return found


def times_of(first: float, others: float) -> FakeBench:
    """Return a bench with another time for the first checked kernel.

    That kernel is the choice of a search for one.
    """
    bench = FakeBench(lambda kernel: first if kernel.name == bench.checked[0] else others)
    return bench


def test_a_winner_that_the_search_missed_is_found() -> None:
    found = run_audit(FakeBench(by_threads))
    assert found.missed
    assert found.best < found.chosen
    assert (found.timed, found.lost, found.pruned, found.unsound, found.exhaustive) == (30, 0, 0, 0, False)


def test_faster_pruned_point_was_lost() -> None:
    found = run_audit(times_of(2e-12, 1e-12))
    assert (found.pruned, found.lost, found.missed, found.unsound) == (30, 30, 0, 31)
    assert found.record()["best / chosen"] == 0.5


def test_slower_points_are_proven_slower_in_silence() -> None:
    found = run_audit(times_of(1e-12, 1.0))
    assert (found.pruned, found.faster, found.unsound) == (30, 0, 1)


def test_equal_points_do_not_accuse_the_choice() -> None:
    assert not run_audit(FakeBench(lambda kernel: 1e-3)).faster


def test_passing_noise_accuses_no_candidate() -> None:
    seen: dict[str, int] = {}

    def cost(kernel: KernelFunction) -> float:
        seen[kernel.name] = seen.get(kernel.name, 0) + 1
        return 0.9e-3 if seen[kernel.name] == 1 else 1e-3

    assert not run_audit(FakeBench(cost), evolve(ONE, runs=1)).faster


def test_wrong_points_are_no_winners() -> None:
    bench = FakeBench(by_threads, lambda kernel: Verdict("ok" if kernel.name == bench.checked[0] else "wrong"))
    found = run_audit(bench)
    assert (found.timed, found.faster) == (0, 0)


def test_a_small_space_is_timed_whole() -> None:
    found = run_audit(FakeBench(by_threads), count=5000, problem=SMALL_TASK)
    legal = illegal_histogram(make_space(SMALL_TASK.form, OPENCL))["legal"]
    assert (found.exhaustive, found.exact, found.legal, found.timed) == (True, True, legal, legal - 1)


def drawn_texts(drawn: SampledCandidates) -> list[str]:
    return [schedule_text(c.schedule) for c in drawn.candidates]


def test_points_are_drawn_once_and_deterministic() -> None:
    large = problem_of()
    assert make_space(large.form, OPENCL).size > MAX_EXACT_POINTS
    for problem in (SMALL_TASK, large):
        drawn = draw(problem, BOUND_PRUNING, 40, seed=3)
        texts = drawn_texts(drawn)
        assert len(set(texts)) == len(texts) == 40 < drawn.legal <= drawn.points
        assert (
            texts
            == drawn_texts(draw(problem, BOUND_PRUNING, 40, seed=3))
            != drawn_texts(draw(problem, BOUND_PRUNING, 40, seed=4))
        )
        assert (drawn.exact, drawn.whole) == (problem is SMALL_TASK, False)


def two(bench: FakeBench, builder: Inline | None = None) -> tuple[Tuner, list[TuningTask]]:
    return tuner_of(bench, builder), [problem_of(48), problem_of()]


def test_next_points_are_built_while_one_is_timed() -> None:
    builder = Inline()
    tuner, problems = two(FakeBench(by_threads), builder)
    found = audits(tuner, problems, tuner.run(problems, ONE), 30, ONE)
    assert next(found).label == "matmul 48"
    assert builder.built > 2 + 31  # both choices were built in the search, and the first problem has 31 points
    assert [a.label for a in found] == ["matmul 64"]
    assert builder.load == 0
    assert tuner.statistics.audited == 60


def test_what_was_finished_before_an_interrupt_is_kept() -> None:
    bench = FakeBench(by_threads)
    tuner, problems = two(bench)
    choices = tuner.run(problems, ONE)

    def interrupt(problem: TuningTask, *_: object) -> Timed:
        if problem is problems[1]:
            raise KeyboardInterrupt
        return Timed((1e-3,) * 3)

    bench.sample = interrupt  # type: ignore[method-assign, assignment]
    assert [a.label for a in audits(tuner, problems, choices, 10, ONE)] == ["matmul 48"]
    assert tuner.executor.interrupted


def test_choice_that_fails_to_run_is_skipped() -> None:
    bench = FakeBench(by_threads)
    tuner, problems = two(bench)
    choices = tuner.run(problems, ONE)
    first = bench.checked[0]
    bench.cost = lambda kernel: inf if kernel.name == first else 1e-3
    assert len(list(audits(tuner, problems, choices, 5, ONE))) == 1


def test_equal_problems_are_looked_at_once() -> None:
    tuner = tuner_of(FakeBench(by_threads))
    problems = [problem_of()] * 3
    assert len(list(audits(tuner, problems, tuner.run(problems, ONE), 5, ONE))) == 1
