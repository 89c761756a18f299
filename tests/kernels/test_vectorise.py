"""Neighbouring aligned accesses of a thread become vectors.

They must be in range together.
"""

from __future__ import annotations

from collections import Counter

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.ir.affine import Guard, Var, as_index
from cuts.ir.dfg import Load, Store, Value, WideStore, Window, post_order
from cuts.ir.graph import Graph, Node
from cuts.ir.kernel import Kernel, Phase, phases
from cuts.ir.segment import FusedGroup
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.threads import vectorise_accesses
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import DEVICES, needs_opencl
from .cases import builder, legal_points, points, unite
from .test_points import GPU, SPACES, _device, check

T = Var("t", 8)


def output_transform(width: int) -> FusedGroup:
    """Return Winograd's output transform of 4 x 4 tiles.

    Results have a given width.
    """
    make = builder()
    tiles = -(-width // 4)
    value = make.node("winograd_output", make.input(6, 6, 2, 1, 2, tiles), sizes=(8, width))
    return unite(make.programs(), value)


def input_transform(width: int, pad: int = 1) -> FusedGroup:
    """Return Winograd's input transform of a padded input.

    Tiles are 4 x 4.
    """
    make = builder()
    value = make.node("winograd_input", make.input(1, 2, 8, width), tile=4, pads=(pad, pad, pad, pad))
    return unite(make.programs(), value)


def rows_transform(count: int) -> FusedGroup:
    """Return a transform of rows of four, stored along the rows.

    Some of its results are elements as they are.
    """
    text = """op rows "rows of four, transformed" {
      type T: float
      in x: T[N, 4]
      table A: T = [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
      out y: T[3, N]
      y[a, n] = sum[i < 4] A[a, i] * x[n, i]
    }"""
    make = evolve(builder(), registry=Registry.builtin().extend(Source("rows.cuts", text)))
    value = make.node("rows", make.input(count, 4))
    return unite(make.programs(), value)


def widths(group: FusedGroup) -> Counter[tuple[str, int]]:
    """Count stores and vector loads of the model's choice by width."""
    kernel = extract(lower(group, choose(group, GPU)[0].schedule, {}, GPU))
    found: Counter[tuple[str, int]] = Counter()
    for node in post_order(r for phase in phases(kernel.items) for r in phase.roots):
        if isinstance(node, WideStore):
            found["store", len(node.values)] += 1
        elif isinstance(node, Store):
            found["store", 1] += 1
        elif isinstance(node, Window) and node.axes[0].name.startswith("wide"):
            found["load", node.axes[0].extent] += 1
    return found


@pytest.mark.parametrize(("width", "expected"), [(16, {4: 4}), (14, {2: 8}), (15, {2: 4, 1: 8})])
def test_rows_of_a_tile_are_stored_at_once(width: int, expected: dict[int, int]) -> None:
    found = widths(output_transform(width))
    assert {n: count for (kind, n), count in found.items() if kind == "store"} == expected
    source = emit(
        extract(lower(output_transform(16), choose(output_transform(16), GPU)[0].schedule, {}, GPU)), "cuda"
    ).source
    assert source.count("make_float4") == 4


def test_loads_are_wide_where_tiles_are_aligned() -> None:
    assert widths(input_transform(16))["load", 4] == 6 * 4  # the four middle ones of six columns
    assert widths(input_transform(16, 0))["load", 4] == 6 * 4
    assert widths(input_transform(15))["load", 4] == 0


def one_phase(stores: tuple[Store, ...], aligned: int = 16) -> Phase:
    """Return a phase of stores after widening."""
    phase = Phase("compute", "p", stores, ())
    (found,) = phases(
        vectorise_accesses(Kernel(1, 1, (), (), (phase,), ("x",), ("y",), {"y": DType.F32}, {"y": aligned})).items
    )
    return found


def load(k: int) -> Value:
    return Load("global", "x", as_index(T) * 3 + k, DType.F32)


def store(k: int, guards: tuple[Guard, ...] = ()) -> Store:
    return Store("global", "y", as_index(T) * 4 + k, load(k), DType.F32, guards)


def test_what_is_not_aligned_or_not_complete_stays() -> None:
    four = tuple(store(k) for k in range(4))
    assert [type(r) for r in one_phase(four).roots] == [WideStore]
    assert [len(r.values) for r in one_phase(four, 8).roots if isinstance(r, WideStore)] == [2, 2]
    assert one_phase(four, 4).roots == four
    assert [type(r) for r in one_phase((four[1], four[2])).roots] == [Store, Store]
    assert [type(r) for r in one_phase(four[:3]).roots] == [WideStore, Store]
    assert [type(r) for r in one_phase(tuple(reversed(four))).roots] == [WideStore]


def test_guards_hold_together_or_nothing_is_merged() -> None:
    index = as_index(T) * 4
    walking = tuple(store(k, (Guard(index + k, 0, 12),)) for k in range(4))
    (merged,) = one_phase(walking).roots
    assert isinstance(merged, WideStore)
    assert merged.guards == (Guard(index, 0, 12),)
    split = tuple(store(k, (Guard(index + k, 0, 14),)) for k in range(4))  # the last tile is half inside
    assert [len(r.values) for r in one_phase(split).roots if isinstance(r, WideStore)] == [2, 2]
    odd = tuple(store(k, (Guard(index + k, 0, 13),)) for k in range(4))
    assert one_phase(odd).roots == odd
    common = tuple(store(k, (Guard(as_index(T), 0, 5),)) for k in range(4))
    (merged,) = one_phase(common).roots
    assert merged.guards == (Guard(as_index(T), 0, 5),)
    other = (store(0, (Guard(as_index(T), 0, 5),)), *(store(k) for k in range(1, 4)))
    assert [type(r) for r in one_phase(other).roots] == [Store, Store, WideStore]


@needs_opencl
def test_vector_elements_are_stored_in_other_direction() -> None:
    """Each row is loaded at once.

    First elements of four rows, which nothing changes, are stored at once.
    """
    group = rows_transform(64)
    for structure in (space := make_space(group, SPACES["opencl"])).templates:
        for schedule in legal_points(space, structure, 1, 256):
            (dim,) = schedule.segments[0].dims
            if dim.vector > 1:
                check(_device("opencl"), SPACES["opencl"], group, schedule)
                return
    pytest.fail("no point stores vectors")


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_points_of_transforms_compute_what_they_mean(device: str, data: st.DataObject) -> None:
    width = data.draw(st.integers(9, 18))
    transforms = [output_transform(width), input_transform(width), input_transform(width, 0), rows_transform(4 * width)]
    group = data.draw(st.sampled_from(transforms))
    schedule = data.draw(points(group, SPACES[device]))
    assume(schedule is not None)
    check(_device(device), SPACES[device], group, schedule)


@needs_opencl
@pytest.mark.parametrize(("kind", "vector"), [(DType.F64, "double2"), (DType.I64, "longlong2")])
def test_numbers_of_eight_bytes_move_in_pairs(kind: DType, vector: str) -> None:
    type_ = TensorType(kind, (2048, 512))
    made = Graph("g", ("x",), ("y",), {"x": type_, "y": type_}, (Node("n", "add", ("x", "x"), ("y",), {}),))
    (kernel,) = cuts.build(made, target="cuda:sm_90").kernels
    assert f"const {vector}*" in kernel.source and f"make_{vector}" in kernel.source
    x = np.arange(1 << 20, dtype=kind.numpy).reshape(2048, 512) - 99
    np.testing.assert_array_equal(cuts.build(made, target="opencl").run({"x": x})["y"], x + x)
