"""No guess decides about a plan.

Whenever time is over, the shipped plan is the cost model's, up to its last result, or was measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import define
from cuts.backends.source.emit import emit
from cuts.ir.compiled import Budget, CompiledGraph, CompileOptions
from cuts.ir.graph import Graph
from cuts.ir.segment import FusedGroup
from cuts.ops import Registry
from cuts.passes import assemble
from cuts.passes.context import CompileContext
from cuts.passes.costs.analytic_cost import AnalyticCost
from cuts.passes.inspection.fusion_report import fusion_report
from cuts.passes.pipeline import compile_graph
from cuts.passes.results import Partition
from cuts.search.session import TuningSession
from cuts.search.tuner.task_record import TaskRecord
from cuts.search.tuner.tuner import Tuner
from hypothesis import given, settings
from hypothesis import strategies as st

from ..fusion.build import Line, graph, op
from ..fusion.test_semantics import graphs
from .simulation import FakeClock, session
from .test_baseline_plan import GPU
from .test_budgets import SHORT_SEARCH
from .test_without_measurements import branches, dense, launches_of

pytestmark = pytest.mark.long

#: Stages after the first plan, at whose beginning time may be over.
LATER = ("programs", "partition", "split", "schedule", "reconsider", "launches", "lower")


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Draw a chain of products and elementwise functions, some of two values.

    It has too many units for Algorithm 1 as written.
    """
    shapes: dict[str, tuple[int, ...]] = {"v0": (16, 24)}
    lines: list[Line] = []
    widths = [24]
    for n in range(draw(st.integers(11, 15))):
        kind, width = draw(st.sampled_from(["matmul", "tanh", "relu", "add", "mul"])), widths[-1]
        if kind == "matmul":
            width = draw(st.sampled_from([16, 24, 40]))
            shapes[f"w{n}"] = (widths[-1], width)
        equal = [f"v{k}" for k, w in enumerate(widths) if w == widths[-1]]
        others = [draw(st.sampled_from(equal))] if kind in ("add", "mul") else [f"w{n}"] * (kind == "matmul")
        lines.append(op(f"v{n + 1}", kind, f"v{n}", *others))
        widths.append(width)
    return graph(shapes, *lines, out=f"v{len(lines)}")


@define
class Jumping:
    """Clock of a budget that jumps ahead after some reads."""

    clock: FakeClock
    looks: int

    def __call__(self) -> float:
        """Return the time in seconds."""
        self.looks -= 1
        if self.looks == 0:
            self.clock.pass_by(1000.0)
        return self.clock()


@contextmanager
def without_measurements() -> Iterator[tuple[pytest.MonkeyPatch, list[CompileContext], list[Partition]]]:
    """Disable measurements in a block, and note the compilations and their groups."""
    contexts: list[CompileContext] = []
    formed: list[Partition] = []

    def note_groups(partition: Partition, context: CompileContext) -> Mapping[tuple[str, ...], Mapping[str, object]]:
        contexts.append(context)
        formed.append(partition)
        return fusion_report(partition, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "fusion_report", note_groups)
        patch.setattr(TaskRecord, "measurable", property(lambda task: False))
        yield patch, contexts, formed


def compile_untuned(made: Graph) -> CompiledGraph:
    """Compile a graph without a measurement."""
    return compile_graph(made, Registry.builtin(), GPU, CompileOptions("mixed"), emit)


def in_time(made: Graph, budget: Budget, clock: FakeClock, **slow: float) -> tuple[CompiledGraph, TuningSession]:
    """Compile a graph within a budget, on a simulated machine.

    `slow` gives methods of workers other seconds.
    """
    tuning = TuningSession(GPU, Tuner(session(budget, clock, **slow)), SHORT_SEARCH)
    options = CompileOptions("mixed", budget.seconds)
    return tuning.compile(made, Registry.builtin(), GPU, options, emit), tuning


@settings(max_examples=20, deadline=None)
@given(graphs() | networks(), st.integers(1, 400))
def test_no_group_without_a_cost_is_merged(made: Graph, looks: int) -> None:
    with without_measurements() as (_, contexts, formed):
        clock = FakeClock()
        found, tuning = in_time(made, Budget.of(30.0, Jumping(clock, looks)), clock)
    assert found.steps
    merged = [group.form for group in formed[0].formed if len(group.units) > 1]
    assert all(contexts[0].modelled.is_measured(form) or tuning.known.times.has(form) for form in merged)


@settings(max_examples=20, deadline=None)
@given(graphs() | networks(), st.sampled_from(["remove-dead-code", *LATER]))
def test_exhausted_time_gives_the_plan_without_a_budget(made: Graph, stage: str) -> None:
    clock = FakeClock()
    begin = Budget.stage

    def late(budget: Budget, name: str) -> Any:
        clock.pass_by(1000.0 if name == stage else 0.0)
        return begin(budget, name)

    with without_measurements() as (patch, *_):
        wanted = launches_of(compile_untuned(made))
        patch.setattr(Budget, "stage", late)
        found, tuning = in_time(made, Budget.of(8.0, clock), clock)
    assert all(choice.seconds is None for choice in tuning.findings.choices)
    assert launches_of(found) == wanted


@pytest.mark.parametrize("made", [dense, branches])
def test_workers_evaluate_the_baseline_plan_however_late(made: Callable[[], Graph]) -> None:
    """Six of ten seconds had passed when DenseNet-121 was imported.

    This process alone evaluated it until time was over, and guessed the rest: 1.74 ms, where the plan without a budget
    takes 0.80.
    """
    clock, cost = FakeClock(), AnalyticCost.cost

    def slow(modelled: AnalyticCost, group: FusedGroup) -> float:
        clock.pass_by(0.4)
        return cost(modelled, group)

    with without_measurements() as (patch, *_):
        wanted = launches_of(compile_untuned(made()))
        budget = Budget.of(10.0, clock)
        clock.pass_by(8.0)
        patch.setattr(AnalyticCost, "cost", slow)
        found, _ = in_time(made(), budget, clock, price=0.1)
    assert launches_of(found) == wanted
