"""Computed operands move sixteen bytes at once, as copied ones do."""

from __future__ import annotations

import re

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import FusedGroup, ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim, parse_ir
from cuts.passes.lowering import extract, lower
from cuts.passes.schedule import check_schedule
from cuts.tests.emission import emit

H200 = find_target("cuda:h200")
CONVOLUTION = """var i < 14, j < 14, k < 64, r < 3, s < 3, c < 64

group {{
  tensor "w": f16[64, 3, 3, 64]
  tensor "x": f16[28, 28, 64]
  tensor "z": f16[28, 28, 64]
  tensor "y": f16[14, 14, 64]
  tensor acc: f32[14, 14, 64]
  inputs "w", "x", "z"
  outputs "y"
  segment (i, j, k) {{
    reduce acc = sum over (r, s, c) of "w"[k, r, s, c] * {operand}
    output "y"[i, j, k] = f16(acc[i, j, k])
  }}
}}
"""
PLACE = "[2*i + r - 1, 2*j + s - 1, c if 0 <= 2*i + r - 1 < 28, 0 <= 2*j + s - 1 < 28 else 0]"


def staged_point(group: FusedGroup) -> Schedule:
    """Return a point with both operands staged and matrix instructions.

    A warp has 16 channels of 8 pixels.
    """
    i, j, k = group.segments[0].axes
    (reduction,) = group.segments[0].reductions
    dims = TileDim((i, j), 8, 2, 2), TileDim((k,), 16, 2)
    staging = tuple(Staging(n, (1, 0), 8) for n in range(2))
    loop = ReductionSchedule((ReduceDim(reduction.reduce, 64),), staging, 4, "m16n8k16_f16", 1, 0, 1)
    return Schedule((SegmentSchedule(dims, (loop,)),))


@pytest.mark.parametrize("operand", [f'max("x"{PLACE}, 0.0:f16)', f'("x"{PLACE} + "z"{PLACE})'])
def test_a_computed_operand_is_fetched_in_vectors(operand: str) -> None:
    group = parse_ir(CONVOLUTION.format(operand=operand))
    assert isinstance(group, FusedGroup)
    unread = () if '"z"' in operand else ("z",)
    group = evolve(
        group,
        inputs=tuple(t for t in group.inputs if t not in unread),
        tensors={t: kind for t, kind in group.tensors.items() if t not in unread},
    )
    assert check_schedule(group, staged_point(group), H200) == []
    source = emit(extract(lower(group, staged_point(group), {}, H200)), "cuda").source
    body = source[source.index("__global__") :]
    assert "cuts_guarded4(" in body and "make_uint4(" in body
    assert not re.search(r"cuts_from_f16\(p\d", body), "no element is fetched alone"


def test_a_converted_operand_is_selected_and_rounded_once() -> None:
    text = CONVOLUTION.format(operand=f'f16("x"{PLACE})').replace('"x": f16', '"x": f8e4m3')
    group = parse_ir(
        "\n".join(line for line in text.splitlines() if '"z"' not in line or "inputs" in line).replace(', "z"', "")
    )
    assert isinstance(group, FusedGroup)
    assert check_schedule(group, staged_point(group), H200) == []
    source = emit(extract(lower(group, staged_point(group), {}, H200)), "cuda").source
    body = source[source.index("__global__") :]
    assert "cuts_guarded_pairs4(" in body
    assert " ? " not in body, "a missing element is 0 as it is loaded"
    assert "cuts_from_f16(" not in body, "a half has all numbers of eight bits"
