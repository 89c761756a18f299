"""Packed plans in Python: equal bits, on host memory and at addresses."""

from __future__ import annotations

import threading
from pathlib import Path

import cuts
import numpy as np
import pytest
from cuts.backends.native import NO_DEVICE, NativeError, library, make_options
from cuts.ir import PlanError, UsageError
from cuts.runtime import Session
from cuts.runtime.native import PackedPlan, pack_plan, write_packed
from cuts.tests.backends.fake_cuda import FakeCuda, fake_path
from cuts.tests.needs import needs_c_compiler, needs_opencl

from .handmade import example_plan, random_x
from .native_runner import aligned_copy
from .test_native_cuda import cuda_example, driver, state_plan  # noqa: F401

pytestmark = needs_c_compiler()


@needs_opencl
def test_a_packed_plan_computes_the_same_bits(tmp_path: Path) -> None:
    plan, x = example_plan(), random_x()
    write_packed(plan, tmp_path / "plan.cutsplan")
    packed, expected = PackedPlan(tmp_path / "plan.cutsplan"), Session(plan).run({"x": x})
    assert (packed.inputs, packed.target.dialect) == ({"x": plan.types["x"]}, "opencl")
    for found in (packed.run({"x": x}), packed.run({"x": x.tolist()}), PackedPlan(pack_plan(plan)).run({"x": x})):
        assert {name: a.tobytes() for name, a in found.items()} == {n: a.tobytes() for n, a in expected.items()}
    assert repr(packed).startswith("PackedPlan('hand-made': (x: f32[4, 8]) -> (y: f32[4, 16]")


@needs_opencl
def test_a_bound_launch_uses_memory_in_place() -> None:
    plan, x = example_plan(), aligned_copy(random_x())
    packed, expected = PackedPlan(pack_plan(plan)), Session(plan).run({"x": x})
    results = [aligned_copy(np.zeros_like(value)) for value in expected.values()]
    launch = packed.new_session().bind([x.ctypes.data], [value.ctypes.data for value in results])
    launch()
    for value, right in zip(results, expected.values(), strict=True):
        assert value.tobytes() == right.tobytes()
    with pytest.raises(NativeError, match="is missing: its address is null"):
        packed.session.bind([0], [value.ctypes.data for value in results])()


@needs_opencl
@pytest.mark.parametrize("shift", [0, 4])
def test_host_memory_of_any_alignment_is_used(shift: int) -> None:
    plan, x = example_plan(), random_x()
    packed, expected = PackedPlan(pack_plan(plan)), Session(plan).run({"x": x})
    place = aligned_copy(np.zeros(x.nbytes + shift, np.uint8))[shift:]
    place[...] = x.reshape(-1).view(np.uint8)
    found = packed.run({"x": place.view(np.float32).reshape(x.shape)})
    assert found["y"].tobytes() == expected["y"].tobytes()


def open_on_gpu(plan: cuts.runtime.Plan) -> PackedPlan:
    return PackedPlan(pack_plan(plan), make_options(0, str(fake_path())))


def test_a_gpu_gets_copies_of_host_memory(driver: FakeCuda) -> None:  # noqa: F811
    plan, x = cuda_example(), random_x()
    driver.declare(plan).set()
    packed = open_on_gpu(plan)
    first, second = packed.run({"x": x}), packed.run({"x": 2 * x})
    assert first["left"].tobytes() != second["left"].tobytes()
    assert packed.run({"x": x})["y"].tobytes() == first["y"].tobytes()
    assert driver.lines("graph") == ["graph of 4 nodes"]
    del packed


def test_state_is_read_written_and_reset(driver: FakeCuda) -> None:  # noqa: F811
    plan = state_plan()
    driver.declare(plan).set()
    session = open_on_gpu(plan).new_session()
    (name,) = session.state
    begin = session.state[name]
    session.set_state({name: begin + 3})
    assert np.array_equal(session.state[name], begin + 3)
    session.reset_state()
    assert np.array_equal(session.state[name], begin)
    with pytest.raises(UsageError, match="has no state 'none'"):
        session.set_state({"none": begin})


@needs_opencl
def test_sessions_run_at_the_same_time() -> None:
    plan, x = example_plan(), random_x()
    packed, expected = PackedPlan(pack_plan(plan)), Session(plan).run({"x": x})["y"].tobytes()
    found: list[bytes] = []

    def work() -> None:
        session = packed.new_session()
        found.extend(session.run({"x": x})["y"].tobytes() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 60


def test_errors_name_the_cause(tmp_path: Path) -> None:
    write_packed(example_plan(), tmp_path / "plan.cutsplan")
    packed = PackedPlan(tmp_path / "plan.cutsplan", make_options(NO_DEVICE))
    with pytest.raises(NativeError, match="opened without a device"):
        packed.run({"x": random_x()})
    with pytest.raises(PlanError, match=r"is a packed plan; open it with cuts\.PackedPlan"):
        cuts.load(tmp_path / "plan.cutsplan")
    (tmp_path / "plan.cutsplan").write_bytes(b"cutsplan")
    with pytest.raises(NativeError, match="expected a packed plan, found a file of 8 bytes"):
        PackedPlan(tmp_path / "plan.cutsplan")


def test_the_library_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    path = library._cached_library()
    assert path.is_relative_to(tmp_path)
    monkeypatch.setattr(library, "build_library", None)
    assert library._cached_library() == path
