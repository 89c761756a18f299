"""The tuner over a made-up device: results, costs, and robustness."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from attrs import evolve
from cuts.ir import BOUND_PRUNING
from cuts.ir.compiled import ALGORITHMS_SHARE, Budget, KernelFunction
from cuts.ir.errors import UsageError
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.costs.candidate_subgraphs import CandidateSubgraph, SubgraphKernels, partition_subgraph
from cuts.passes.schedule import choose_soon
from cuts.search.building.factory import BuildResult, Factory
from cuts.search.building.planning_workers import PlanningWorkers
from cuts.search.building.workers import JobResult
from cuts.search.database import Database
from cuts.search.measurement.replay import ReplayBench
from cuts.search.measurement.verdicts import Verdict
from cuts.search.settings import QUICK_SEARCH, SINGLE_MEASUREMENT, Settings, TunedChoice
from cuts.search.strategies import STRATEGIES
from cuts.search.tasks.pruning_certificate import simple_schedule
from cuts.search.tasks.tuning_task import schedule_text
from cuts.search.tuner.build_queue import BuildQueue
from cuts.search.tuner.earlier_results import predicted_choice
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.final_ranking import best_known, space_key
from cuts.search.tuner.task_record import Entry, TaskRecord
from cuts.search.tuner.tuner import Tuner

from .fakes import MACHINE, OPENCL, Clock, FakeBench, Inline, by_threads, problem_of, tuner_of
from .simulation import FakeClock, session

SHORT_SEARCH = Settings(first=8, most=24, prove=False)
_PACKAGES = dict.fromkeys(("ppo", "ppo-printed", "ppo-stepwise"), "torch")


def strategies() -> Iterator[ParameterSet]:
    """Yield every strategy.

    Those whose package is missing are skipped with a message.
    """
    for name in STRATEGIES:
        missing = name in _PACKAGES and importlib.util.find_spec(_PACKAGES[name]) is None
        yield pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"{_PACKAGES.get(name)} is not installed"))


def tune_one(
    bench: FakeBench, settings: Settings = SHORT_SEARCH, builder: Inline | None = None, database: Database | None = None
) -> TunedChoice:
    (choice,) = tuner_of(bench, builder, database).run([problem_of()], settings)
    return choice


@pytest.mark.parametrize("strategy", list(strategies()))
def test_every_strategy_ends_with_its_fastest_point(strategy: str) -> None:
    seen: list[float] = []

    def cost(kernel: KernelFunction) -> float:
        seen.append(by_threads(kernel))
        return seen[-1]

    choice = tune_one(FakeBench(cost), evolve(SHORT_SEARCH, strategy=strategy))
    assert choice.seconds == pytest.approx(min(seen), rel=3 * SHORT_SEARCH.tie)
    assert choice.trials <= SHORT_SEARCH.most


def test_refinement_moves_from_model_choice_to_measured_optimum() -> None:
    choice = tune_one(FakeBench(by_threads), Settings(prove=False))
    assert choice.first is not None
    assert choice.seconds is not None
    assert choice.seconds < 0.75 * choice.first


def test_an_unknown_strategy_is_a_usage_error() -> None:
    names = "rank, random, genetic, genetic-printed, ppo, ppo-printed, ppo-stepwise, bayes, frugal, thorough"
    with pytest.raises(UsageError, match=f"strategies are: {names}"):
        tune_one(FakeBench(by_threads), evolve(SHORT_SEARCH, strategy="luck"))


def test_a_wrong_kernel_never_wins_however_fast() -> None:
    database = Database(None)

    def wrong(kernel: KernelFunction) -> bool:
        return kernel.name[-1] in "0123456789"

    def verdict(kernel: KernelFunction) -> Verdict:
        return Verdict("wrong", "y[0] is 1, expected 2") if wrong(kernel) else Verdict("ok")

    choice = tune_one(FakeBench(lambda k: 1e-9 if wrong(k) else 1e-3, verdict), database=database)
    assert choice.seconds == 1e-3
    outcomes = {t.outcome for t in database.measurements(problem_of())}
    assert outcomes == {"ok", "wrong"}


def test_a_crash_or_a_hang_costs_one_candidate() -> None:
    lost = {"failed": 0, "timeout": 0}

    def verdict(kernel: KernelFunction) -> Verdict:
        outcome = {0: "failed", 1: "timeout"}.get(int(kernel.name[-1], 16) % 5, "ok")
        lost[outcome] = lost.get(outcome, 0) + 1
        return Verdict(outcome, "gone")

    database = Database(None)
    choice = tune_one(FakeBench(by_threads, verdict), database=database)
    trials = database.measurements(problem_of())
    assert choice.seconds is not None
    assert {o: sum(t.outcome == o for t in trials) for o in ("failed", "timeout")} == {
        o: lost[o] for o in ("failed", "timeout")
    }
    assert all(t.message == "gone" for t in trials if not t.ok)


def test_kernel_that_hangs_when_retimed_has_lost() -> None:
    calls: dict[str, int] = {}

    def cost(kernel: KernelFunction) -> float:
        calls[kernel.name] = calls.get(kernel.name, 0) + 1
        fast = kernel.block[0] == 8
        return float("inf") if fast and calls[kernel.name] > 1 else 1e-4 if fast else 1e-3

    assert tune_one(FakeBench(cost)).seconds == 1e-3


def test_spilled_kernels_are_refused_and_recorded() -> None:
    database = Database(None)
    builder = Inline(
        lambda kernel: BuildResult(kernel, None, 255, 64, "spilled", "64 bytes") if kernel.block[0] > 16 else None
    )
    bench = FakeBench(by_threads)
    tune_one(bench, builder=builder, database=database)
    spilled = [t for t in database.measurements(problem_of()) if t.outcome == "spilled"]
    assert spilled
    assert builder.built == len(spilled) + len(set(bench.checked))


@pytest.mark.parametrize("settings", [SINGLE_MEASUREMENT, QUICK_SEARCH])
def test_failed_first_candidates_are_followed_by_the_next(settings: Settings) -> None:
    """Not the simple schedule, however few a short search would look at."""
    bench, database = FakeBench(by_threads), Database(None)
    bench.verdict = lambda kernel: Verdict("ok" if len(bench.checked) > 7 else "failed", "misaligned address")
    choice = tuner_of(bench, database=database).run([problem_of()], settings)[0]
    simple = simple_schedule(problem_of().form, OPENCL)
    assert choice.seconds is not None
    assert choice.candidate.schedule != simple


def test_simple_schedule_is_tried_after_all_failures() -> None:
    bench = FakeBench(by_threads)
    bench.verdict = lambda kernel: Verdict("ok" if len(bench.checked) > 8 else "failed", "misaligned address")
    choice = tune_one(bench, evolve(SHORT_SEARCH, most=8))
    assert choice.seconds is not None
    assert len(bench.checked) == 9


def test_failing_model_choice_is_returned_and_not_kept() -> None:
    database = Database(None)
    choice = tune_one(FakeBench(by_threads, lambda k: Verdict("wrong", "all of them")), database=database)
    assert (choice.seconds, choice.origin) == (None, "model")
    assert database.winner(problem_of()) is None


def test_hopeless_candidates_are_dropped_after_three_runs() -> None:
    bench = FakeBench(by_threads)
    tuner = tuner_of(bench)
    tuner.run([problem_of()], evolve(SHORT_SEARCH, finalists=1))
    assert 0 < tuner.statistics.dropped < tuner.statistics.timed
    assert bench.samples <= 3 * tuner.statistics.timed - 2 * tuner.statistics.dropped


def test_ties_are_broken_by_the_models_order() -> None:
    names = set()
    for seed in range(4):
        noise = iter(lambda s=seed: s, None)  # type: ignore[misc]

        def cost(kernel: KernelFunction, seed: int = next(noise)) -> float:
            return 1e-3 * (1 + 0.004 * (hash((kernel.name, seed)) % 3 - 1))

        names.add(schedule_text(tune_one(FakeBench(cost)).candidate.schedule))
    assert len(names) == 1


def test_budget_is_obeyed_and_there_is_an_answer() -> None:
    bench = FakeBench(by_threads)
    tuner = Tuner(Clock(Database(None), Inline, bench, 40.0))
    choices = tuner.run([problem_of(n) for n in (32, 48, 64)], Settings(most=1000, patience=1000, batch=50))
    assert bench.samples <= 43
    assert tuner.executor.expired
    assert not tuner.complete
    assert all(c.candidate.bound > 0 for c in choices)
    assert any(c.seconds is not None for c in choices)


def test_exhausted_budget_leaves_the_models_choice() -> None:
    (choice,) = tuner_of(FakeBench(by_threads), budget=1e-9).run([problem_of()])
    assert choice.origin == "model"


def test_an_interrupt_keeps_what_was_found() -> None:
    calls = []

    def cost(kernel: KernelFunction) -> float:
        calls.append(kernel)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return by_threads(kernel)

    tuner = tuner_of(FakeBench(cost))
    (choice,) = tuner.run([problem_of()], SHORT_SEARCH)
    assert tuner.executor.interrupted
    assert choice.seconds is not None


def test_unfinished_search_gives_its_best_without_time() -> None:
    database = Database(None)
    (known,) = tuner_of(FakeBench(by_threads), database=database).run([problem_of()], evolve(SHORT_SEARCH, final=False))
    builder = Inline()
    (choice,) = tuner_of(FakeBench(by_threads), builder, database, budget=1e-9).run([problem_of()], SHORT_SEARCH)
    assert (choice.origin, choice.seconds) == ("database", known.seconds)
    assert builder.built == 0


def test_equal_problems_are_tuned_once() -> None:
    builder = Inline()
    choices = tuner_of(FakeBench(by_threads), builder).run([problem_of(), problem_of()], SHORT_SEARCH)
    assert choices[0] == choices[1]
    assert builder.built <= SHORT_SEARCH.most


def test_a_second_run_tunes_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "t")
    first = tune_one(FakeBench(by_threads), database=database)
    builder, bench = Inline(), FakeBench(by_threads)
    again = tune_one(bench, builder=builder, database=Database(tmp_path / "t"))
    assert (builder.built, bench.samples) == (0, 0)
    assert (again.origin, again.seconds, again.candidate.schedule) == (
        "database",
        first.seconds,
        first.candidate.schedule,
    )


@pytest.mark.parametrize("machine", [MACHINE, {"compiler": "another"}])
def test_estimate_equals_a_short_searchs_result(machine: Mapping[str, str]) -> None:
    brief = evolve(QUICK_SEARCH, first=1, most=1)
    (fresh,) = tuner_of(FakeBench(by_threads)).estimate([problem_of()], brief)
    database = Database(None)
    (best,) = tuner_of(FakeBench(by_threads), database=database).run([problem_of(machine=machine)], SHORT_SEARCH)
    assert best.seconds is not None
    assert fresh is not None
    assert best.seconds < fresh
    assert tuner_of(FakeBench(by_threads), database=database).estimate([problem_of()], brief) == [fresh]


def test_an_interrupted_search_resumes_where_it_was() -> None:
    database, calls = Database(None), []

    def cost(kernel: KernelFunction) -> float:
        calls.append(kernel)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return by_threads(kernel)

    tune_one(FakeBench(cost), database=database)
    tried = len(database.measurements(problem_of()))
    tuner = tuner_of(FakeBench(by_threads), database=database)
    (choice,) = tuner.run([problem_of()], SHORT_SEARCH)
    assert tried > 3
    assert tuner.statistics.reused == tried
    assert choice.candidate == tune_one(FakeBench(by_threads)).candidate


def test_frozen_miss_fails_and_names_the_kernel() -> None:
    database = Database(None)
    tune_one(FakeBench(by_threads), database=database)
    frozen = tuner_of(FakeBench(by_threads), database=database, frozen=True)
    assert frozen.run([problem_of()])[0].origin == "database"
    with pytest.raises(
        UsageError, match=r"1 of 2 kernels are not in the tuning database; the first is \w{12}, matmul 48"
    ):
        frozen.run([problem_of(), problem_of(48)])


@pytest.mark.parametrize("sizes", [(16,), (16, 32, 48), (16, 32, 48, 64, 80, 96)], ids=len)
def test_workers_answer_many_predicted_choices(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> None:
    problems = [problem_of(size) for size in sizes]
    asked: list[int] = []
    monkeypatch.setattr("cuts.search.tuner.earlier_results.SECONDS_WITHOUT_WORKERS", 0.0)
    submit = PlanningWorkers.submit
    monkeypatch.setattr(
        PlanningWorkers, "submit", lambda self, requests: [asked.append(len(requests)), submit(self, requests)][1]
    )
    guessing = evolve(tuner_of(FakeBench(by_threads), frozen=True), guesses=True)
    found = guessing.run(problems)
    assert [each.candidate for each in found] == [predicted_choice(each).candidate for each in problems]
    assert {each.origin for each in found} == {"guessed"}
    assert asked == [len(problems)]


def test_frozen_answers_with_best_of_unfinished_search() -> None:
    database, times = Database(None), []

    def interrupt(kernel: KernelFunction) -> float:
        if len(times) == 6:
            raise KeyboardInterrupt
        times.append(by_threads(kernel))
        return times[-1]

    tune_one(FakeBench(interrupt), database=database)
    assert database.winner(problem_of()) is None
    tuner = tuner_of(FakeBench(by_threads), database=database, frozen=True)
    (choice,) = tuner.run([problem_of()])
    assert choice.origin == "database"
    assert tuner.statistics.hits == 1
    assert choice.seconds == min(t.seconds for t in database.measurements(problem_of()) if t.seconds is not None)


def test_frozen_ignores_times_of_obsolete_code() -> None:
    database = Database(None)
    tune_one(FakeBench(by_threads), database=database)
    problem = problem_of()
    old = [evolve(t, source="of an older printer") for t in database.measurements(problem)]
    database.invalidate(problem)
    database.record(problem, old)
    with pytest.raises(UsageError, match="1 of 1 kernels are not in the tuning database"):
        tuner_of(FakeBench(by_threads), database=database, frozen=True).run([problem])


def test_hit_with_other_code_is_tuned_again() -> None:
    database = Database(None)
    tune_one(FakeBench(by_threads), database=database)
    winner = database.winner(problem_of())
    assert winner is not None
    database.finish(problem_of(), evolve(winner, source="of an older printer"))
    assert tune_one(FakeBench(by_threads), database=database).origin == "measured"


@pytest.mark.parametrize("text", ["schedule { spread", "schedule {\n}\n"])
def test_hit_that_does_not_build_is_tuned_again(text: str) -> None:
    database = Database(None)
    tune_one(FakeBench(by_threads), database=database)
    winner = database.winner(problem_of())
    assert winner is not None
    database.finish(problem_of(), evolve(winner, schedule=text))
    assert tune_one(FakeBench(by_threads), database=database).origin == "measured"


def test_other_machines_results_are_tried_first() -> None:
    def times(kernel: KernelFunction) -> float:
        return 1e-3 * (1 + abs(kernel.block[0] - 128))  # not the order of the cost model

    database = Database(None)
    here, there = problem_of(), problem_of(machine={"device": "another"})
    (known,) = tuner_of(FakeBench(times), database=database).run([there], Settings(prove=False))
    builder = Inline()
    (choice,) = tuner_of(FakeBench(times), builder, database).run(
        [here], Settings(first=1, batch=0, most=2, prove=False)
    )
    assert choice.candidate.schedule == known.candidate.schedule
    assert builder.built == 2


@pytest.mark.parametrize("strategy", list(strategies()))
def test_a_recorded_search_is_replayed_without_a_device(strategy: str) -> None:
    recorded, here = Database(None), problem_of(machine={"device": "another"})
    for name in ("rank", "random"):
        tune_one(
            FakeBench(by_threads),
            Settings(strategy=name, first=40, batch=40, most=200, patience=9, final=False),
            database=recorded,
        )
    bench = ReplayBench(recorded)
    (choice,) = tuner_of(bench).run([here], evolve(SHORT_SEARCH, strategy=strategy))  # type: ignore[arg-type]
    assert choice.seconds in {t.seconds for t in recorded.measurements(problem_of())}


def test_bound_proves_the_remaining_space_slower() -> None:
    (choice,) = tuner_of(FakeBench(lambda k: 1e-9)).run([problem_of()], evolve(SHORT_SEARCH, prove=True))
    assert choice.proof is not None
    assert choice.proof.share == 1.0
    assert choice.trials <= SHORT_SEARCH.first


class Losing(Inline):
    """A builder whose workers are lost over some methods."""

    def __init__(self, *methods: str) -> None:
        super().__init__()
        self.methods = methods

    def collect(self, timeout: float) -> list[JobResult]:
        lost = [job for job in self.queue if job.method in self.methods]
        if not lost:
            return super().collect(timeout)
        self.queue.remove(lost[0])
        return [JobResult(lost[0], error="no answer in 30 seconds", lost=True, hung=True)]


class Hasty(Losing):
    """Workers that are lost over some methods once everything else is done."""

    def collect(self, timeout: float) -> list[JobResult]:
        others = [job for job in self.queue if job.method not in self.methods]
        return super().collect(timeout) if not others else Inline.collect(self, timeout)


def test_space_not_ranked_in_time_has_simple_kernel() -> None:
    (choice,) = tuner_of(FakeBench(by_threads), Losing("rank")).run([problem_of()])
    assert choice.origin == "measured"
    assert choice.candidate.schedule == simple_schedule(problem_of().form, OPENCL)


def test_workers_choose_few_points_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process would choose for one kernel after the other.

    Choices of 105 kernels took it 7 s after the end of a budget.
    """
    form = problem_of().form
    wanted = choose_soon(form, OPENCL)
    monkeypatch.setattr("cuts.search.tuner.final_ranking.choose_soon", lambda form, target: pytest.fail("chosen here"))
    builder = Hasty("rank")
    (choice,) = tuner_of(FakeBench(by_threads), builder, budget=1e-9).run([problem_of()])
    assert choice.seconds is None
    assert choice.candidate.schedule == wanted.schedule


def test_workers_choose_few_points_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning of a training step of DenseNet-121 took longer than its budget.

    This process then chose for 508 kernels alone, in 14 s.
    """
    clock = FakeClock()
    budget = Budget.of(10.0, clock)
    monkeypatch.setattr("cuts.search.tuner.final_ranking.choose_soon", lambda form, target: pytest.fail("chosen here"))
    tuner = Tuner(session(budget, clock, rank=100.0))
    tuner.begin()
    clock.pass_by(60.0)
    choices = tuner.run([problem_of(8 * n) for n in range(1, 40)])
    assert {choice.origin for choice in choices} == {"model"}
    assert clock.now < 60.0 + 3.0


@pytest.mark.parametrize("methods", [("rank", "simple"), ("rank", "build"), ("rank", "simple", "refer", "prove")])
def test_losing_workers_costs_no_model_its_answer(methods: tuple[str, ...]) -> None:
    (choice,) = tuner_of(FakeBench(by_threads), Losing(*methods)).run([problem_of()])
    assert choice.candidate.schedule == simple_schedule(problem_of().form, OPENCL)
    assert choice.reason == "no answer in 30 seconds"


@pytest.mark.parametrize("methods", [("simple",), ("refer",), ("prove",), ("build",)])
def test_losing_a_worker_costs_its_job_only(methods: tuple[str, ...]) -> None:
    (choice,) = tuner_of(FakeBench(by_threads), Losing(*methods)).run([problem_of()])
    assert choice.candidate.schedule


class Starting(Inline):
    """Builder whose workers answer only after some requests for results."""

    def __init__(self, asked: int) -> None:
        super().__init__()
        self.asked = asked

    def collect(self, timeout: float) -> list[JobResult]:
        self.asked -= 1
        return super().collect(timeout) if self.asked < 0 else []


def few_fragments() -> list[CandidateSubgraph]:
    sizes = ((4, 8), (8, 4), (4, 4))
    types = [{"x": TensorType(DType.F32, shape), "y": TensorType(DType.F32, shape)} for shape in sizes]
    graphs = [Graph("g", ("x",), ("y",), t, (Node("r", "relu", ("x",), ("y",)),)) for t in types]
    return [CandidateSubgraph(graph, Registry.builtin(), OPENCL, "mixed") for graph in graphs]


@pytest.mark.parametrize("asked", [0, 1, 100])
def test_fragments_are_cut_here_until_workers_have_started(asked: int) -> None:
    fragments = few_fragments()
    builder = Starting(asked)
    found = tuner_of(FakeBench(by_threads), builder).plan(fragments)()
    assert found == [partition_subgraph(fragment) for fragment in fragments]
    assert not builder.load, "no job awaits the remainder"


@pytest.mark.parametrize("answering", [False, True])
def test_answers_during_a_local_cut_are_received(answering: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are known to answer cut fragments.

    They would wait for this process.
    """
    fragments, here = few_fragments(), list[CandidateSubgraph]()

    def cut_at_length(fragment: CandidateSubgraph) -> SubgraphKernels:
        here.append(fragment)
        return partition_subgraph(fragment)

    tuner = tuner_of(FakeBench(by_threads), Starting(1))
    tuner.executor.has_answered = answering
    monkeypatch.setattr("cuts.search.tuner.tuner.partition_subgraph", cut_at_length)
    monkeypatch.setattr(SearchExecutor, "over", lambda _: bool(here))
    assert tuner.plan(fragments)() == [partition_subgraph(fragment) for fragment in fragments]
    assert len(here) == (0 if answering else 1)


@pytest.mark.parametrize("seconds", [16.0, 30.0])
def test_short_budget_waits_for_algorithms_within_its_limit(seconds: float) -> None:
    """Its share is used up when workers have started.

    The remainder is theirs, except for the work that follows.
    """
    clock = FakeClock()
    budget = Budget.of(seconds, clock)
    tuner = Tuner(session(budget, clock, plan=0.5))
    clock.pass_by(ALGORITHMS_SHARE * seconds + 0.1)
    tuner.executor.start()
    tuner.executor.has_answered = True
    assert None not in tuner.plan(few_fragments())()
    assert not tuner.executor.expired


def test_work_after_algorithms_ends_the_wait() -> None:
    clock = FakeClock()
    budget = Budget.of(8.0, clock)
    tuner = Tuner(session(budget, clock, plan=0.5))
    clock.pass_by(4.0)
    budget.needed = 5.5
    tuner.executor.has_answered = True
    assert tuner.plan(few_fragments())() == [None] * 3


def test_groups_are_priced_while_fragments_are_cut() -> None:
    tuner = tuner_of(FakeBench(by_threads))
    tuner.begin()
    wait = tuner.plan(fragments := few_fragments())
    assert tuner.price([])() == []
    assert wait() == [partition_subgraph(fragment) for fragment in fragments]
    assert not tuner.executor.queries


def task_of(size: int) -> TaskRecord:
    """Return a product's search with ranked space and built first point."""
    problem = problem_of(size)
    task = TaskRecord(problem, first=Factory().rank(problem, BOUND_PRUNING, 4))
    task.ready.append(Entry(task.first[0], schedule_text(task.first[0].candidate.schedule)))
    return task


def test_longest_unmeasured_kernels_are_measured_first() -> None:
    tasks = [task_of(size) for size in (16, 64, 24, 96, 32)]
    queue = BuildQueue(tuner_of(FakeBench(by_threads)).executor, Settings())
    order = []
    while (task := queue.next_task(tasks)) is not None:
        order.append(task)
        task.take()
    assert order == sorted(tasks, key=lambda t: -t.weight)


@pytest.mark.parametrize("refused", range(5))
def test_refused_candidate_is_never_the_answer(refused: int) -> None:
    task = task_of(64)
    texts = [schedule_text(scored.candidate.schedule) for scored in task.first]
    for text, scored in zip(texts[:refused], task.first, strict=False):
        task.entries[text] = Entry(scored, text, outcome="spilled")
    chosen = schedule_text(best_known(task, Settings(), Database(None)).candidate.schedule)
    assert chosen not in texts[:refused]
    assert refused == len(texts) or chosen == texts[refused]


def test_next_candidate_replaces_refused_first_ones() -> None:
    problem = problem_of(64)
    ranked = Factory().rank(problem, BOUND_PRUNING, 6)[::-1]  # so that no short look finds the next one
    task = TaskRecord(problem, first=ranked[:2])
    for scored in ranked[:2]:
        text = schedule_text(scored.candidate.schedule)
        task.entries[text] = Entry(scored, text, outcome="spilled")
    known = {space_key(problem, Settings()): ranked}
    assert best_known(task, Settings(), Database(None), known).candidate.schedule == ranked[2].candidate.schedule
