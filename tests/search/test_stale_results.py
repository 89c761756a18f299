"""Measurements by an earlier version of the compiler.

Kernels that are written otherwise now have hints, never times to decide by; kernels with equal text keep their times,
and are not measured again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompileOptions, KernelFunction
from cuts.ops import Registry
from cuts.passes.costs.evaluators import Roofline
from cuts.search.building.factory import BuildResult
from cuts.search.database import Database, summary_of
from cuts.search.database.exchange import export_pack, export_results, import_results
from cuts.search.session import TuningSession
from cuts.search.settings import QUICK_SEARCH, Settings
from cuts.search.tasks import kernels
from cuts.search.tuner.tuner import Tuner

from .fakes import OPENCL, Clock, FakeBench, Inline, by_threads, problem_of, tuner_of
from .test_decisions import kernels as kernels_of
from .test_decisions import no_device, tune_graph
from .test_selector import chain, slow_when_fused, tables

SHORT_SEARCH = Settings(first=3, batch=2, most=12, prove=False)
Upgrade = Callable[..., Database]


@pytest.fixture
def upgrade_database(monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """Return a switch that makes a database one of an earlier version.

    `otherwise` says that all kernels are written in another way since.
    """
    source = BuildResult.source.fget  # type: ignore[attr-defined]

    def upgrade(database: Database, otherwise: bool = True) -> Database:
        database.version = "a later version"
        if otherwise:
            monkeypatch.setattr(BuildResult, "source", property(lambda built: f"otherwise {source(built)}"))
        return database

    return upgrade


def slower(kernel: KernelFunction) -> float:
    return 10.0 * by_threads(kernel)


def interrupted_cost(after: int) -> Callable[[KernelFunction], float]:
    """Return a cost that is interrupted."""
    calls: list[KernelFunction] = []

    def cost(kernel: KernelFunction) -> float:
        calls.append(kernel)
        if len(calls) == after:
            raise KeyboardInterrupt
        return by_threads(kernel)

    return cost


# ---- groups, by which decisions about the partition, algorithms and splits are made


def test_estimate_of_a_rewritten_group_is_made_again(upgrade_database: Upgrade) -> None:
    database = Database(None)
    (before,) = tuner_of(FakeBench(by_threads), database=database).estimate([problem_of()], QUICK_SEARCH)
    assert before is not None
    (now,) = tuner_of(FakeBench(slower), database=upgrade_database(database)).estimate([problem_of()], QUICK_SEARCH)
    assert now == pytest.approx(10 * before)


@pytest.mark.parametrize("frozen", [False, True])
def test_estimate_of_an_unchanged_group_holds(upgrade_database: Upgrade, frozen: bool) -> None:
    database = Database(None)
    before = tuner_of(FakeBench(by_threads), database=database).estimate([problem_of()], QUICK_SEARCH)
    bench = FakeBench(slower)
    after = tuner_of(bench, database=upgrade_database(database, otherwise=False), frozen=frozen)
    assert after.estimate([problem_of()], QUICK_SEARCH) == before
    assert bench.samples == 0


def test_unknown_estimate_without_measurement_is_none(upgrade_database: Upgrade) -> None:
    database = Database(None)
    tuner_of(FakeBench(by_threads), database=database).estimate([problem_of()], QUICK_SEARCH)
    frozen = tuner_of(FakeBench(slower), database=upgrade_database(database), frozen=True)
    assert frozen.estimate([problem_of()], QUICK_SEARCH) == [None]


@pytest.mark.parametrize("otherwise", [False, True])
def test_rewritten_shared_launches_are_timed_again(upgrade_database: Upgrade, otherwise: bool) -> None:
    target, database = evolve(OPENCL, lockstep=True), Database(None)

    def tune_launches(together: float) -> tuple[int, list[KernelFunction]]:
        timed: list[KernelFunction] = []

        def cost(kernel: KernelFunction) -> float:
            shared = any(a.tensor.startswith("1.") for a in kernel.arguments)
            timed.extend([kernel] if shared else [])
            return together if shared else 1e-4

        tuning = TuningSession(target, Tuner(Clock(database, Inline, FakeBench(cost), None)), SHORT_SEARCH)
        return len(tuning.compile(tables(5), Registry.builtin(), target, CompileOptions(), emit).steps), timed

    assert tune_launches(2e-4)[0] == 1
    upgrade_database(database, otherwise)
    steps, timed = tune_launches(6e-4)
    assert (steps, bool(timed)) == ((5, True) if otherwise else (1, False))


def test_earlier_model_costs_are_evaluated_again(upgrade_database: Upgrade) -> None:
    class Model(Roofline):
        def cost(self, group: object) -> float:
            asked.append(group)
            return 1.0

    asked: list[object] = []
    database, group = Database(None), problem_of().form
    for version, times in (("", 1), ("", 1), ("another", 2), ("another", 2)):
        database.model_version = version or "this"
        tuning = TuningSession(OPENCL, tuner_of(FakeBench(by_threads), database=database), SHORT_SEARCH)
        assert tuning.model().evaluator(Model(OPENCL)).cost(group) == 1.0
        assert len(asked) == times


# ---- points of a kernel


def test_times_of_rewritten_kernels_decide_no_search(upgrade_database: Upgrade) -> None:
    database = Database(None)
    tuner_of(FakeBench(interrupted_cost(12)), database=database).run([problem_of()], SHORT_SEARCH)
    tuner = tuner_of(FakeBench(slower), database=upgrade_database(database))
    (choice,) = tuner.run([problem_of()], SHORT_SEARCH)
    fresh = tuner_of(FakeBench(slower)).run([problem_of()], SHORT_SEARCH)[0]
    assert choice.seconds is not None and fresh.seconds is not None
    assert choice.seconds <= fresh.seconds
    assert choice.seconds == slower_of(tuner, choice.candidate.schedule)
    assert tuner.statistics.reused == 0
    assert tuner.statistics.stale > 3


def slower_of(tuner: Tuner, schedule: object) -> float:
    return slower(kernels.make_kernel(problem_of(), schedule))  # type: ignore[arg-type]


def test_times_of_unchanged_kernels_are_not_repeated(upgrade_database: Upgrade) -> None:
    database = Database(None)
    tuner_of(FakeBench(interrupted_cost(12)), database=database).run([problem_of()], SHORT_SEARCH)
    known = len(database.measurements(problem_of()))
    tuner = tuner_of(FakeBench(by_threads), database=upgrade_database(database, otherwise=False))
    (choice,) = tuner.run([problem_of()], SHORT_SEARCH)
    assert choice.candidate == tuner_of(FakeBench(by_threads)).run([problem_of()], SHORT_SEARCH)[0].candidate
    assert (tuner.statistics.reused, tuner.statistics.stale) == (known, 0)


def test_failed_kernels_of_an_earlier_version_are_retried(upgrade_database: Upgrade) -> None:
    database = Database(None)
    refuse = lambda kernel: BuildResult(None, outcome="failed", message="not yet")  # noqa: E731
    tuner_of(FakeBench(by_threads), Inline(refuse), database).run([problem_of()], SHORT_SEARCH)
    assert {t.outcome for t in database.measurements(problem_of())} == {"failed"}
    again = tuner_of(FakeBench(by_threads), database=database).run([problem_of()], SHORT_SEARCH)[0]
    assert again.seconds is None, "this version was asked before"
    after = tuner_of(FakeBench(by_threads), database=upgrade_database(database, otherwise=False)).run(
        [problem_of()], SHORT_SEARCH
    )[0]
    assert after.candidate == tuner_of(FakeBench(by_threads)).run([problem_of()], SHORT_SEARCH)[0].candidate


def test_that_a_result_holds_is_found_out_once(monkeypatch: pytest.MonkeyPatch, upgrade_database: Upgrade) -> None:
    database = Database(None)
    tuner_of(FakeBench(by_threads), database=database).run([problem_of()], SHORT_SEARCH)
    made: list[object] = []
    make = kernels.make_kernel
    monkeypatch.setattr(kernels, "make_kernel", lambda *asked: made.append(asked) or make(*asked))
    for version, count in (("this", 1), ("this", 1), ("another", 2)):
        database.version = version
        assert tuner_of(FakeBench(slower), database=database).run([problem_of()], SHORT_SEARCH)[0].origin == "database"
        assert len(made) == count


# ---- imported results


def test_transferred_result_ranks_after_own_stale_one(tmp_path: Path, upgrade_database: Upgrade) -> None:
    own, newer = Database(None), Database(None)
    tuner_of(FakeBench(by_threads), database=own).run([problem_of()], SHORT_SEARCH)
    upgrade_database(own)
    upgrade_database(newer, otherwise=False)
    (theirs,) = tuner_of(FakeBench(slower), database=newer).run([problem_of()], evolve(SHORT_SEARCH, first=5))
    export_results(newer, tmp_path / "r.json")
    import_results(own, tmp_path / "r.json")
    (found,) = tuner_of(FakeBench(slower), database=own, frozen=True).run([problem_of()])
    assert (found.candidate.schedule, found.seconds) == (theirs.candidate.schedule, theirs.seconds)


@pytest.mark.parametrize("frozen", [False, True])
def test_transferred_decisions_rank_after_own_stale_ones(
    frozen: bool, tmp_path: Path, upgrade_database: Upgrade
) -> None:
    own, newer = Database(None), Database(None)
    fused, _ = tune_graph(chain(4), own, lambda kernel: 1e-3)
    upgrade_database(own)
    upgrade_database(newer, otherwise=False)
    theirs, _ = tune_graph(chain(4), newer, slow_when_fused)
    assert len(fused.steps) < len(theirs.steps) == 8
    export_pack(newer, tmp_path / "pack.json.xz")
    assert import_results(own, tmp_path / "pack.json.xz").graphs == 0
    taken, tuning = tune_graph(chain(4), own, no_device, frozen=frozen)
    assert len(taken.steps) == 8
    assert tuning.findings.seconds == newer.answers()[0].seconds
    assert frozen or own.answers()[0].seconds == tuning.findings.seconds


def test_own_decisions_stand_without_a_search(upgrade_database: Upgrade) -> None:
    own = Database(None)
    before, _ = tune_graph(chain(4), own, lambda kernel: 1e-3)
    own.adopt_answer(evolve(own.answers()[0], seconds=1.0))
    assert kernels_of(tune_graph(chain(4), upgrade_database(own), no_device, frozen=True)[0]) == kernels_of(before)


def test_decisions_say_what_their_kernels_take_today() -> None:
    database = Database(None)
    _, before = tune_graph(chain(4), database, lambda kernel: 1e-3)
    for problem in before.findings.problems:
        winner = database.winner(problem)
        assert winner is not None
        database.finish(problem, evolve(winner, seconds=3 * winner.seconds))
    _, after = tune_graph(chain(4), database, no_device)
    assert database.answers()[0].seconds == after.findings.seconds == pytest.approx(3 * before.findings.seconds)
    assert database.answers()[0].finished


def test_database_reports_its_current_content(upgrade_database: Upgrade) -> None:
    database = Database(None)
    tuner_of(FakeBench(by_threads), database=database).run([problem_of()], SHORT_SEARCH)
    trials = len(database.measurements(problem_of()))
    assert summary_of(database)["holding"] == trials
    upgrade_database(database)
    assert summary_of(database)["holding"] == 0
    tuner_of(FakeBench(by_threads), database=database).run([problem_of()], SHORT_SEARCH)
    assert summary_of(database)["holding"] >= 3
