"""Kernels that share a launch compute the same as alone.

Bundles of random groups run and are compared with the interpreter.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.device import Device
from cuts.ir.kernel import HorizontalKernel, Kernel, member_name
from cuts.ir.machine import Target
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir, print_ir
from cuts.passes.fusion.interpret import interpret
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.partitioning.shared_launches import join_forms
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl
from .cases import arrays, builder, chains, pairs, points, unite
from .judging import judge
from .test_points import _SUPPRESSED_CHECKS, GPU, SMALL_GPU, _device, _run

#: PoCL's handling of barriers under conditions depends on how it optimises.
pytestmark = pytest.mark.as_users_build


@st.composite
def members(draw: st.DrawFn, target: Target) -> list[tuple[FusedGroup, Kernel]]:
    """Draw kernels of groups, some of them several times.

    They are only as wide as the first where threads meet.
    """
    found: list[tuple[FusedGroup, Kernel]] = []
    for _ in range(draw(st.integers(1, 3))):
        group = draw(st.one_of(chains(), pairs()))
        schedule = draw(points(group, target))
        assume(schedule is not None)
        found += [(group, extract(lower(group, schedule, {}, target)))] * draw(st.integers(1, 3))
    assume(len(found) > 1 and HorizontalKernel(tuple(kernel for _, kernel in found)).legal)
    return found


def check(device: Device, drawn: list[tuple[FusedGroup, Kernel]]) -> None:
    """Assert that each member of a bundle computes its group."""
    bundle = HorizontalKernel(tuple(kernel for _, kernel in drawn))
    function = emit(bundle, device.target.dialect)
    whole = join_forms([group for group, _ in drawn])
    inputs = arrays(whole, 1)
    found = _run(device, function, whole, inputs)
    for number, (group, _) in enumerate(drawn):
        given = {t: inputs[member_name(number, t)] for t in group.inputs}
        expected = interpret(group, given)
        for tensor, value in expected.items():
            if tensor not in group.outputs:
                continue
            name = member_name(number, tensor)
            result = judge(tensor, group, given, found[name], value)
            assert result.error <= result.tolerance, f"{result}\n{function.source}"


#: A kernel of two blocks whose threads meet; rows after the fifth do not exist.
MEETING = """
var blk < 2, tid < 4

kernel blocks 2 threads 4 {
  reads "in 0"
  writes v0
  dtype "in 0": f32
  dtype v0: f32
  buffer a: f32[4]
  phase fetch fill {
    %0: f32 = load global "in 0"[4*blk + tid] if 0 <= 4*blk + tid < 5 else 0
    store shared a[tid]: f32 = %0
  }
  barrier
  phase exit leave {
    %0: f32 = load shared a[tid]
    %1: f32 = %0 + %0
    store global v0[4*blk + tid]: f32 = %1 if 0 <= 4*blk + tid < 5
  }
}
"""
#: One whose threads do not.
WITHOUT_BARRIER = """
var tid < 4

kernel blocks 1 threads 4 {
  reads "in 0"
  writes v0
  dtype "in 0": f32
  dtype v0: f32
  phase exit leave {
    %0: f32 = load global "in 0"[tid]
    %1: f32 = %0 + %0
    store global v0[tid]: f32 = %1
  }
}
"""
#: A kernel whose threads do not meet; the last of them do not exist in every third block.
LEAVING = """
var blk < 9, tid < 8, image < 3, left < 3, row < 4, column < 2, i < 5

kernel blocks 9 threads 8 {
  reads "in 0"
  writes v1
  dtype "in 0": f32
  dtype v1: f32
  define image = (blk // 3)
  define left = (blk % 3)
  define row = (tid // 2)
  define column = (tid % 2)
  phase compute init {
    initialise acc0[1, 1, 1]: f32 for sum
  }
  phase compute add unroll i {
    %0: f32 = load global "in 0"[4*i + row]
    accumulate acc0[0, 0, 0]: f32 = sum of %0 over (i)
  }
  phase exit leave {
    %0: f32 = held acc0[0, 0, 0]
    store global v1[20*image + 5*row + 2*left + column]: f32 = %0 if 0 <= 2*left + column < 5
  }
}
"""


def doubling_group(rows: int) -> FusedGroup:
    """Return a group that adds a vector to itself."""
    make = builder()
    value = make.input(rows)
    total = make.node("add", value, value)
    return unite(make.programs(), total)


@needs_opencl
@pytest.mark.parametrize("first", [MEETING, WITHOUT_BARRIER])
def test_threads_leave_member_as_their_own_opencl(first: str) -> None:
    """PoCL lets all threads leave a condition as the first does.

    They leave after the last barrier under it.
    """
    drawn = [(doubling_group(5), parse_ir(MEETING)), (doubling_group(4), parse_ir(WITHOUT_BARRIER))]
    check(_device("opencl"), drawn if first is MEETING else drawn[::-1])


@needs_opencl
def test_idle_threads_store_under_own_condition_opencl() -> None:
    """PoCL let all threads store where the first one does.

    They stored next to and beyond their own elements.
    """
    make = builder()
    rows = make.node("reduce_sum", make.input(5, 4, 1), axes=(0,), keepdims=True)
    spread = make.node("expand", rows, shape=(3, 4, 5))
    wider = parse_ir(MEETING.replace("4", "8").replace("< 5", "< 9"))
    check(_device("opencl"), [(unite(make.programs(), spread), parse_ir(LEAVING)), (doubling_group(9), wider)])


@needs_opencl
@settings(max_examples=examples(8, 500), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(members(SMALL_GPU))
def test_bundles_compute_what_their_members_do_opencl(drawn: list[tuple[FusedGroup, Kernel]]) -> None:
    check(_device("opencl"), drawn)


@needs_cuda
@pytest.mark.parametrize("share", range(2))
@settings(max_examples=75, deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(members(GPU))
def test_bundles_compute_what_their_members_do_cuda(share: int, drawn: list[tuple[FusedGroup, Kernel]]) -> None:
    check(_device("cuda"), drawn)


@settings(max_examples=examples(8, 300), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(members(SMALL_GPU))
def test_a_bundle_is_printed_and_read_back(drawn: list[tuple[FusedGroup, Kernel]]) -> None:
    bundle = HorizontalKernel(tuple(kernel for _, kernel in drawn))
    assert print_ir(parse_ir(print_ir(bundle))) == print_ir(bundle)


@settings(max_examples=examples(8, 300), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(members(GPU))
def test_bundle_takes_maximum_of_member_resources(drawn: list[tuple[FusedGroup, Kernel]]) -> None:
    kernels = [kernel for _, kernel in drawn]
    bundle = HorizontalKernel(tuple(kernels))
    for dialect in ("cuda", "opencl"):
        whole, parts = emit(bundle, dialect), [emit(kernel, dialect) for kernel in kernels]
        assert whole.grid[0] == sum(part.grid[0] for part in parts)
        assert whole.block[0] == max(part.block[0] for part in parts)
        assert whole.shared_bytes + whole.dynamic_shared == max(k.shared_bytes for k in kernels)
        pointers = sum(len(part.arguments) for part in parts)
        assert len(whole.arguments) == pointers
        assert all(np.prod(a.tensor.count(".")) >= 1 for a in whole.arguments)
