"""Reductions across lanes.

All lanes of a warp take part in every shuffle.
"""

from __future__ import annotations

import re

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import parse_ir
from cuts.ir.dfg import LaneReduce
from cuts.ir.kernel import phases
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType
from cuts.passes.geometry.row_sharing import column_run
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit

from ..needs import DEVICES
from .cases import builder, halves, legal_points, unite
from .test_points import SPACES, _device, check

GPU = find_target("cuda:sm_90")
#: A shuffle that is evaluated on its own: neither an operand of `?:` nor of anything else.
ALONE = re.compile(r"const [\w ]+ \w+ = __shfl_xor_sync\([^?:]*\);")


@pytest.mark.parametrize("op", ["argmin", "reduce_sum"])
def test_a_shuffle_is_never_evaluated_under_a_condition(op: str) -> None:
    make = builder()
    source = make.input(33)
    attributes = {"axis": 0} if op == "argmin" else {"axes": (0,)}
    result = make.node(op, source, **attributes)
    group = unite(make.programs(), result)
    shuffles = 0
    space = make_space(group, GPU)
    for structure in space.templates:
        for point in legal_points(space, structure, 1, 64):
            lines = emit(extract(lower(group, point, {}, GPU)), "cuda").source.splitlines()
            found = [line for line in lines if "__shfl" in line]
            shuffles += len(found)
            assert all(ALONE.fullmatch(line.strip()) for line in found)
    assert shuffles


def test_idle_threads_meet_others_in_lane_reductions() -> None:
    make = builder()
    first = make.node("reduce_min", make.input(16, 33), axes=(0, 1), keepdims=False)
    row = make.node("reduce_max", make.node("add", first, make.input(5, 33)), axes=(1,), keepdims=True)
    group = halves(make, first, 1, make.node("mul", row, make.input(5, 33)))
    assert isinstance(group, FusedGroup)
    space = make_space(group, GPU)
    kernels = 0
    for structure in space.templates:
        for point in legal_points(space, structure, 1, 64):
            combining = [
                p for p in phases(lower(group, point, {}, GPU).items) if any(isinstance(r, LaneReduce) for r in p.roots)
            ]
            kernels += bool(combining) and min(s.threads for s in point.segments) < point.threads
            assert not any(p.when for p in combining)
    assert kernels


@pytest.mark.parametrize("target", DEVICES)
def test_lanes_combine_whatever_number_of_instances(target: str) -> None:
    """Warps store their values together for up to warp-size instances."""
    make = builder()
    value = make.node("max", make.node("reduce_sum", make.input(130, 500), axes=(1,)), make.input(130, 1))
    group, space_of = unite(make.programs(), value), SPACES[target.split(":")[0]]
    space = make_space(group, space_of)
    seen = set()
    for structure in (s for s in space.templates if s.segments[-1].reduction_threads):
        for point in legal_points(space, structure, 5, 12):
            (segment,) = point.segments
            check(_device(target), space_of, group, point)
            seen.add((segment.reduction_threads > GPU.warp_size, segment.dims[0].thread > 1))
    assert (space_of.MAX_thread > GPU.warp_size, True) in seen


def test_warps_meet_twice_for_warp_size_instances() -> None:
    make = builder()
    value = make.node("reduce_sum", make.input(256, 4096), axes=(1,))
    group = unite(make.programs(), value)
    space = make_space(group, GPU)
    for structure in (s for s in space.templates if s.segments[-1].reduction_threads):
        for point in legal_points(space, structure, 2, 64):
            (segment,) = point.segments
            source = emit(extract(lower(group, point, {}, GPU)), "cuda").source
            if point.threads % GPU.warp_size == 0:
                barriers = (
                    2 * -(-segment.dims[0].thread // GPU.warp_size) if segment.reduction_threads > GPU.warp_size else 0
                )
                assert source.count("__syncthreads()") == barriers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "dtype"), [("softmax", DType.F32), ("softmax", DType.BF16), ("argmax", DType.F32)])
def test_whole_warps_divide_a_row(device: str, op: str, dtype: DType) -> None:
    make, target = builder(), evolve(GPU, warp_size=4, MAX_thread=64) if device == "opencl" else GPU
    row = make.node(op, make.input(3, 3 * 7 * 11 * 4 * target.warp_size, dtype=dtype), axis=1)
    group, found = unite(make.programs(), row), dict[int, Schedule]()
    for structure in make_space(group, target).templates:
        for point in legal_points(make_space(group, target), structure, 1, 256):
            found.setdefault(point.segments[0].reduction_threads // target.warp_size, point)
    assert {3, 7, 11} <= {*found}
    for warps in (3, 7, 11):
        check(_device(device), target, group, found[warps])


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("op", ["reduce_max", "reduce_sum", "argmin"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I64])
def test_columns_combine_between_any_lanes(target: str, op: str, dtype: DType) -> None:
    """A warp holds one or several threads of a column."""
    make = builder()
    source = make.input(700, 192, dtype=dtype)
    value = make.node(op, source, **({"axis": 0} if op == "argmin" else {"axes": (0,)}))
    group, space_of = unite(make.programs(), value), SPACES[target.split(":")[0]]
    space = make_space(group, space_of)
    seen = set()
    for structure in (s for s in space.templates if s.segments[-1].over_columns):
        for point in legal_points(space, structure, 3, 10):
            (segment,) = point.segments
            if segment.reduction_threads > 1:
                check(_device(target), space_of, group, point)
                seen.add(segment.threads // segment.reduction_threads)
    assert len(seen) > 1


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.I64, DType.F64], ids=str)
def test_columns_of_neighbours(target: str, dtype: DType) -> None:
    make = builder()
    grouped = make.node("reshape", make.input(3, 70, 24, dtype=dtype), shape=(3, 70, 6, 4))
    moved = make.node("sub", grouped, make.node("reduce_sum", grouped, axes=(1, 3), keepdims=True))
    group, space_of = unite(make.programs(), moved), SPACES[target.split(":")[0]]
    space, seen = make_space(group, space_of), set()
    for structure in (s for s in space.templates if s.segments[-1].over_columns):
        for point in legal_points(space, structure, 3, 12):
            check(_device(target), space_of, group, point)
            seen.add((point.segments[0].row_vector, point.segments[0].reduction_threads > 1))
    (vector,) = {vector for vector, several in seen if several}
    assert vector in (2, 4)


def test_rows_of_one_element_have_no_neighbours() -> None:
    text = "var i < 5, r < 1\n\ngroup {\n  tensor t0: f32[5, 1]\n  tensor t1: f32[5]\n  tensor acc0: f32[5]\n"
    text += "  inputs t0\n  outputs t1\n  segment (i) {\n    reduce acc0 = sum over (r) of t0[i, r]\n"
    group = parse_ir(text + "    output t1[i] = acc0[i]\n  }\n}\n")
    assert isinstance(group, FusedGroup) and column_run(group.segments[0], ()) == 0


def test_neighbours_of_columns_read_neighbours() -> None:
    make = builder()
    value = make.node("reduce_sum", make.input(4096, 256), axes=(0,))
    group = unite(make.programs(), value)
    space = make_space(group, GPU)
    structure = next(s for s in space.templates if s.segments[-1].over_columns)
    for point in legal_points(space, structure, 2, 16):
        (segment,) = point.segments
        source = emit(extract(lower(group, point, {}, GPU)), "cuda").source
        if segment.reduction_threads > 1 and segment.dims[0].threads > 1:
            assert f"s0l = ((tid) / {segment.dims[0].threads})" in source
