"""Reductions across lanes: all lanes of a warp take part in every shuffle, whatever they combine."""

from __future__ import annotations

import re

import pytest
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.dfg import LaneReduce
from cuts.ir.kernel import phases
from cuts.ir.segment import FusedGroup
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.space import make_space

from .cases import builder, halves, legal_points, whole

GPU = find_target("cuda:sm_90")
#: A shuffle that is evaluated on its own: neither an operand of `?:` nor of anything else.
ALONE = re.compile(r"const [\w ]+ \w+ = __shfl_xor_sync\([^?:]*\);")


@pytest.mark.parametrize("op", ["argmin", "reduce_sum"])
def test_a_shuffle_is_never_evaluated_under_a_condition(op: str) -> None:
    make = builder()
    source = make.input(33)
    attributes = {"axis": 0} if op == "argmin" else {"axes": (0,)}
    result = make.node(op, source, **attributes)
    group = whole(make.programs(), result)
    shuffles = 0
    space = make_space(group, GPU)
    for structure in space.structures:
        for point in legal_points(space, structure, 1, 16):
            lines = emit(extract(lower(group, point, {}, GPU)), "cuda").source.splitlines()
            found = [line for line in lines if "__shfl" in line]
            shuffles += len(found)
            assert all(ALONE.fullmatch(line.strip()) for line in found)
    assert shuffles


def test_threads_that_take_no_part_meet_the_others_where_lanes_combine() -> None:
    make = builder()
    first = make.node("reduce_min", make.input(16, 33), axes=(0, 1), keepdims=False)
    row = make.node("reduce_max", make.node("add", first, make.input(5, 33)), axes=(1,), keepdims=True)
    group = halves(make, first, 1, make.node("mul", row, make.input(5, 33)))
    assert isinstance(group, FusedGroup)
    space = make_space(group, GPU)
    kernels = 0
    for structure in space.structures:
        for point in legal_points(space, structure, 1, 64):
            combining = [
                p for p in phases(lower(group, point, {}, GPU).items) if any(isinstance(r, LaneReduce) for r in p.roots)
            ]
            kernels += bool(combining) and min(s.threads for s in point.segments) < point.threads
            assert not any(p.when for p in combining)
    assert kernels
