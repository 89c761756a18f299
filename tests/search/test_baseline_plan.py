"""A budget is never worse than none.

A search begins with the baseline plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import accumulate
from time import monotonic
from zlib import crc32

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import Budget, CompiledGraph, CompileOptions, KernelFunction
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.ops import Registry
from cuts.passes.context import CompileContext
from cuts.passes.costs.candidate_subgraphs import CandidateSubgraph
from cuts.passes.costs.cost_model import KernelsQuery, Questions
from cuts.passes.fusion import form_key
from cuts.passes.partitioning import baseline_plan as first_plans
from cuts.passes.partitioning.baseline_plan import Forms
from cuts.passes.partitioning.choose_algorithms import ChooseAlgorithms
from cuts.passes.pipeline import compile_graph
from cuts.passes.schedule.selection.choose import choose
from cuts.search.building.factory import ScoredCandidate
from cuts.search.database import Database
from cuts.search.measured_model import MeasuredModel
from cuts.search.plan_executor import PlanExecutor
from cuts.search.session import TuningSession
from cuts.search.settings import Settings
from cuts.search.tasks.tuning_task import TuningTask, schedule_text
from cuts.search.tuner.final_ranking import best_known
from cuts.search.tuner.task_record import Entry, TaskRecord
from cuts.search.tuner.tuner import Tuner

from .fakes import MACHINE, group_of
from .simulation import FakeClock, constant_time, session
from .test_budgets import DECISIVE, SHORT_SEARCH, slow_host

__all__ = ["slow_host"]
pytestmark = pytest.mark.long
#: A GPU whose kernels no compiler is needed for.
GPU = evolve(find_target("cuda:h200"), dialect="opencl")
#: Seconds of budgets, in which more and more is measured.
BUDGETS = (7.0, 10.0, 16.0, 40.0)


def convolutions() -> Graph:
    """Return convolutions and products for the choice of algorithms.

    A long convolution, for which the cost model is sure of another algorithm, and its fused functions; a small one,
    whose algorithms only a clock separates; and products that may share a launch.
    """
    shapes = {"x": (16, 64, 56, 56), "w": (64, 64, 3, 3), "s": (1, 32, 14, 14), "v": (32, 32, 3, 3), "r": (8, 64)}
    shapes |= dict.fromkeys("yz", (16, 64, 56, 56)) | dict.fromkeys("tu", (1, 32, 14, 14))
    shapes |= {f"k{n}": (64, 16 + n) for n in range(3)} | {f"o{n}": (8, 16 + n) for n in range(3)}
    nodes = (
        Node("long", "conv", ("x", "w"), ("y",), {"pads": (1, 1, 1, 1)}),
        Node("relu", "relu", ("y",), ("z",)),
        Node("small", "conv", ("s", "v"), ("t",), {"pads": (1, 1, 1, 1)}),
        Node("tanh", "tanh", ("t",), ("u",)),
        *(Node(f"m{n}", "matmul", ("r", f"k{n}"), (f"o{n}",)) for n in range(3)),
    )
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    inputs = ("x", "w", "s", "v", "r", *(f"k{n}" for n in range(3)))
    graph = Graph("convolutions", inputs, ("z", "u", *(f"o{n}" for n in range(3))), types, nodes)
    return verify_graph(graph, Registry.builtin().instances.infer)


GRAPH = convolutions()


def found_in(
    seconds: float,
    clock: FakeClock,
    cost: Callable[[KernelFunction], float] = constant_time,
    settings: Settings = SHORT_SEARCH,
    **slow: float,
) -> tuple[CompiledGraph, TuningSession]:
    """Compile the graph by measured times on a simulated machine.

    The budget has some seconds.
    """
    tuning = TuningSession(GPU, Tuner(session(Budget.of(seconds, clock), clock, cost=cost, **slow)), settings)
    options = CompileOptions("mixed", seconds)
    return tuning.compile(GRAPH, Registry.builtin(), GPU, options, emit), tuning


@cache
def compile_untuned() -> CompiledGraph:
    """Compile the graph without a measurement."""
    return compile_graph(GRAPH, Registry.builtin(), GPU, CompileOptions("mixed"), emit)


def sources(found: CompiledGraph) -> list[str]:
    """Return the kernels of a plan, in order."""
    return [found.kernels[step.kernel].source for step in found.steps]


def test_unmeasured_plan_has_algorithm_and_shared_launch() -> None:
    """Else the tests below would say little."""
    assert [g["algorithms"] for g in compile_untuned().groups if g["algorithms"]]
    assert any("members" in g for g in compile_untuned().groups)


@pytest.mark.parametrize("seconds", [8.0, 60.0])
def test_workers_continue_with_kernels_of_the_plan(
    seconds: float, slow_host: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    continued: list[list[Hashable]] = []  # in each call: a comparison that leaves workers idle makes one, too
    note = lambda _, groups, spared=0: continued.append([*map(form_key, groups)])  # noqa: E731
    monkeypatch.setattr(PlanExecutor, "search_ahead", note)
    clock = FakeClock()
    slow_host(clock, 0.05)
    _, tuning = found_in(seconds, clock)
    assert all(len(keys) == len(set(keys)) for keys in continued)
    missing = {form_key(p.form) for p in tuning.findings.problems}.difference(*continued)
    assert not missing if seconds > 30 else not continued


@pytest.mark.parametrize("seconds", [6.0, 9.0, 15.0])
def test_unmeasured_parts_equal_those_without_a_budget(
    seconds: float, slow_host: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any budget."""
    monkeypatch.setattr(MeasuredModel, "measure", lambda *asked: False)
    clock = FakeClock()
    slow_host(clock, 0.05)
    found, tuning = found_in(seconds, clock, refer=1e6)
    assert all(choice.seconds is None for choice in tuning.findings.choices)
    assert sources(found) == sources(compile_untuned())


@pytest.mark.parametrize("seed", range(2))
def test_no_budget_gives_a_slower_plan_than_none(seed: int, slow_host: Callable[..., None]) -> None:
    def cost(kernel: KernelFunction) -> float:
        return 1e-4 * 2 ** (crc32(f"{seed}{kernel.source}".encode()) % 1000 / 500)

    plans = [compile_untuned()]
    for seconds in BUDGETS:
        clock = FakeClock()
        slow_host(clock, 0.05)
        plans.append(found_in(seconds, clock, cost, DECISIVE)[0])
    taken = [sum(cost(plan.kernels[step.kernel]) for step in plan.steps) for plan in plans]
    assert all(later <= 1.02 * least for later, least in zip(taken[1:], accumulate(taken, min), strict=False))
    assert taken[-1] < 0.9 * taken[0]


def test_baseline_plan_waits_for_no_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    """All alternatives that may be faster are requested at once.

    This process continues.
    """
    asked: list[tuple[float, int]] = []
    ahead, clock = PlanExecutor.plan_ahead, FakeClock()

    def note_request(self: PlanExecutor, fragments: Sequence[CandidateSubgraph]) -> object:
        asked.append((clock(), len(fragments)))
        return ahead(self, fragments)

    monkeypatch.setattr(PlanExecutor, "plan_ahead", note_request)
    planned = first_plans._plan_kernels
    begun: list[float] = []
    monkeypatch.setattr(first_plans, "_plan_kernels", lambda *plan: begun.append(clock()) or planned(*plan))
    found_in(20.0, clock)
    (moment, count), *_ = asked
    assert count > 1
    assert moment == begun[0] == 0.0


@pytest.mark.parametrize(("seconds", "before"), [(20.0, ["long"]), (60.0, ["long", "small"])])
def test_small_declarations_are_requested_early_in_ample_time(
    seconds: float, before: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker takes seconds over an alternative.

    Cores would wait for the last of them to be requested; the baseline plan, which is the answer where time is short,
    would wait for workers.
    """
    asked: list[str] = []
    ahead, planned = PlanExecutor.plan_ahead, first_plans._plan_kernels

    def note_request(self: PlanExecutor, fragments: Sequence[CandidateSubgraph]) -> object:
        asked.append(next(n for n in ("long", "small") if fragments[0].graph.nodes[0].name.startswith(n)))
        return ahead(self, fragments)

    first: list[list[str]] = []
    monkeypatch.setattr(PlanExecutor, "plan_ahead", note_request)
    monkeypatch.setattr(first_plans, "_plan_kernels", lambda *plan: first.append([*asked]) or planned(*plan))
    found_in(seconds, FakeClock())
    assert first[0] == before
    assert asked == ["long", "small"]  # each of them once


@pytest.mark.parametrize("late", ["never", "algorithms", "measured"])
def test_late_plan_gives_way_to_earlier_best(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its groups would be those at the end of time: nothing fused."""
    clock = FakeClock()
    run, compared = ChooseAlgorithms.run, first_plans._compare_algorithms

    def choose_noting(step: ChooseAlgorithms, graph: Graph) -> Graph:
        clock.pass_by(1000.0 if late == "algorithms" else 0.0)
        return run(step, graph)

    def compare_late(
        step: ChooseAlgorithms,
        graph: Graph,
        context: CompileContext,
        others: Questions = (),
        forms: Forms | None = None,
    ) -> Graph:
        found = compared(step, graph, context, others, forms)
        if late == "measured":  # another algorithm than the model is sure of
            clock.pass_by(1000.0)
            step.replaced["long"] = "winograd_2x2"
            return step.replace(graph, graph.nodes[0], "winograd_2x2")
        return found

    monkeypatch.setattr(MeasuredModel, "measure", lambda *asked: False)
    monkeypatch.setattr(ChooseAlgorithms, "run", choose_noting)
    monkeypatch.setattr(first_plans, "_compare_algorithms", compare_late)
    found, tuning = found_in(60.0, clock)
    assert tuning.findings.made is not None
    algorithms = {a for g in found.groups for a in g["algorithms"]}  # type: ignore[attr-defined]
    expected = {a for g in compile_untuned().groups for a in g["algorithms"]}  # type: ignore[attr-defined]
    assert algorithms == (set() if late == "algorithms" else expected)
    assert ["relu"] not in [g["ops"] for g in found.groups]


def test_groups_and_algorithms_are_measured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the algorithms, which are decided first.

    No algorithm competes with a product of matrices.
    """
    asked: list[list[bool]] = []
    measure = MeasuredModel.measure

    def note_request(
        self: MeasuredModel, questions: Callable[[], Questions], share: float, plan: KernelsQuery | None = None
    ) -> bool:
        wanted = questions()
        forms = [form for question in wanted for form in question]
        asked.append([form.tensors[form.outputs[0]].shape[:1] == (8,) for form in forms])
        return measure(self, lambda: wanted, share, plan)

    monkeypatch.setattr(MeasuredModel, "measure", note_request)
    found_in(60.0, FakeClock())
    algorithms = asked[0].index(True)
    assert algorithms > 0
    assert sum(asked[0]) >= 3


def test_small_declaration_keeps_its_algorithm_until_measured() -> None:
    clock = FakeClock()
    _, tuning = found_in(6.0, clock, refer=1e6)
    assert tuning.findings.made is not None
    places = {node.name: n for n, node in enumerate(GRAPH.nodes)}
    chosen = {place for place, _ in tuning.findings.made.algorithms}
    assert places["small"] not in chosen
    assert places["long"] in chosen


def test_another_plan_costs_its_new_kernels() -> None:
    assert first_plans.replan_seconds(4.0, 80, 0) == pytest.approx(2.0)
    assert first_plans.replan_seconds(4.0, 80, 10) == pytest.approx(4.0)


def test_first_measured_does_not_displace_larger_expected_gains() -> None:
    """Workers may build the model's first choice last."""
    problem = TuningTask(group_of("relu", ((6, 40),)), {}, GPU, MACHINE)
    first, second = (ScoredCandidate(None, found) for found in choose(problem.form, GPU, count=2))
    promised = first.candidate.score
    for seconds, ships in ((2 * promised, first), (0.9 * promised, second)):
        task = TaskRecord(problem, first=[first, second])
        own, other = (schedule_text(scored.candidate.schedule) for scored in (first, second))
        task.entries[own] = Entry(first, own)
        task.entries[other] = Entry(second, other, samples=[seconds], outcome="ok")
        assert best_known(task, SHORT_SEARCH, Database(None)).candidate == ships.candidate
        task.entries[own] = Entry(first, own, samples=[1.0], outcome="ok")
        assert best_known(task, SHORT_SEARCH, Database(None)).candidate == second.candidate


def test_budget_may_begin_before_its_creation() -> None:
    assert Budget.since(monotonic() - 5.0, 60.0).elapsed >= 5.0
    assert Budget.since(monotonic() + 5.0, 60.0).elapsed >= 0.0
    assert not Budget.since(monotonic() - 5.0, None).is_limited
