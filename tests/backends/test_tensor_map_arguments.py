"""Tensor maps as arguments of kernels.

They are encoded for an address, again where a tensor moves, and stored in plans.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve
from cuts.backends import BlockAddress, KernelCall, SequencePlan, find_target
from cuts.backends.cuda import CudaSequenceLauncher
from cuts.backends.cuda.arguments import (
    MAP_BYTES,
    PackedParameters,
    encode_tensor_map,
)
from cuts.backends.cuda.bindings import CheckedCalls
from cuts.ir import BackendError, TensorMap
from cuts.ir.compiled import Argument, KernelFunction
from cuts.ir.types import DType
from cuts.runtime.files import load_plan, save_plan
from cuts.tests.backends.fake_driver import FakeDriver
from cuts.tests.needs import needs_c_compiler
from cuts.tests.runtime.handmade import example_plan

from .test_launch_sequence import Memory, double, floats

pytestmark = needs_c_compiler()
MAP = TensorMap("map0", "t0", DType.F32, (4, 2), (16,), (4, 1), 0)
#: A kernel whose first argument is a tensor map, which the fake driver lets begin with the address.
KERNEL = KernelFunction(
    "double", "cuda", "", (1, 1, 1), (4, 1, 1),
    (Argument("t0", DType.F32, False, map=MAP), Argument("t1", DType.F32, True)),
)  # fmt: skip
PLAN = SequencePlan(
    blocks=(32, 16), fixed=0, calls=(KernelCall(0, ((BlockAddress(0, 16), BlockAddress(1)),)),), order=((0, 0),)
)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver({"double": double})


def test_a_map_is_encoded_by_the_driver(driver: FakeDriver) -> None:
    cu = CheckedCalls(driver)
    strided = TensorMap("map1", "a", DType.BF16, (64, 8, 2), (128, 4096), (64, 8, 2), 128)
    code = encode_tensor_map(strided, 4096, cu)
    assert len(code) == MAP_BYTES
    assert int.from_bytes(code[:8], "little") == 4096
    assert driver.log == [
        "map CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 [64, 8, 2] [128, 4096] [64, 8, 2] CU_TENSOR_MAP_INTERLEAVE_NONE "
        "CU_TENSOR_MAP_SWIZZLE_128B CU_TENSOR_MAP_L2_PROMOTION_L2_128B CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"
    ]
    encode_tensor_map(strided, 4096, cu)
    assert driver.calls["cuTensorMapEncodeTiled"] == 1


def test_a_walk_is_encoded_by_its_corners(driver: FakeDriver) -> None:
    walk = {"pixels": (14, 14), "starts": (-1, -1), "steps": (2, 2)}
    map_ = TensorMap("map1", "a", DType.F16, (64, 28, 28, 2), (128, 3584, 100352), (64, 96), 128, **walk)
    assert map_.ends == (-2, -2) and not map_.faults()
    assert len(encode_tensor_map(map_, 4096, CheckedCalls(driver))) == MAP_BYTES
    assert driver.log[0].startswith(
        "walk CU_TENSOR_MAP_DATA_TYPE_FLOAT16 [64, 28, 28, 2] [-1, -1] [-2, -2] 64 96 [1, 2, 2, 1] "
    )


def test_a_refused_map_is_one_clear_error(driver: FakeDriver) -> None:
    with pytest.raises(BackendError, match="refuses a tensor map of 't0' at 0x8"):
        encode_tensor_map(MAP, 8, CheckedCalls(driver))


def test_maps_are_parameters_by_value(driver: FakeDriver) -> None:
    packed = PackedParameters(KERNEL, CheckedCalls(driver))
    packed.set((4096, 7))
    assert packed.places[1] - packed.places[0] == MAP_BYTES
    assert (packed.values[0], packed.values[16]) == (4096, 7)
    nothing = evolve(KERNEL, arguments=())
    assert len(PackedParameters(nothing, CheckedCalls(driver)).pointers) == 1


def test_a_map_follows_a_moved_tensor(driver: FakeDriver) -> None:
    chain = CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver).load(PLAN, (KERNEL,), (b"one",))
    memory = Memory()
    y = memory.new(0, 0, 0, 0)
    for first in (1, 5, 9):
        chain.launch((), (memory.new(0, 0, 0, 0, first, 2, 3, 4), y), 7)
        assert floats(y).tolist() == [2 * first, 4, 6, 8]
    assert len(driver.cuda.lines("graph")) == 1
    assert driver.cuda.update_count == len(driver.cuda.lines("map")) - 1 == 2


def test_plans_store_maps(tmp_path: Path) -> None:
    plan = example_plan("cuda")
    first, *others = plan.kernels
    argument = evolve(first.arguments[0], map=evolve(MAP, tensor=first.arguments[0].tensor))
    changed = evolve(plan, kernels=(evolve(first, arguments=(argument, *first.arguments[1:])), *others))
    save_plan(changed, tmp_path / "p")
    assert load_plan(tmp_path / "p") == changed


def test_a_plan_of_hopper_is_refused_elsewhere() -> None:
    driver = FakeDriver({"double": double})
    driver.attributes = {"COMPUTE_CAPABILITY_MAJOR": 10, "COMPUTE_CAPABILITY_MINOR": 0}
    with pytest.raises(BackendError, match="the plan is for sm_90, device 0 is sm_100"):
        CudaSequenceLauncher(find_target("cuda:sm_90"), 0, driver)
