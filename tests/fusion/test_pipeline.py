"""The pipeline as a whole: output, stages, and shared kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompiledGraph, CompileOptions
from cuts.ir.errors import PassError, UsageError, VerifyError
from cuts.ir.graph import Graph
from cuts.ir.segment import FusedGroup
from cuts.passes import pipeline
from cuts.passes.context import CompileContext
from cuts.passes.costs.cost_model import KernelsQuery, Questions
from cuts.passes.costs.executor import Workload
from cuts.passes.fusion.grouping.partitioner import GroupEvaluator
from cuts.passes.pipeline import STAGES, all_stages, compile_graph
from cuts.passes.schedule.selection.choose import Candidate, choose

from ..kernels.cases import KnownTimes, Unhurried
from .build import REGISTRY, graph, op

CHAIN = graph({"x": (4, 8), "w": (8, 8)}, op("a", "matmul", "x", "w"), op("b", "relu", "a"),
              op("c", "matmul", "b", "w"), op("d", "relu", "c"), op("t", "transpose", "d"),
              op("y", "softmax", "t"), out="y")  # fmt: skip


def compile_made(made: Graph, **options: object) -> CompiledGraph:
    target = find_target("cuda:sm_90")
    return compile_graph(made, REGISTRY, target, CompileOptions(**options), emit)  # type: ignore[arg-type]


def test_equal_groups_share_a_kernel() -> None:
    found = compile_made(CHAIN, mode="fusion")
    assert [s.kernel for s in found.steps] == [0, 0, 1]
    assert {t for s in found.steps for t in s.tensors} == {"x", "w", "b", "d", "t", "y"}
    assert found.storages["t"].buffer == "d"
    assert [g["nodes"] for g in found.groups] == [["n0", "n1"], ["n2", "n3"], ["n5"]]


def test_every_pass_is_printed_once_and_in_order() -> None:
    seen: list[str] = []
    compile_made(CHAIN, print_after=("all",), callback=lambda name, text: seen.append(name) if text else None)
    assert seen == [stage.name for stage in all_stages(REGISTRY)]


ROOT = Path(__file__).parents[2]


def test_the_files_of_every_stage_exist() -> None:
    named = {name for stage in all_stages(REGISTRY) for name in stage.files}
    assert [name for name in named if not (ROOT / "passes" / name).is_file() and not (ROOT / name).is_file()] == []


def break_stage(result: object, context: CompileContext) -> None:
    raise VerifyError("a group reads what nothing writes")


@pytest.mark.parametrize(
    ("options", "checked"),
    [({"verify": True}, True), ({"verify": False}, False), ({"debug": True, "verify": False}, True)],
)
def test_stage_verifiers_run_where_the_options_ask(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], checked: bool
) -> None:
    stages = tuple(evolve(stage, verify=break_stage) if stage.name == "partition" else stage for stage in STAGES)
    monkeypatch.setattr(pipeline, "STAGES", stages)
    if not checked:
        assert compile_made(CHAIN, **options).steps
        return
    with pytest.raises(PassError, match="stage 'partition' broke what it made: a group reads what nothing writes"):
        compile_made(CHAIN, **options)


def test_stage_verifiers_run_in_tests() -> None:
    assert CompileOptions().verifies_stages


@pytest.mark.parametrize("stage", ["fold-constants", "partition", "extract"])
def test_it_stops_after_a_pass(stage: str) -> None:
    seen: list[str] = []
    found = compile_made(CHAIN, stop_after=stage, callback=lambda name, text: seen.append(name))
    assert seen == [stage]
    assert not found.kernels


def test_an_unknown_pass_is_a_usage_error() -> None:
    with pytest.raises(
        UsageError, match=r"unknown pass 'fuse'; passes in order: .*pack, views, partition, split, schedule"
    ):
        compile_made(CHAIN, stop_after="fuse")


def test_an_expired_budget_gives_a_reported_answer() -> None:
    found = compile_made(CHAIN, budget=1e-9)
    assert found.steps
    assert not found.complete


class Slowest(Unhurried):
    """Selector of the last of five points.

    It has a price of shared memory traffic.
    """

    rounds = 0

    def __init__(self, shared: float) -> None:
        self.shared = shared
        self.times = KnownTimes(True, complete=lambda: False, known=False)
        self.workloads: list[Workload] = []

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        self.modelled = modelled
        return self

    def cost(self, group: FusedGroup) -> float:
        return self.shared if self.rounds and len(group.segments) > 1 else self.modelled.cost(group)

    def measure(self, questions: Callable[[], Questions], share: float, plan: KernelsQuery | None = None) -> bool:
        self.rounds += 1
        self.times.known = True
        return self.rounds == 1

    def schedule(self, workloads: Mapping[Hashable, Workload], share: float = 1.0) -> Mapping[Hashable, Candidate]:
        self.workloads = list(workloads.values())
        return {
            k: evolve(choose(w.form, find_target("cuda:sm_90"), count=5)[-1], measured={"measured": 1.0})
            for k, w in workloads.items()
        }


def test_a_selector_chooses_schedules_and_reports_its_times() -> None:
    selector = Slowest(0.0)
    found = selector.compile(CHAIN, REGISTRY, find_target("cuda:sm_90"), CompileOptions(mode="fusion"), emit)
    assert [(w.nodes, w.uses) for w in selector.workloads] == [(("n0", "n1"), 2), (("n5",), 1)]
    assert found.kernels[0].source != compile_made(CHAIN, mode="fusion").kernels[0].source
    assert found.groups[0]["measured"] == 1.0
    assert not found.complete


@pytest.mark.parametrize(("price", "groups"), [(0.0, 2), (1.0, 3)])
def test_what_a_selector_learns_changes_the_partition(price: float, groups: int) -> None:
    found = Slowest(price).compile(CHAIN, REGISTRY, find_target("cuda:sm_90"), CompileOptions(mode="mixed"), emit)
    assert len(found.steps) == groups
