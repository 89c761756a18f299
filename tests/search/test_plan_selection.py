"""Whole plans are held against one another, and the fastest ships."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from cuts.backends import Timing
from cuts.compile.selection.plan_selection import (
    CandidatePlan,
    faster_candidate,
    select_library_calls,
    time_alternately,
    time_nothing,
)
from cuts.ir.compiled import Budget, KernelFunction, Step
from cuts.ir.errors import BackendError, NumericsError
from cuts.search.database import Database
from cuts.search.findings import Findings
from cuts.search.measured_model import MeasuredModel
from cuts.search.session import TuningSession
from cuts.search.settings import TunedChoice
from cuts.search.tasks.decisions import DecisionRecord

from .simulation import FakeClock
from .test_decisions import kernels, tune_graph
from .test_selector import chain, slow_when_fused


def even(kernel: KernelFunction) -> float:
    return 1e-3


def no_gain(kernel: KernelFunction) -> float:
    """Let a fused kernel take a little less than its parts together."""
    return (1.98 if "tanh(" in kernel.source and " p2" in kernel.source else 1.0) * 1e-3


def with_current_times(known: DecisionRecord, tuning: TuningSession) -> DecisionRecord:
    """Return the record of a known plan that shipped.

    It has the same decisions, with its kernels' current times.
    """
    return evolve(known, seconds=tuning.findings.seconds)


@pytest.mark.parametrize(("before", "kept"), [(0.98, True), (0.995, False), (1.02, False), (None, False)])
def test_known_plan_ships_where_the_search_is_slower(before: float | None, kept: bool) -> None:
    elsewhere, here = Database(None), Database(None)
    unfused, _ = tune_graph(chain(1), elsewhere, slow_when_fused)
    known = evolve(elsewhere.answers()[0], finished=False, seconds=1.02e-3)
    here.keep_answer(known)
    asked = []

    def wholes(first: CandidatePlan, second: CandidatePlan) -> tuple[float, float] | None:
        asked.append((first, second))
        return None if before is None else (1.0, before)

    found, tuning = tune_graph(chain(1), here, even, wholes=wholes)
    assert [len(each.compiled.steps) for each in asked[0]] == [1, 2]
    assert (kernels(found) == kernels(unfused)) == kept
    assert len(tuning.findings.problems) == len(found.kernels)
    assert (here.answers()[0] == with_current_times(known, tuning)) == kept


@pytest.mark.parametrize(("unfused", "launches"), [(0.9, 2), (1.1, 1)])
def test_unfused_plan_ships_where_it_is_faster(unfused: float, launches: int) -> None:
    database = Database(None)
    found, _ = tune_graph(chain(1), database, no_gain, wholes=lambda first, second: (1.0, unfused))
    assert len(found.steps) == launches
    again, _ = tune_graph(chain(1), database, no_gain)
    assert kernels(again) == kernels(found)


def test_plans_with_very_different_times_are_not_run() -> None:
    def compare_never(first: CandidatePlan, second: CandidatePlan) -> None:
        raise AssertionError("sums tell")

    found, _ = tune_graph(chain(1), Database(None), even, wholes=compare_never)
    assert len(found.steps) == 1


def rival(seconds: float, *kernels: float | None) -> CandidatePlan:
    """Return a plan of kernels with some seconds, or without times.

    Its sum is then partly guessed.
    """
    candidate: Any = None
    choices = tuple(TunedChoice(candidate, each) for each in kernels)
    compiled: Any = None
    return CandidatePlan(compiled, Findings((), tuple(choices)), DecisionRecord("", "", "", "", (), seconds, False))


@pytest.mark.parametrize(
    ("wholes", "found", "wanted"),
    [
        (None, rival(0.9, 0.4, None), "known"),
        (None, rival(0.9, 0.4, 0.5), "found"),
        ((1.0, 1.1), rival(0.9, 0.4, None), "found"),
        ((1.1, 1.0), rival(0.9, 0.4, 0.5), "known"),
    ],
)
def test_what_was_timed_ships_before_what_is_guessed(
    wholes: tuple[float, float] | None, found: CandidatePlan, wanted: str
) -> None:
    """A short search after a longer one has kernels without a time.

    Their sum is no reason to give up a plan.
    """
    known = rival(1.0, 0.5, 0.5)
    assert (
        faster_candidate(found, known, lambda first, second: wholes, 0.01) is {"known": known, "found": found}[wanted]
    )
    assert faster_candidate(rival(0.9, None), rival(0.8, None), time_nothing, 0.01).seconds == 0.8, "both are guessed"


class _Timed:
    """A plan whose runs take some seconds, less each time; none where there is no room."""

    def __init__(self, *seconds: float, name: str = "k") -> None:
        self.left = list(seconds)
        self.repeats: list[int] = []
        self.kernels = [KernelFunction(name, "cuda", "", (1, 1, 1), (1, 1, 1), ())]
        self.plan = SimpleNamespace(steps=[Step(0, ())])

    @property
    def session(self) -> _Timed:
        return self

    def time_compute(self, warmup: int, repeats: int) -> Timing:
        if not self.left:
            raise BackendError("no room")
        self.repeats.append(repeats)
        return Timing((self.left.pop(0),))


class _Shut(_Timed):
    """A plan that cannot be opened."""

    @property
    def session(self) -> _Timed:
        raise BackendError("no room for a routine")


class _Judge:
    """Says which plans are right."""

    seconds = 0.0

    def __init__(self, *verdicts: bool) -> None:
        self.verdicts = verdicts

    def check_plans(self, plans: Sequence[Any]) -> Sequence[bool]:
        return self.verdicts


@pytest.mark.parametrize(
    ("times", "right", "place"),
    [
        ((1.0, 0.9), (True, True), 1),
        ((1.0, 0.995), (True, True), 0),
        ((0.9, 1.0), (True, True), 0),
        ((1.0, 0.9), (True, False), 0),
        ((0.9, 1.0), (False, True), 1),
        ((0.9, 1.0), (False, False), 0),
    ],
)
def test_library_routines_ship_unless_slower(times: tuple[float, ...], right: tuple[bool, ...], place: int) -> None:
    _, tuning = tune_graph(chain(1), Database(None), even)
    plans: list[Any] = [_Timed(*3 * [seconds]) for seconds in times]
    judge: Any = _Judge(*right)
    assert select_library_calls(plans, tuning, judge) is plans[place]


@pytest.mark.parametrize(("second", "place"), [(0.9, 1), (1.1, 0)])
def test_wholes_that_were_timed_are_not_timed_again(second: float, place: int) -> None:
    _, tuning = tune_graph(chain(1), Database(None), even)
    plans: list[Any] = [_Timed(*3 * [1.0], name="a"), _Timed(*3 * [second], name="b")]
    judge: Any = _Judge(True, True)
    assert select_library_calls(plans, tuning, judge) is plans[place]
    assert not plans[0].left
    assert select_library_calls(plans, tuning, judge) is plans[place]
    others: list[Any] = [_Timed(*3 * [second], name="c"), _Timed(*3 * [1.0], name="b")]
    assert select_library_calls(others, tuning, judge) is others[1 - place], "it is another pair"


def test_plan_with_unbindable_routines_does_not_ship() -> None:
    _, tuning = tune_graph(chain(1), Database(None), even)
    plans: list[Any] = [_Shut(name="a"), _Timed(*3 * [1.0], name="b")]
    judge: Any = _Judge()
    assert select_library_calls(plans, tuning, judge) is plans[1]


def test_nothing_is_timed_where_only_known_results_count() -> None:
    _, tuning = tune_graph(chain(1), Database(None), even)
    tuning.tuner = evolve(tuning.tuner, frozen=True)
    plans: list[Any] = [_Timed(), _Timed()]
    judge: Any = _Judge()
    assert select_library_calls(plans, tuning, judge) is plans[0]
    assert not plans[0].repeats


def test_two_plans_are_timed_in_turns() -> None:
    plans: list[Any] = [_Timed(3.0, 1.0, 2.0), _Timed(5.0, 9.0, 4.0)]
    assert time_alternately(plans, Budget()) == (2.0, 5.0)
    assert time_alternately(plans, Budget()) is None, "there is no room any more"


@pytest.mark.parametrize(("left", "runs"), [(10.0, 10), (1.0, 4), (0.1, 3)])
def test_number_of_timed_runs_fits_the_budget(left: float, runs: int) -> None:
    clock = FakeClock()
    budget = Budget.of(20.0, clock)
    clock.pass_by(20.0 - left)
    plans: list[Any] = [_Timed(*4 * [0.02]), _Timed(*4 * [0.03])]
    assert time_alternately(plans, budget) == (0.02, 0.03)
    assert [plan.repeats for plan in plans] == [[1, *3 * [runs]]] * 2


@pytest.mark.parametrize(("budget", "order"), [(1.0, [True, False]), (1e4, [False, True])])
def test_known_plan_is_built_first_in_short_time(budget: float, order: list[bool]) -> None:
    here = Database(None)
    tune_graph(chain(1), here, slow_when_fused)
    known = evolve(here.answers()[0], finished=False, seconds=0.9e-3)
    here.keep_answer(known)
    has_decisions = []
    schedule = MeasuredModel.schedule

    def noting(self: MeasuredModel, *asked: Any) -> Any:
        has_decisions.append(self.replays)
        return schedule(self, *asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MeasuredModel, "schedule", noting)
        found, tuning = tune_graph(chain(1), here, even, budget=budget)
    assert list(dict.fromkeys(has_decisions)) == order
    assert len(found.steps) == 2
    assert len(tuning.findings.problems) == len(found.kernels)
    kept = here.answers()[0]
    assert (kept.decisions, kept.seconds) == (known.decisions, tuning.findings.seconds)


def test_wrong_known_plan_is_forgotten_and_searched_again() -> None:
    elsewhere, here, asked = Database(None), Database(None), list[int]()
    tune_graph(chain(1), elsewhere, slow_when_fused)
    (known,) = elsewhere.answers()
    assert known.finished
    here.keep_answer(known)

    def is_right(rival: CandidatePlan) -> bool:
        asked.append(len(rival.compiled.steps))
        return asked[-1] == 1

    found, _ = tune_graph(chain(1), here, even, is_right=is_right)
    assert asked == [2, 1]
    assert len(found.steps) == 1
    (kept,) = here.answers()
    assert kept.key == known.key
    assert kept.decisions != known.decisions


@pytest.mark.parametrize("faster", [True, False])
def test_known_plan_ships_where_the_search_is_wrong(faster: bool) -> None:
    elsewhere, here = Database(None), Database(None)
    unfused, _ = tune_graph(chain(1), elsewhere, slow_when_fused)
    known = evolve(elsewhere.answers()[0], finished=False, seconds=1.02e-3)
    here.keep_answer(known)
    wholes = lambda first, second: (1.0, 2.0) if faster else (1.0, 0.5)  # noqa: E731
    found, tuning = tune_graph(
        chain(1), here, even, wholes=wholes, is_right=lambda rival: len(rival.compiled.steps) == 2
    )
    assert kernels(found) == kernels(unfused)
    assert len(tuning.findings.problems) == len(found.kernels)
    assert here.answers()[0] == with_current_times(known, tuning)


def test_unfused_plan_ships_where_others_are_wrong() -> None:
    database = Database(None)
    found, tuning = tune_graph(chain(1), database, even, is_right=lambda rival: len(rival.compiled.steps) == 2)
    assert len(found.steps) == len(tuning.findings.problems) == 2
    again, _ = tune_graph(chain(1), database, even)
    assert kernels(again) == kernels(found)


def test_search_with_only_wrong_plans_keeps_nothing() -> None:
    database = Database(None)
    with pytest.raises(NumericsError, match="no plan of 'chain' computes"):
        tune_graph(chain(1), database, even, is_right=lambda rival: False)
    assert not database.answers()
