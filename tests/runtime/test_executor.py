"""Plans on PoCL.

Numbers, inputs of every kind, and errors for wrong ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.errors import PlanError, UsageError
from cuts.runtime.arrays import random_inputs
from cuts.runtime.session import Session
from cuts.runtime.step_comparison import first_wrong_step
from cuts.tests.needs import needs_opencl
from cuts.tests.runtime.handmade import COLUMNS, ROWS, example_plan, expected_outputs, random_x


@pytest.fixture(scope="module")
def session() -> Session:
    """The example, opened once."""
    return Session(example_plan())


@needs_opencl
def test_outputs_are_right_run_after_run(session: Session) -> None:
    for seed in range(3):
        x = random_x(seed)
        found = session.run({"x": x})
        assert list(found) == ["y", "left"]
        for name, want in expected_outputs(x).items():
            np.testing.assert_allclose(found[name], want, rtol=1e-6)


class Dlpack:
    """An array that shows nothing but DLPack."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 1) -> None:
        self.array, self.device, self.dtype = array, device, array.dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


@needs_opencl
@pytest.mark.parametrize(
    "wrap",
    [Dlpack, np.asfortranarray, lambda x: x[::1], lambda x: x.tolist()],
    ids=["dlpack", "fortran", "view", "list"],
)
def test_inputs_of_every_kind(session: Session, wrap: Any) -> None:
    x = random_x()
    np.testing.assert_allclose(session.run({"x": wrap(x)})["y"], expected_outputs(x)["y"], rtol=1e-6)


BAD_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({}, "input 'x' is missing"),
    "unknown": ({"x": random_x(), "z": 1}, "there is no input 'z'; inputs are: 'x'"),
    "shape": ({"x": random_x()[:2]}, r"expected f32\[4, 8\], found float32\[2, 8\]"),
    "element type": ({"x": random_x().astype(np.float64)}, r"expected f32\[4, 8\], found float64"),
    "no array": ({"x": [[1, 2], [3]]}, "is no array"),
    "text": ({"x": "abc"}, "expected f32"),
    "another device": ({"x": Dlpack(random_x(), device=2)}, "lies on a device"),
}


@needs_opencl
@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs_are_named(session: Session, name: str) -> None:
    inputs, message = BAD_INPUTS[name]
    with pytest.raises(UsageError, match=message):
        session.run(inputs)


@needs_opencl
def test_output_may_be_an_input_or_constant() -> None:
    plan = example_plan()
    plan = evolve(plan, steps=(), outputs=("x", "w"), groups=())
    x = random_x()
    found = Session(plan).run({"x": x})
    assert np.array_equal(found["x"], x)
    assert np.array_equal(found["w"], plan.constants["w"])


def values(array: Any) -> np.ndarray[Any, Any]:
    """Return the elements of an output that stayed on the device."""
    host = np.empty(array.shape, array.dtype)
    array.device.download(host, array.pointer)
    return host


@needs_opencl
def test_outputs_on_the_device_belong_to_the_caller() -> None:
    """A later run overwrites no result that is still referenced."""
    session = Session(example_plan())
    runs = [session.run({"x": random_x(seed)}, on_device=True) for seed in range(3)]
    for seed, found in enumerate(runs):
        np.testing.assert_allclose(values(found["y"]), expected_outputs(random_x(seed))["y"], rtol=1e-6)
    handles = {int(found["y"].pointer.buffer.handle.int_ptr) for found in runs}
    assert len(handles) == 3
    del runs, found
    again = [session.run({"x": random_x(seed)}, on_device=True)["y"] for seed in range(2)]
    assert {int(array.pointer.buffer.handle.int_ptr) for array in again} <= handles
    assert len({int(array.pointer.buffer.handle.int_ptr) for array in again}) == 2
    for seed, array in enumerate(again):
        np.testing.assert_allclose(values(array), expected_outputs(random_x(seed))["y"], rtol=1e-6)


@needs_opencl
def test_strided_inputs_share_their_buffer() -> None:
    plan = evolve(example_plan(), inputs=("left", "right"), outputs=("y",), steps=(), groups=())
    left, right = random_x(1), random_x(2)
    assert np.array_equal(Session(plan).run({"left": left, "right": right})["y"], np.concatenate([left, right], axis=1))


@needs_opencl
def test_strided_input_leaves_rest_of_its_buffer() -> None:
    left, right = random_x(1), random_x(2)
    constants = {**example_plan().constants, "right": right}
    plan = evolve(example_plan(), inputs=("left",), constants=constants, outputs=("y",), steps=(), groups=())
    session, nbytes = Session(plan), plan.buffers[plan.storages["left"].buffer].nbytes
    for each in (left, left + 1):
        spoilt = [np.full(nbytes, 255, np.uint8) for _ in range(64)]  # where the next array of that size will lie
        del spoilt
        assert np.array_equal(session.run({"left": each})["y"], np.concatenate([each, right], axis=1))


@needs_opencl
def test_the_times_of_a_run_add_up(session: Session) -> None:
    times = session.run_timed({"x": random_x()})[1]
    assert min(times.copy_in, times.compute, times.copy_out) > 0
    assert times.wall == pytest.approx(times.copy_in + times.compute + times.copy_out)


@needs_opencl
def test_trace_finds_the_first_wrong_kernel(session: Session) -> None:
    x = random_x()
    right = expected_outputs(x)
    h = right["left"] / 2
    allowed = dict.fromkeys(("h", "left", "right", "y"), 1e-5)
    assert first_wrong_step(session, {"x": x}, {"h": h, "left": right["left"]}, allowed) == ""
    broken = h.copy()
    broken[1, 2] += 1
    message = first_wrong_step(session, {"x": x}, {"h": broken, "left": right["left"]}, allowed)
    assert message.startswith("step 0, kernel k_add, nodes 'add': 'h': error")
    assert "at [1, 2]" in message


@needs_opencl
def test_times_are_positive(session: Session) -> None:
    assert session.time_compute(warmup=1, repeats=3).median > 0
    times = session.time_steps(repeats=2)
    assert [len(t.samples) for t in times] == [2, 2, 2]
    assert all(t.best > 0 for t in times)


def test_a_reference_plan_launches_nothing() -> None:
    with pytest.raises(PlanError, match="launches no kernels"):
        Session(evolve(example_plan(), target=find_target("reference")))


def test_random_inputs_repeat_with_their_seed() -> None:
    types = example_plan().types
    first, second, other = (random_inputs(types, ("x",), seed)["x"] for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert first.shape == (ROWS, COLUMNS)
    assert first.dtype == np.float32
