"""Packed constants: the layout changes, the meaning does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.compiled import Storage
from cuts.ir.graph import Graph
from cuts.ir.machine import Target
from cuts.ir.types import DType
from cuts.ops import Registry
from cuts.ops.language import assignment
from cuts.ops.reference import evaluate_graph
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.partition import partition
from cuts.passes.fusion.grouping.partitioner import Partitioner
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.layout.pack import pack_constants
from cuts.tests.kernels.cases import builder

from ..fusion.build import run_groups

GPU = find_target("cuda:sm_90")
WITHOUT = evolve(GPU, atoms=())


def _pack(make, weight: str, target: Target = WITHOUT):  # type: ignore[no-untyped-def]
    """Return the group of the last node before and after its constants were packed, and the graphs of either."""
    array = np.random.default_rng(0).standard_normal(make.types[weight].shape).astype(make.types[weight].dtype.numpy)
    inputs = tuple(i for i in make.inputs if i != weight)
    graph = Graph("case", inputs, (make.nodes[-1].outputs[0],), dict(make.types), tuple(make.nodes), {weight: array})
    programs = build_programs(graph, Registry.builtin())
    packed = pack_constants(programs, target)
    groups = [GroupBuilder(find_views(p), Policy()).single(p.units[-1].name) for p in (programs, packed)]
    return *groups, find_views(packed), packed.graph


@pytest.mark.parametrize(
    ("shape", "weights", "attributes", "stored"),
    [
        ((1, 6, 9, 9), (8, 6, 3, 3), {"pads": (1, 1, 1, 1)}, (6, 3, 3, 8)),
        ((1, 6, 9, 9), (8, 3, 3, 3), {"groups": 2}, (3, 3, 3, 8)),
    ],
)
def test_filters_are_stored_with_output_channels_innermost(shape, weights, attributes, stored) -> None:  # type: ignore[no-untyped-def]
    make = builder()
    x, w = make.input(*shape), make.input(*weights)
    make.node("conv", x, w, **attributes)
    group, packed, views, graph = _pack(make, w)
    name = next(t for t in packed.inputs if t in graph.constants)
    assert graph.constants[name].shape == stored
    assert views.storage(name) == Storage(name, 0, graph.types[name].strides)
    data = {x: np.random.default_rng(1).standard_normal(shape)} | dict(graph.constants)
    before = interpret(group.form, {t: data[group.tensors[t]] for t in group.form.inputs})
    after = interpret(packed.form, {t: data[packed.tensors[t]] for t in packed.form.inputs})
    for tensor in group.form.outputs:
        np.testing.assert_array_equal(before[tensor], after[tensor])


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_matrix_times_few_vectors_keeps_its_layout(rows: int) -> None:
    make = builder()
    x, w = make.input(rows, 16), make.input(24, 16)
    make.node("gemm", x, w, trans_b=True)
    group, packed, _, _ = _pack(make, w)
    assert packed.tensors == group.tensors


@pytest.mark.parametrize(("depth", "stored"), [(16, (64, 16)), (18, (18, 64))])
def test_factors_lie_along_the_depth_in_vectors(depth: int, stored: tuple[int, int]) -> None:
    make = builder()
    x, w = make.input(32, depth, dtype=DType.F16), make.input(depth, 64, dtype=DType.F16)
    make.node("matmul", x, w)
    _, packed, _, graph = _pack(make, w, GPU)
    name = next(t for t in packed.tensors.values() if t in graph.constants)
    assert graph.constants[name].shape == stored


def test_each_reader_has_its_constants_own_order() -> None:
    """One product has columns innermost, one rows, a copy neither."""
    make = builder()
    x, y, w = make.input(32, 24), make.input(32, 64), make.input(24, 64)
    there, back = make.node("matmul", x, make.node("exp", w)), make.node("gemm", y, w, trans_b=True)
    straight = make.node("matmul", x, w)
    outputs = (there, back, straight, make.node("neg", w))
    array = np.random.default_rng(0).standard_normal((24, 64)).astype(np.float32)
    graph = Graph("case", (x, y), outputs, dict(make.types), tuple(make.nodes), {w: array})
    registry = Registry.builtin()
    programs = pack_constants(build_programs(graph, registry), WITHOUT)
    read = [t for unit in programs.units for t in unit.reads if t.startswith(w)]
    assert sorted(set(read)) == [w, f"{w} in order 1, 0"]
    rng = np.random.default_rng(1)
    _computes(graph, programs, {t: rng.standard_normal(graph.types[t].shape) for t in graph.inputs})


def test_weights_of_loops_are_packed_for_iterations() -> None:
    make = builder()
    x, w, r = make.input(5, 32, 24), make.input(1, 64, 24), make.input(1, 64, 64)
    y = make.node("rnn", x, w, r)
    rng = np.random.default_rng(0)
    known = {t: 0.1 * rng.standard_normal(make.types[t].shape).astype(np.float32) for t in (w, r)}
    graph = Graph("case", (x,), (y,), dict(make.types), tuple(make.nodes), known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "MAX_UNROLLED_ASSIGNMENTS", 0)
        programs = pack_constants(build_programs(graph, Registry.builtin()), WITHOUT)
    (loop,) = [unit for unit in programs.units if unit.repeat is not None]
    assert f"{r} in order 0, 2, 1" in loop.reads
    _computes(graph, programs, {x: rng.standard_normal((5, 32, 24))})


def _computes(graph: Graph, programs: Programs, given: Mapping[str, Any]) -> None:
    """Hold the groups of programs to the reference."""
    views = find_views(programs)
    groups = partition(Partitioner(GroupBuilder(views, Policy()), Roofline(WITHOUT)), "mixed")
    found = run_groups(groups, views, {**programs.graph.constants, **given})
    for name, expected in evaluate_graph(graph, Registry.builtin(), given).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6)
