"""Rejection of rewrites without normal forms, and of unfit algorithms.

Neither reaches a user as an error.
"""

from __future__ import annotations

import logging
from importlib import import_module

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.affine import Var, as_index
from cuts.ir.compiled import CompileOptions
from cuts.ir.errors import InternalError, PassError
from cuts.ir.expr import Read
from cuts.ir.graph import Graph
from cuts.ir.machine import PrecisionName
from cuts.ir.statement import Statement
from cuts.ir.types import DType
from cuts.ops import Registry
from cuts.passes.context import CompileContext
from cuts.passes.costs import candidate_subgraphs as fragments
from cuts.passes.costs.analytic_cost import AnalyticCost
from cuts.passes.fusion import (
    FusionError,
    GroupBuilder,
    Policy,
    Programs,
    build_programs,
    defer_normalisation,
    find_ungroupable,
    find_views,
    recompute_contractions,
)
from cuts.passes.fusion.align import check_counts
from cuts.passes.partitioning.choose_algorithms import ChooseAlgorithms
from cuts.passes.pipeline import compile_graph
from cuts.passes.results import Algorithms
from cuts.passes.rewrites import program_rewrite, rewrite_statements, write_statements

from ..fuzz.chance import Chance
from ..kernels.cases import Builder, ByModel, builder

REGISTRY = Registry.builtin()
#: A GPU whose cache holds nothing: whether products are computed again is asked of every graph.
TARGET = evolve(find_target("cuda:sm_90"), l2_bytes=1)


def _scale(make: Builder, value: str, filters: int) -> str:
    channels = make.types[value].shape[1]
    return make.node("conv", value, make.input(filters, channels, 1, 1))


def _enlarge(make: Builder, value: str) -> str:
    """Return a pyramid's coarse level at twice its size, each element four times."""
    n, c, h, w = make.types[value].shape
    spread = make.node("reshape", value, shape=(n, c, h, 1, w, 1))
    return make.node("reshape", make.node("tile", spread, repeats=(1, 1, 1, 2, 1, 2)), shape=(n, c, 2 * h, 2 * w))


def pyramid(make: Builder) -> str:
    """Return a fine level plus an enlarged coarse one (feature pyramid)."""
    return make.node(
        "add", _scale(make, make.input(1, 4, 8, 8), 8), _enlarge(make, _scale(make, make.input(1, 4, 4, 4), 8))
    )


def residual(make: Builder) -> str:
    """Return a product plus a product of it."""
    first = _scale(make, make.input(1, 4, 8, 8), 8)
    return make.node("add", first, _scale(make, first, 8))


def crop_graph(make: Builder) -> str:
    """Return a product plus the middle of a larger one."""
    larger = make.node("slice", _scale(make, make.input(1, 4, 10, 10), 8), starts=(1, 1), ends=(9, 9), axes=(2, 3))
    return make.node("add", _scale(make, make.input(1, 4, 8, 8), 8), larger)


def pad_graph(make: Builder) -> str:
    """Return a product among zeros."""
    return make.node("pad", _scale(make, make.input(1, 4, 8, 8), 8), pads=(0, 0, 1, 1, 0, 0, 1, 1))


def graph_of(kind: str) -> Graph:
    """Return a graph of two products that read results of light nodes."""
    make = builder()
    value = {"pyramid": pyramid, "residual": residual, "cropped": crop_graph, "padded": pad_graph}[kind](make)
    ends = (_scale(make, value, 6), _scale(make, value, 5))
    return Graph(kind, tuple(make.inputs), ends, dict(make.types), tuple(make.nodes))


KINDS = ("pyramid", "residual", "cropped", "padded")


@pytest.mark.parametrize("kind", KINDS)
def test_products_without_a_normal_form_stay(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    programs = build_programs(graph_of(kind), REGISTRY)
    with caplog.at_level(logging.INFO, "cuts.passes"):
        assert recompute_contractions(programs) is programs
    assert "has no normal form" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_such_graphs_compile(kind: str) -> None:
    assert compile_graph(graph_of(kind), REGISTRY, TARGET, CompileOptions(), emit).kernels


def _split_units(programs: Programs) -> Programs:
    """Return programs whose first two units are one, which has no normal form."""
    first, second, *rest = programs.units
    joined = evolve(first, statements=(*first.statements, *second.statements), reads=(*first.reads, *second.reads),
                    writes=(*first.writes, *second.writes))  # fmt: skip
    return evolve(programs, units=(joined, *rest))


def test_a_rewrite_without_normal_forms_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of("residual")
    programs = build_programs(graph, REGISTRY)
    found = find_ungroupable(programs, _split_units(programs))
    assert found is not None and found.unit.name in found.text
    assert find_ungroupable(programs, programs) is None
    context = CompileContext(REGISTRY, TARGET, CompileOptions(), emit)
    written = write_statements(Algorithms(graph, graph), context)
    torn = program_rewrite("torn", _split_units, "two units are joined", "")
    with caplog.at_level(logging.INFO, "cuts.passes"):
        assert rewrite_statements(written, context, torn) is written
    assert "rewrite 'torn' is left out" in caplog.text


def test_a_unit_without_a_normal_form_is_named() -> None:
    programs = _split_units(build_programs(graph_of("residual"), REGISTRY))
    group_builder = GroupBuilder(find_views(defer_normalisation(programs)), Policy())
    with pytest.raises(PassError, match=r"stage 'partition': node '.*' \(conv\)"):
        group_builder.single(programs.units[0].name)


def image(size: int, batch: int) -> Graph:
    """Return a convolution of some images."""
    make = builder()
    y = make.node("conv", make.input(batch, 4, 14, 14), make.input(4, 4, size, size), pads=(size // 2,) * 4)
    return Graph("empty", tuple(make.inputs), (y,), dict(make.types), tuple(make.nodes))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("size", [3, 5])
def test_algorithms_of_empty_results_are_left_out(size: int, precision: PrecisionName) -> None:
    graph, options = image(size, 0), CompileOptions(precision=precision)
    compile_graph(graph, REGISTRY, TARGET, options, emit)
    ByModel(TARGET).compile(graph, REGISTRY, TARGET, options, emit)


def test_an_algorithm_with_unfit_steps_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    graph = image(5, 0)
    assert REGISTRY.instances.of_node(graph.nodes[0], graph).algorithms
    step = ChooseAlgorithms(REGISTRY.instances, AnalyticCost(TARGET), TARGET, "mixed")
    with caplog.at_level(logging.INFO, "cuts.passes"):
        assert step.run(graph) is graph
    assert "algorithm 'fourier_8' is left out" in caplog.text
    assert np.isfinite(step.choices[0].seconds[""])


@pytest.mark.parametrize("deciding", ["model", "chance"])
def test_updates_of_a_tensor_without_elements_go(deciding: str) -> None:
    make = builder()
    scattered = make.node("gather_grad", make.input(3), make.input(3, dtype=DType.I64), axis=0, size=0)
    ends = (make.node("sigmoid", scattered), make.node("exp", "in 0"))
    graph = Graph("none", tuple(make.inputs), ends, dict(make.types), tuple(make.nodes))
    assert not REGISTRY.instances.of_node(graph.nodes[0], graph).program.statements
    run = Chance(TARGET).compile if deciding == "chance" else compile_graph
    run(graph, REGISTRY, TARGET, CompileOptions(), emit)


def test_elements_are_not_matched_with_none() -> None:
    empty, one, three = ((Var(f"{n}_i", n),) for n in (0, 1, 3))
    first = Statement("a", three, tuple(map(as_index, three)), Read("x", tuple(map(as_index, three))))
    for axes in (empty, one):
        following = Statement("b", axes, tuple(map(as_index, axes)), Read("a", tuple(map(as_index, axes))))
        with pytest.raises(FusionError, match="cannot be matched"):
            check_counts([following, first], ["a", "b"])


def _fails(*_: object) -> None:
    raise ValueError("planted")


@pytest.mark.parametrize(("module", "name", "place"), [
    ("make_kernels", "extract", "stage 'extract': units 'node 0'"), ("place_tensors", "find_views", "stage 'views'"),
    ("graph.simplification.canonicalise", "run_passes", "pass 'canonicalise'"),
])  # fmt: skip
def test_a_fault_names_its_stage_and_nodes(module: str, name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module(f"cuts.passes.{module}"), name, _fails)
    with pytest.raises(InternalError, match=place + ".*: ValueError: planted") as found:
        compile_graph(graph_of("padded"), REGISTRY, find_target("opencl"), CompileOptions(mode="no-fusion"), emit)
    assert isinstance(found.value.__cause__, ValueError)


def test_a_candidate_with_a_fault_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fragments, "choose_layouts", _fails)
    with caplog.at_level(logging.WARNING, "cuts.passes"):
        assert ByModel(TARGET).compile(image(3, 1), REGISTRY, TARGET, CompileOptions(), emit).kernels
    assert "candidate kernels of nodes node 0: ValueError: planted" in caplog.text
