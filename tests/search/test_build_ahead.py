"""Kernels that are built ahead while groups are decided.

Finished ones are used, and change no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from attrs import evolve
from cuts.backends.source.emit import emit
from cuts.ir import BOUND_PRUNING, Pruning
from cuts.ir.compiled import Budget, CompileOptions, KernelFunction
from cuts.ops import Registry
from cuts.passes.fusion import form_key
from cuts.passes.schedule import RANKED_POINTS, best_points
from cuts.search.building.factory import BuildResult, Factory
from cuts.search.building.workers import Job, Workers
from cuts.search.plan_executor import PlanExecutor
from cuts.search.session import TuningSession
from cuts.search.settings import Settings
from cuts.search.speculation.plan_builds import build_kernels, kernel_job
from cuts.search.speculation.speculative_build import TASKS_PER_RANKING, SpeculativeBuild
from cuts.search.tasks.tuning_task import TuningTask, schedule_text
from cuts.search.tuner.final_ranking import space_key
from cuts.search.tuner.tuner import Tuner

from .fakes import FakeBench, Inline, by_threads, problem_of, tuner_of
from .simulation import FakeClock, session
from .test_budgets import OPENCL, SHORT_SEARCH, layers, slow_host
from .test_speculative_build import GPU

__all__ = ["slow_host"]
SETTINGS = Settings(first=3, batch=2, most=6, prove=False)
PROBLEMS = [problem_of(8 * n) for n in range(1, 8)]


def ready(tuner: Tuner, problems: Sequence[TuningTask]) -> SpeculativeBuild:
    """Build tasks ahead, up to the answers that workers have at once."""
    ahead = SpeculativeBuild(tuner.executor, SETTINGS)
    ahead.begin(problems)
    while tuner.executor.builder.load:
        assert tuner.executor.receive() is False, "there are no other requests"
    return ahead


def test_prepared_candidates_are_ranked_and_built_once() -> None:
    builder = Inline()
    tuner = tuner_of(FakeBench(by_threads), builder)
    ahead = ready(tuner, PROBLEMS)
    assert ahead.missing == 0
    executor = tuner.executor
    assert {space_key(p, SETTINGS) for p in PROBLEMS} == executor.memory.ranked.keys()
    assert {key for key, _ in executor.memory.ready} == {p.key for p in PROBLEMS}
    ahead.begin(PROBLEMS)
    assert builder.load == 0, "all of them are ready"


def test_where_others_search_only_spaces_are_ranked() -> None:
    tuner = tuner_of(FakeBench(by_threads), Inline())
    ahead = SpeculativeBuild(tuner.executor, SETTINGS)
    ahead.begin(PROBLEMS, whole=False)
    assert ahead.missing == len(PROBLEMS)
    while tuner.executor.builder.load:
        tuner.executor.receive()
    assert {space_key(p, SETTINGS) for p in PROBLEMS} == tuner.executor.memory.ranked.keys()
    assert not tuner.executor.memory.ready
    assert ahead.missing == 0


def test_search_begins_with_prepared_points_and_chooses_equally() -> None:
    plain = tuner_of(FakeBench(by_threads), Inline()).run(PROBLEMS, SETTINGS)
    builder = Inline()
    tuner = tuner_of(FakeBench(by_threads), builder)
    ready(tuner, PROBLEMS)
    built = builder.built
    found = tuner.run(PROBLEMS, SETTINGS)
    assert [c.candidate.schedule for c in found] == [c.candidate.schedule for c in plain]
    assert [c.seconds for c in found] == [c.seconds for c in plain]
    assert not tuner.executor.memory.ready, "each was taken"
    other = Inline()
    tuner_of(FakeBench(by_threads), other).run(PROBLEMS, SETTINGS)
    assert builder.built - built == other.built - len(PROBLEMS)


def test_what_the_compiler_refuses_is_not_ready() -> None:
    """The next in order is, and no list has a refused point."""
    (first, *_), problem = Factory().rank(PROBLEMS[3], BOUND_PRUNING, 4), PROBLEMS[3]
    refused = Factory().build(problem, first.candidate.schedule).source

    def refuse(kernel: KernelFunction) -> BuildResult | None:
        made = BuildResult(kernel)
        return evolve(made, outcome="spilled", spill_bytes=64) if made.source == refused else None

    tuner = tuner_of(FakeBench(by_threads), Inline(refuse))
    ahead = ready(tuner, [problem])
    ranked = tuner.executor.memory.ranked[space_key(problem, SETTINGS)]
    assert first not in ranked
    assert list(tuner.executor.memory.ready) == [(problem.key, schedule_text(ranked[0].candidate.schedule))]
    assert not ahead.in_progress


def test_what_workers_are_at_is_made_once() -> None:
    """A kernel that they build ahead is awaited where it is needed.

    Others are forgotten, and requested then.
    """
    builder = Inline()
    tuner = tuner_of(FakeBench(by_threads), builder)
    ahead = SpeculativeBuild(tuner.executor, SETTINGS)
    problems = [evolve(problem, target=GPU) for problem in PROBLEMS[:3]]
    ahead.begin(problems)
    tuner.executor.receive()  # all are ranked
    assert len(ahead.in_progress) == 3
    at = builder.queue.pop(0)
    ahead.end()
    assert len(ahead.in_progress) == 1
    ranked = tuner.executor.memory.ranked
    wanted = {p.key: kernel_job(p, ranked[space_key(p, SETTINGS)][0].candidate.schedule) for p in problems}
    builder.submit(at)
    made = build_kernels(tuner.executor, wanted, ahead.in_progress)
    assert made.keys() == wanted.keys()
    assert builder.built == 3


def test_wait_for_spaces_has_a_limit() -> None:
    clock = FakeClock()
    executor = session(Budget.of(10.0, clock), clock, rank_each=4.0)
    ahead = SpeculativeBuild(executor, SETTINGS)
    ahead.rank(PROBLEMS[:3], 5.0)
    assert len(executor.memory.ranked) == 0
    assert clock() == pytest.approx(5.0, abs=0.1)
    ahead.rank(PROBLEMS[:3], 20.0)
    assert len(executor.memory.ranked) == 3
    assert clock() == pytest.approx(6.0, abs=0.1), "workers start for two seconds"


def test_preparation_shortens_no_list_of_points() -> None:
    """Another requester may have ranked more points of a space meanwhile."""
    tuner = tuner_of(FakeBench(by_threads), Inline())
    ahead = SpeculativeBuild(tuner.executor, SETTINGS)
    ahead.begin(PROBLEMS[:1])
    longer = Factory().rank(PROBLEMS[0], BOUND_PRUNING, 20)
    tuner.executor.memory.ranked[space_key(PROBLEMS[0], SETTINGS)] = longer
    while tuner.executor.builder.load:
        tuner.executor.receive()
    assert tuner.executor.memory.ready
    assert tuner.executor.memory.ranked[space_key(PROBLEMS[0], SETTINGS)] == longer


def test_what_others_forget_is_made_all_the_same() -> None:
    workers = Workers(1)
    try:
        for number in range(3):
            workers.submit(Job(number, "soon", (PROBLEMS[number],), (2.0,), lasting=number > 0))
        workers.drop()
        found: set[object] = set()
        while workers.load:
            found |= {done.job.owner for done in workers.collect(5.0)}
        assert found >= {1, 2}
        for number in range(3):
            workers.submit(Job(number, "soon", (PROBLEMS[number],), (2.0,), lasting=True))
        workers.drop(lasting=True)
        assert workers.load <= 1, "only what it is at"
    finally:
        workers.close()


def test_planning_that_takes_the_budget_leaves_kernels(slow_host: Callable[..., None]) -> None:
    """Workers built them while groups were decided.

    Plans are no later, or within their budget where more of them is measured: without preparation this process ranks
    the spaces that workers could not, and measures none. Which budget planning takes depends on the kernels' texts.
    """
    gained = []
    for seconds in (26.0, 32.0, 38.0):
        (prepared, measured), (late, fewer) = (plan_in(seconds, slow_host, prepares) for prepares in (True, False))
        assert prepared <= (max(late, seconds) if measured > fewer else late)
        gained.append(measured - fewer)
    assert max(gained) > 0, "nothing that was prepared could be measured"


def plan_in(seconds: float, slow_host: Callable[..., None], prepares: bool) -> tuple[float, int]:
    """Return planning time and number of measured kernels within a budget."""
    with pytest.MonkeyPatch.context() as patch:
        if not prepares:
            patch.setattr(PlanExecutor, "prepare", lambda self, kernels, further=False: None)
        clock = FakeClock()
        slow_host(clock, 0.8)
        budget = Budget.of(seconds, clock)
        tuning = TuningSession(OPENCL, Tuner(session(budget, clock, rank=4.0, build=4.0)), SHORT_SEARCH)
        options = CompileOptions(mode="mixed", budget=seconds)
        tuning.compile(layers(30, 12), Registry.builtin(), OPENCL, options, emit)
        return clock(), sum(choice.seconds is not None for choice in tuning.findings.choices)


def test_a_worker_is_given_few_problems_at_once() -> None:
    builder = Inline()
    tuner = tuner_of(FakeBench(by_threads), builder)
    SpeculativeBuild(tuner.executor, SETTINGS).begin(PROBLEMS)
    assert [len(job.arguments[0]) for job in builder.queue] == [3, 3, 1]  # type: ignore[arg-type]
    assert TASKS_PER_RANKING == 3


def test_points_found_for_a_cost_are_reused() -> None:
    """They are ranked equally.

    Where fewer are needed, or another order counts, they say nothing.
    """
    tuner = tuner_of(FakeBench(by_threads), Inline())
    executor, problem = tuner.executor, PROBLEMS[0]
    points = best_points(problem.form, problem.target, BOUND_PRUNING, RANKED_POINTS)
    executor.memory.hill_climbed[form_key(problem.form)] = points
    assert executor.memory.ranking(problem, BOUND_PRUNING, RANKED_POINTS, None) == (
        problem,
        BOUND_PRUNING,
        RANKED_POINTS,
        None,
        points,
    )
    for pruning, count in ((BOUND_PRUNING, RANKED_POINTS + 1), (Pruning("pul"), RANKED_POINTS)):
        assert executor.memory.ranking(problem, pruning, count, None)[-1] == ()
    assert executor.memory.ranking(PROBLEMS[1], BOUND_PRUNING, RANKED_POINTS, None)[-1] == ()
    builder = Inline()
    asked = SpeculativeBuild(tuner_of(FakeBench(by_threads), builder).executor, Settings())
    asked.executor.memory.hill_climbed.update(executor.memory.hill_climbed)
    asked.begin(PROBLEMS[:1])
    ((wish,),) = builder.queue[0].arguments
    assert wish[-1] == points  # type: ignore[index]


def test_search_begins_with_points_of_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = tuner_of(FakeBench(by_threads)).run(PROBLEMS[:1], Settings(prove=False))
    tuner = tuner_of(FakeBench(by_threads))
    points = best_points(PROBLEMS[0].form, PROBLEMS[0].target, BOUND_PRUNING, RANKED_POINTS)
    tuner.executor.memory.hill_climbed[form_key(PROBLEMS[0].form)] = points
    monkeypatch.setattr("cuts.search.building.factory.best_points", lambda *asked: pytest.fail("found again"))
    assert tuner.run(PROBLEMS[:1], Settings(prove=False)) == ranked
