"""The finished plan in branches competes with the launch sequence.

It does so where it may be faster and time is left.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from cuts.backends import Timing
from cuts.cli.output.common import plan_values
from cuts.cli.output.console import totals
from cuts.compile.plan import CompiledPlan
from cuts.compile.selection.concurrent_launches import critical_path_share, select_launch_form
from cuts.ir.compiled import Budget
from cuts.passes import Decisions
from cuts.runtime import Plan, load_plan, make_concurrent, save_plan
from cuts.runtime.files import plan_document
from cuts.search import DecisionRecord
from cuts.search.tasks.decisions import decisions_text

from ..runtime.handmade import example_plan
from .simulation import FakeClock


class Clocked(CompiledPlan):
    """Plan whose steps take 1 ms each.

    As a whole it takes 3 ms in sequence, and another time in branches.
    """

    branches = 2.0
    device = SimpleNamespace(branches=True)
    opened: list[bool] = []  # noqa: RUF012

    @property
    def session(self) -> Any:
        self.opened.append(self.plan.branched)
        return self

    def time_steps(self, repeats: int) -> list[Any]:
        return [Timing((1e-3,)) for _ in self.plan.steps]

    def time_compute(self, warmup: int, repeats: int) -> Any:
        return Timing((1e-3 * (self.branches if self.plan.branched else 3.0),))


def choose_form(
    monkeypatch: pytest.MonkeyPatch,
    *,
    branches: float = 2.0,
    plan: Plan | None = None,
    left: float = 60.0,
    memory: int | None = None,
    frozen: bool = False,
    able: bool = True,
    right: bool = True,
    comparing: float = 0.0,
    answer: DecisionRecord | None = None,
    kept: list[DecisionRecord] | None = None,
) -> CompiledPlan:
    """Return the plan that ships for a time of branches in milliseconds.

    The form that is `kept` of the graph is added.
    """
    clock = FakeClock()
    budget = Budget.of(60.0, clock)
    clock.pass_by(60.0 - left)
    database = SimpleNamespace(keep_answer=([] if kept is None else kept).append)
    tuning: Any = SimpleNamespace(
        tuner=SimpleNamespace(frozen=frozen),
        database=database,
        target=SimpleNamespace(on_host=False),
        settings=SimpleNamespace(tie=0.01),
        budget=budget,
    )
    agreement: Any = SimpleNamespace(check_plans=lambda plans: [True, right], seconds=comparing)
    monkeypatch.setattr("cuts.compile.selection.concurrent_launches.CompiledPlan", Clocked)
    monkeypatch.setattr(Clocked, "branches", branches)
    monkeypatch.setattr(Clocked, "device", SimpleNamespace(branches=able))
    monkeypatch.setattr(Clocked, "opened", [])
    return select_launch_form(Clocked(plan or example_plan("cuda")), answer, tuning, agreement, memory)


@pytest.mark.parametrize(("branches", "wanted"), [(2.0, True), (2.98, False), (4.0, False)])
def test_branches_ship_where_the_whole_is_faster(
    branches: float, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_form(monkeypatch, branches=branches).plan.branched == wanted


@pytest.mark.parametrize(
    "facts",
    [{"left": 0.1}, {"frozen": True}, {"able": False}, {"memory": 64}, {"comparing": 59.0}],
    ids=lambda facts: next(iter(facts)),
)
def test_no_branches_without_time_device_or_memory(facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not choose_form(monkeypatch, **facts).plan.branched
    assert True not in Clocked.opened


def decisions_with(branched: bool | None) -> DecisionRecord:
    decisions = decisions_text(Decisions("", (), (), (), branched=branched))
    return DecisionRecord("key", "{}", "graph", decisions, (), 1.0, True)


def noted_form(answer: DecisionRecord) -> bool | None:
    decisions = answer.read()
    assert decisions is not None
    return decisions.branched


@pytest.mark.parametrize(("branches", "faster"), [(2.0, True), (4.0, False)])
def test_faster_form_of_a_plan_is_noted(branches: float, faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[DecisionRecord] = []
    choose_form(monkeypatch, branches=branches, answer=decisions_with(None), kept=kept)
    assert [noted_form(answer) for answer in kept] == [faster]
    for facts in ({}, {"frozen": True}, {"left": 0.1}):
        again: list[DecisionRecord] = []
        other = 6.0 - branches  # the time that a clock gives now
        found = choose_form(monkeypatch, branches=other, answer=kept[0], kept=again, **facts)
        assert found.plan.branched == faster
        assert again == Clocked.opened == []


@pytest.mark.parametrize("facts", [{"left": 0.1}, {"frozen": True}, {"able": False}, {"memory": 64}])
def test_nothing_is_noted_where_no_clock_compared(facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[DecisionRecord] = []
    choose_form(monkeypatch, answer=decisions_with(None), kept=kept, **facts)
    assert kept == []


def test_noted_form_respects_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not choose_form(monkeypatch, answer=decisions_with(True), memory=64).plan.branched


def test_branches_that_compute_something_else_do_not_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not choose_form(monkeypatch, right=False).plan.branched


def test_nearly_sequential_plan_does_not_use_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = example_plan("cuda")
    branched = make_concurrent(plan)
    assert branched is not None
    assert critical_path_share(branched, [1.0, 1.0, 1.0]) == pytest.approx(2 / 3)
    assert critical_path_share(branched, [1.0, 1.0, 0.1]) == pytest.approx(2 / 2.1)
    monkeypatch.setattr("cuts.compile.selection.concurrent_launches.MAX_CRITICAL_PATH_SHARE", 0.5)
    assert not choose_form(monkeypatch, plan=plan).plan.branched
    assert Clocked.opened == [False, False]


def test_plan_without_recorded_form_is_a_sequence(tmp_path: Path) -> None:
    save_plan(evolve(example_plan("cuda"), branched=True), tmp_path / "new")
    assert load_plan(tmp_path / "new").branched
    file = tmp_path / "new" / "plan.json"
    body = json.loads(file.read_text())
    head = {name: body.pop(name) for name in ("format", "version", "digest")}
    del body["branched"]
    file.write_text(json.dumps(head | {"digest": plan_document._digest(body)} | body))
    assert not load_plan(tmp_path / "new").branched


def test_plan_reports_whether_it_uses_branches() -> None:
    plan = example_plan("cuda")
    branched = make_concurrent(plan)
    assert branched is not None
    assert "in branches" in totals(branched) and "in branches" not in totals(plan)
    assert [plan_values(CompiledPlan(form))["branched"] for form in (plan, branched)] == [False, True]
