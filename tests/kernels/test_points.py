"""Every legal point of every group computes the reference.

Generated kernels run and are compared with the interpreter.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.device import Buffer, Device, Pointer
from cuts.backends.devices import find_target, open_device
from cuts.ir.compiled import KernelFunction
from cuts.ir.machine import Target
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.passes.fusion.interpret import interpret
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl
from .cases import arrays, chains, pairs, points
from .judging import judge

pytestmark = pytest.mark.as_users_build

GPU = find_target("cuda:sm_90")
#: The GPU's space as PoCL tests draw from it: smaller work groups, because PoCL takes seconds to compile large ones
#: with barriers.
SMALL_GPU = evolve(GPU, MAX_thread=32, MAX_shared=16384)
SPACES = {"opencl": SMALL_GPU, "cuda": GPU}
_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@cache
def _device(name: str) -> Device:
    return open_device(find_target(name))


def _run(
    device: Device, function: KernelFunction, group: FusedGroup, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run one kernel on poisoned outputs between guard zones, and check that no guard zone was touched."""
    buffers: dict[str, Buffer] = {}
    margin = 256
    values = dict(inputs) | {
        t: np.full(k.shape, np.nan if k.dtype.is_float else 77, k.dtype.numpy)
        for t, k in ((t, group.tensors[t]) for t in group.outputs)
    }
    for name, array in values.items():
        buffers[name] = device.allocate(array.nbytes + 2 * margin)
        device.upload(Pointer(buffers[name]), np.full(array.nbytes + 2 * margin, 0xA5, np.uint8))
        device.upload(Pointer(buffers[name], margin), np.ascontiguousarray(array))
    (loaded,) = device.build([function])
    device.bind(loaded, function, [Pointer(buffers[a.tensor], margin) for a in function.arguments])()
    device.synchronize()
    found = {}
    for name in group.outputs:
        zone = np.empty(values[name].nbytes + 2 * margin, np.uint8)
        device.download(zone, Pointer(buffers[name]))
        assert (zone[:margin] == 0xA5).all() and (zone[-margin:] == 0xA5).all(), "the kernel wrote outside its output"
        found[name] = zone[margin:-margin].view(values[name].dtype).reshape(values[name].shape)
    return found


def check(device: Device, target: Target, group: FusedGroup, schedule: Schedule) -> None:
    """Assert that a point computes its group."""
    function = emit(extract(lower(group, schedule, {}, target)), device.target.dialect)
    inputs = arrays(group, 1)
    found = _run(device, function, group, inputs)
    expected = interpret(group, inputs)
    for name in group.outputs:
        result = judge(name, group, inputs, found[name], expected[name])
        assert result.error <= result.tolerance, f"{result}\n{schedule}\n{function.source}"


@needs_opencl
@settings(max_examples=examples(25, 1200), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_register_level_points_opencl(data: st.DataObject) -> None:
    group = data.draw(chains())
    schedule = data.draw(points(group, SMALL_GPU))
    assume(schedule is not None)
    check(_device("opencl"), SMALL_GPU, group, schedule)


@needs_opencl
@settings(max_examples=examples(10, 500), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_shared_level_points_opencl(data: st.DataObject) -> None:
    group = data.draw(pairs())
    schedule = data.draw(points(group, SMALL_GPU))
    assume(schedule is not None)
    check(_device("opencl"), SMALL_GPU, group, schedule)


@needs_cuda
@pytest.mark.parametrize("share", range(4))
@settings(max_examples=100, deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_register_level_points_cuda(share: int, data: st.DataObject) -> None:
    group = data.draw(chains())
    schedule = data.draw(points(group, GPU))
    assume(schedule is not None)
    check(_device("cuda"), GPU, group, schedule)


@needs_cuda
@pytest.mark.parametrize("share", range(2))
@settings(max_examples=75, deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_shared_level_points_cuda(share: int, data: st.DataObject) -> None:
    group = data.draw(pairs())
    schedule = data.draw(points(group, GPU))
    assume(schedule is not None)
    check(_device("cuda"), GPU, group, schedule)
