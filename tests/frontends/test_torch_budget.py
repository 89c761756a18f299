"""One budget of `torch.compile` for all graphs of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attrs import define
from cuts.compile import torch_backend
from cuts.compile.cached_build import build_cached
from cuts.ir.compiled import BudgetShares, CompileOptions
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore")
#: Seconds by which the clock of a search advances beyond its budget.
OVERRUN_SECONDS = 0.5


@define
class Clock:
    """Virtual clock."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_compilations_share_a_budget() -> None:
    clock = Clock()
    shares, given = BudgetShares(40.0, clock=clock), []
    for is_last in (False, False, True, True):
        with shares.share(is_last) as budget:
            given.append(budget.seconds)
            clock.now += budget.seconds
    assert given == [20.0, 10.0, 10.0, 0.0]


def test_seconds_before_a_share_are_spent() -> None:
    clock = Clock()
    shares = BudgetShares(40.0, clock=clock)
    clock.now += 30.0
    with shares.share(False) as budget:
        assert budget.elapsed == 30.0
        clock.now += 1.0
    assert shares.spent == 31.0
    clock.now += 7.0
    shares.resume()
    with shares.share(True) as budget:
        assert (budget.seconds, budget.elapsed) == (9.0, 0.0)


def searched_seconds(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any], *arguments: Any
) -> tuple[float, list[float]]:
    """Return the seconds of a step's searches, and the budget of each.

    The clock is virtual."""
    clock, given = Clock(), []

    def search(graph: Any, spec: Any, target: Any, options: Any, **tuning: Any) -> Any:
        assert options.budget == 40.0, "keys of cached plans have the budget of the module"
        given.append(options.begun.remaining())
        clock.now += max(options.begun.seconds - options.begun.elapsed, 0.0) + OVERRUN_SECONDS
        return build_cached(graph, spec, target, CompileOptions())

    monkeypatch.setattr(torch_backend, "build_cached", search)
    monkeypatch.setattr(torch_backend, "BudgetShares", lambda *parts: BudgetShares(*parts, clock=clock))
    torch._dynamo.reset()
    torch.compile(call, backend=torch_backend.cuts_backend, options={"budget": 40.0})(*arguments).sum().backward()
    return clock.now - 100.0, given


@needs_opencl
def test_both_graphs_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, given = searched_seconds(monkeypatch, torch.nn.Linear(4, 3), torch.randn(2, 4))
    assert len(given) == 2 and min(given) > 10.0
    assert seconds <= 40.0 + 2 * OVERRUN_SECONDS


@needs_opencl
def test_each_shape_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = torch.nn.Linear(4, 3)

    call = torch.compile(linear, backend=torch_backend.cuts_backend, options={"budget": 40.0}, dynamic=True)
    given: list[float] = []

    def note(graph: Any, spec: Any, target: Any, options: Any, **tuning: Any) -> Any:
        given.append(options.begun.seconds)
        return build_cached(graph, spec, target, CompileOptions())

    monkeypatch.setattr(torch_backend, "build_cached", note)
    torch._dynamo.reset()
    for rows in (2, 3, 5):
        call(torch.randn(rows, 4)).sum().backward()
    assert len(given) == 6 and max(given[::2]) == 20.0 == min(given[::2])


@needs_opencl
def test_graphs_between_breaks_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = torch.nn.Linear(4, 4)

    def breaking(x: Any) -> Any:
        x = torch.tanh(linear(x))
        torch._dynamo.graph_break()
        x = torch.tanh(linear(x))
        torch._dynamo.graph_break()
        return linear(x)

    seconds, given = searched_seconds(monkeypatch, breaking, torch.randn(2, 4))
    assert len(given) > 4
    assert seconds <= 40.0 + len(given) * OVERRUN_SECONDS
    seconds, given = searched_seconds(monkeypatch, linear, torch.randn(2, 4))
    assert max(given) > 15.0, "another function has a budget of its own"
