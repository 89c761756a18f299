"""The pipeline as a whole: what it prints, where it stops, what it shares."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from cuts.backends.emit import emit
from cuts.backends.targets import find_target
from cuts.ir.compiled import CompiledGraph, CompileOptions
from cuts.ir.errors import UsageError
from cuts.ir.graph import Graph
from cuts.ir.launch import KernelFunction
from cuts.passes.pipeline import STAGES, compile_graph, graph_passes

from .build import REGISTRY, graph, op

MADE = graph({"x": (4, 8), "w": (8, 8)}, op("a", "matmul", "x", "w"), op("b", "relu", "a"), op("c", "matmul", "b", "w"),
             op("d", "relu", "c"), op("t", "transpose", "d"), op("y", "softmax", "t"), out="y")  # fmt: skip


def compiled(made: Graph, **options: object) -> CompiledGraph:
    return compile_graph(made, REGISTRY, find_target("cuda:sm_90"), CompileOptions(**options), emit)  # type: ignore[arg-type]


def test_equal_groups_share_a_kernel_and_steps_bind_graph_tensors() -> None:
    found = compiled(MADE, mode="fusion")
    assert [s.kernel for s in found.steps] == [0, 0, 1]
    assert {t for s in found.steps for t in s.tensors} == {"x", "w", "b", "d", "t", "y"}
    assert found.storages["t"].buffer == "d"
    assert [g["nodes"] for g in found.groups] == [["n0", "n1"], ["n2", "n3"], ["n5"]]


def test_every_pass_is_printed_once_and_in_order() -> None:
    seen: list[str] = []
    compiled(MADE, print_after=("all",), callback=lambda name, text: seen.append(name) if text else None)
    assert seen == [*(p.name for p in graph_passes(REGISTRY)), *STAGES]


@pytest.mark.parametrize("stage", ["fold-constants", "partition", "extract"])
def test_it_stops_after_a_pass(stage: str) -> None:
    seen: list[str] = []
    found = compiled(MADE, stop_after=stage, callback=lambda name, text: seen.append(name))
    assert seen == [stage]
    assert not found.kernels


def test_an_unknown_pass_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"unknown pass 'fuse'; passes in order: .*partition, schedule"):
        compiled(MADE, stop_after="fuse")


def test_an_expired_budget_still_gives_an_answer_and_says_so() -> None:
    found = compiled(MADE, budget=1e-9)
    assert found.steps
    assert not found.complete


def test_where_kernels_can_be_timed_the_fastest_of_the_best_few_is_taken() -> None:
    seen: list[tuple[str, dict[str, int]]] = []

    def timer(kernel: KernelFunction, sizes: Mapping[str, int]) -> float:
        seen.append((kernel.source, dict(sizes)))
        return -float(len(seen))

    found = compile_graph(MADE, REGISTRY, find_target("cuda:sm_90"), CompileOptions(mode="fusion"), emit, timer)
    products = [source for source, sizes in seen if len(sizes) == 3]
    assert len(products) > 1
    assert found.kernels[0].source == products[-1]
    assert seen[0][1] == {"t0": 32, "t1": 64, "t2": 32}
