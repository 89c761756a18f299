"""Compilation errors of valid graphs are `CutsError`.

A graph that its declarations accept compiles or is refused; no other exception reaches a user.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cuts.frontends.graph_json import graph_to_json
from cuts.ir.graph import Graph
from cuts.ir.verify.graph import verify_graph
from cuts.ops import Registry
from cuts.passes.fusion import GroupBuilder
from cuts.tests.amounts import examples

from ...needs import needs_opencl
from .compiling import compile_one, draw_settings
from .growing import grow_graph
from .roles import roles
from .running import compile_many, execute_graph, find_errors, replay_errors, smallest

#: Seed of the graphs of the suite, how many are compiled, and seconds after which no further one begins.
SEED, COUNT, SECONDS = 44, examples(60, 600), float(examples(55, 1800))
#: Graphs whose results are computed on a device.
EXECUTED_EXAMPLES = examples(3, 60)


def test_random_graphs_end_without_foreign_exceptions() -> None:
    found = [f"graph {n}: {outcome.text}" for n, _, outcome in compile_many(SEED, range(COUNT), SECONDS)
             if outcome.is_finding]  # fmt: skip
    assert not found, "\n".join(found)


@needs_opencl
@pytest.mark.parametrize("number", range(EXECUTED_EXAMPLES))
def test_a_share_computes_the_reference(number: int) -> None:
    assert not execute_graph(grow_graph(SEED, number), number)


def test_graphs_follow_the_declarations_and_the_number() -> None:
    infer = Registry.builtin().instances.infer
    for number in range(12):
        graph = grow_graph(SEED, number)
        verify_graph(graph, infer)
        assert graph_to_json(grow_graph(SEED, number)) == graph_to_json(graph)
    assert graph_to_json(grow_graph(SEED + 1, 0)) != graph_to_json(grow_graph(SEED, 0))


def test_every_operation_has_a_role() -> None:
    registry = Registry.builtin()
    assert sorted(name for names in roles().values() for name in names) == sorted(registry)
    assert {registry[name].algorithms != () for name in roles()["algorithms"]} == {True}


def _plant_assertion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the compiler fail with an exception that is none of ours."""

    def single(self: GroupBuilder, unit: str) -> object:
        raise AssertionError(f"unit {unit} has no normal form")

    monkeypatch.setattr(GroupBuilder, "single", single)


def test_a_planted_assertion_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _plant_assertion(monkeypatch)
    out = tmp_path / "errors.json"
    assert find_errors(SEED, 2, 3, 60.0, out) == 1
    assert {outcome.kind for outcome in replay_errors(out)} == {"AssertionError"}
    monkeypatch.undo()
    assert not any(outcome.is_finding for outcome in replay_errors(out))


def test_a_finding_is_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant_assertion(monkeypatch)
    graphs = ((n, grow_graph(SEED, n)) for n in range(40))
    tried = ((g, compile_one(g, draw_settings(SEED, n))) for n, g in graphs if len(g.nodes) > 3)
    graph, outcome = next((g, o) for g, o in tried if o.kind == "AssertionError")
    least: Graph = smallest(graph, outcome, 20)
    assert len(least.nodes) < len(graph.nodes)
