"""Asynchronous cost evaluation against evaluation on demand, and its amount."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from attrs import field, frozen
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph
from cuts.ir.segment import FusedGroup
from cuts.ir.text import print_ir
from cuts.passes.context import CompileContext
from cuts.passes.costs import analytic_cost, sampled_cost
from cuts.passes.costs.async_cost import CostRequest, CostResult, evaluate_costs
from cuts.passes.fusion.grouping.partition import MAX_LOOKAHEAD_ROUNDS
from cuts.passes.pipeline import stage_results
from cuts.passes.results import Partition
from cuts.passes.schedule.selection.enumerate import Batch, sample_batches

from ..kernels.cases import ByModel
from .build import REGISTRY, graph, op

TARGET = find_target("cuda:h200")


def network() -> Graph:
    """Return a convolution and a narrow matrix, followed by elementwise functions.

    The matrix has few rows, which may be split.
    """
    inputs: dict[str, tuple[int, ...]] = {"x": (1, 8, 14, 14), "f": (8, 8, 3, 3), "w": (8 * 14 * 14, 10)}
    lines = [
        op("a", "conv", "x", "f", pads=(1, 1, 1, 1)),
        op("b", "relu", "a"),
        op("c", "add", "b", "x"),
        op("d", "tanh", "c"),
        op("e", "mul", "d", "a"),
        op("g", "exp", "e"),
        op("flat", "reshape", "g", shape=(1, 8 * 14 * 14)),
        op("m", "matmul", "flat", "w"),
        op("n", "tanh", "m"),
        op("o", "mul", "n", "m"),
        op("p", "exp", "o"),
        op("q", "add", "p", "m"),
        op("y", "relu", "q"),
    ]
    return graph(inputs, *lines, out="y")


NETWORK = network()
Answers = Callable[[Sequence[CostRequest]], Sequence[CostResult | None]]


@frozen
class OtherWorkers(ByModel):
    """Selector whose workers evaluate groups in a given way and count requests."""

    answers: Answers = field(default=lambda pricings: [None] * len(pricings), eq=False)
    asked: list[int] = field(factory=list)

    def submit(self, requests: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """Price groups when the answers are waited for."""
        if not isinstance(requests[0], CostRequest):
            return super().submit(requests)
        self.asked.append(len(requests))
        return lambda: self.answers(requests)


def form_groups(selector: ByModel) -> tuple[Partition, CompileContext]:
    """Return the groups of the network, and the context with their costs."""
    context = selector.context(REGISTRY, TARGET, CompileOptions(mode="mixed"), emit)
    return next(result for name, result in stage_results(NETWORK, context) if name == "partition"), context


def in_any_order(pricings: Sequence[CostRequest]) -> Sequence[CostResult | None]:
    """Evaluate as other processes would, in another order.

    The last is first, and every fourth is not in time.
    """
    found: list[CostResult | None] = [None] * len(pricings)
    for k in reversed(range(len(pricings))):
        if k % 4 != 3:
            found[k] = pickle.loads(pickle.dumps(evaluate_costs(pickle.loads(pickle.dumps(pricings[k])))))
    return found


def test_asynchronous_costs_equal_costs_on_demand(synchronous_costs: tuple[Partition, CompileContext]) -> None:
    selector = OtherWorkers(TARGET, answers=in_any_order)
    (expected, own), (found, context) = synchronous_costs, form_groups(selector)
    assert len(selector.asked) <= MAX_LOOKAHEAD_ROUNDS, "each time for all that a path of merges may come to"
    assert min(selector.asked) > 1
    assert [print_ir(g.form) for g in found.groups] == [print_ir(g.form) for g in expected.groups]
    assert own.modelled.costs.items() <= context.modelled.costs.items()
    assert len(context.modelled.costs) <= MAX_COSTS_AHEAD * len(own.modelled.costs)


#: Costs of groups that the look-ahead finds, by those that decide. It makes merges after unknown costs, so that budgets
#: prepare more, and compares neighbours of groups that a cost found later replaces (74 for 61).
MAX_COSTS_AHEAD = 1.25
#: Evaluations of the network's partition: groups, structures of them, points of these.
LOOKED_AT = Counter(groups=180, structures=340, points=77_000)


@pytest.fixture(scope="module")
def evaluation_counts() -> Counter[str]:
    """Evaluations of a partition."""
    return Counter()


@pytest.fixture(scope="module")
def synchronous_costs(evaluation_counts: Counter[str]) -> Iterator[tuple[Partition, CompileContext]]:
    """A compilation whose costs are found when they are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        whole, cost = analytic_cost.evaluate, analytic_cost.AnalyticCost.cost

        def count_batch(*given: Any) -> Batch:
            batch = whole(*given)
            evaluation_counts.update(structures=1, points=batch.size)
            return batch

        def count_cost(self: analytic_cost.AnalyticCost, group: FusedGroup) -> float:
            evaluation_counts.update(groups=1)
            return cost(self, group)

        patch.setattr(analytic_cost, "evaluate", count_batch)
        sampled_cost.sample_group.cache_clear()
        patch.setattr(sampled_cost, "sample_batches", lambda *given: map(record, sample_batches(*given)))
        patch.setattr(analytic_cost.AnalyticCost, "cost", count_cost)

        def record(batch: Batch) -> Batch:
            evaluation_counts.update(structures=1, points=batch.size)
            return batch

        yield form_groups(ByModel(TARGET))


def test_a_partition_evaluates_no_more_than_expected(
    synchronous_costs: tuple[Partition, CompileContext], evaluation_counts: Counter[str]
) -> None:
    """Counts of the expensive steps stand for the planning time.

    A clock says little on a busy machine.
    """
    assert synchronous_costs[0].groups
    assert not evaluation_counts - LOOKED_AT


def test_equal_groups_are_sampled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    group = form_groups(ByModel(TARGET))[0].groups[0]
    sampled_cost.sample_group.cache_clear()
    costs = [analytic_cost.AnalyticCost(TARGET).cost(group.form)]
    monkeypatch.setattr(sampled_cost, "sample_batches", None)
    assert [analytic_cost.AnalyticCost(TARGET).cost(group.form)] == costs
