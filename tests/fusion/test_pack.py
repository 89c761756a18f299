"""Packed constants: the layout changes, the meaning does not."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.graph import Graph
from cuts.ir.launch import Storage
from cuts.ops import Registry
from cuts.passes.fusion.groups import Workshop
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.pack import pack_constants
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views
from cuts.tests.kernels.cases import builder


def _packed(make, weight: str, atoms: bool = False):  # type: ignore[no-untyped-def]
    array = np.random.default_rng(0).standard_normal(make.types[weight].shape).astype(np.float32)
    inputs = tuple(i for i in make.inputs if i != weight)
    graph = Graph("case", inputs, (make.nodes[-1].outputs[0],), dict(make.types), tuple(make.nodes), {weight: array})
    views = find_views(build_programs(graph, Registry.builtin()))
    group = Workshop(views, Policy()).single(views.programs.units[0].name)
    (packed,), views, graph = pack_constants([group], views, graph, lambda form: atoms)
    return group, packed, views, graph


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
    group, packed, views, graph = _packed(make, w)
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
    group, packed, _, _ = _packed(make, w)
    assert packed.tensors == group.tensors


@pytest.mark.parametrize(("depth", "stored"), [(16, (64, 16)), (18, (18, 64))])
def test_what_atoms_multiply_lies_along_the_depth_in_whole_vectors(depth: int, stored: tuple[int, int]) -> None:
    make = builder()
    x, w = make.input(32, depth), make.input(depth, 64)
    make.node("matmul", x, w)
    _, packed, _, graph = _packed(make, w, atoms=True)
    name = next(t for t in packed.tensors.values() if t in graph.constants)
    assert graph.constants[name].shape == stored
