"""CUDA: the contract of a device, on a real GPU through PyCUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts import build
from cuts.backends.devices import find_target
from cuts.ir.errors import BackendError, GraphError
from cuts.runtime.session import Session
from cuts.tests.fusion.build import graph, op
from cuts.tests.needs import cuda_reason, needs_cuda
from cuts.tests.runtime.handmade import example_plan, expected_outputs, random_x


def device_plan() -> Any:
    """Return the example for this machine's GPU."""
    return evolve(example_plan("cuda"), target=find_target("cuda:device"))


def test_without_a_device_the_error_says_so() -> None:
    if not cuda_reason():
        pytest.skip("a CUDA device is here")
    with pytest.raises(BackendError, match="CUDA"):
        find_target("cuda:device")
    assert find_target("cuda").arch == "sm_90"


@needs_cuda
def test_the_device_describes_itself() -> None:
    target = find_target("cuda:device")
    assert target.NUM_SM > 0
    assert target.arch.startswith("sm_")
    assert target.MAX_shared >= 48 * 1024
    assert target.BW_global < target.l2_bandwidth
    assert target.PERF_peak > 1e12


@needs_cuda
def test_outputs_are_right_run_after_run() -> None:
    session = Session(device_plan())
    for seed in range(3):
        x = random_x(seed)
        found = session.run({"x": x})
        for name, want in expected_outputs(x).items():
            np.testing.assert_allclose(found[name], want, rtol=1e-6)


@needs_cuda
def test_a_recorded_graph_computes_what_the_launches_do() -> None:
    session = Session(device_plan())
    x = random_x()
    session.run({"x": x})
    by_graph = session.read("y")
    session.launch()
    session.device.synchronize()
    assert np.array_equal(by_graph, session.read("y"))


@needs_cuda
def test_launches_that_overlap_compute_the_same_every_time() -> None:
    lines = [op(f"v{n + 1}", ("matmul", "transpose", "tanh")[n % 3], f"v{n}", *(["w"] if n % 3 == 0 else []),
                **({"perm": (1, 0)} if n % 3 == 1 else {})) for n in range(60)]  # fmt: skip
    plan = build(graph({"v0": (300, 300), "w": (300, 300)}, *lines, out="v60"), "cuda", mode="no-fusion")
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((300, 300), np.float32) / 17 for name in ("v0", "w")}
    *_, (_, alone) = plan.session.trace(feeds)
    for _ in range(50):
        np.testing.assert_array_equal(plan.run(feeds)["v60"], alone["v60"])


@needs_cuda
def test_device_arrays_go_in_and_out() -> None:
    session = Session(device_plan())
    x = random_x()
    first = session.run({"x": x}, on_device=True)["left"]
    assert first.__cuda_array_interface__["shape"] == (4, 8)
    with pytest.raises(GraphError, match="dense"):
        session.run({"x": first})  # a part of a concatenation has gaps between its rows


@needs_cuda
def test_times_are_positive() -> None:
    session = Session(device_plan())
    assert 0 < session.time_compute(repeats=5).median < 1
    loaded = session.device
    assert loaded.time(session.launch, repeats=3, cold=True).median > 0


@needs_cuda
def test_a_plan_for_another_architecture_is_refused() -> None:
    with pytest.raises(BackendError, match="the plan is for sm_30"):
        Session(evolve(example_plan("cuda"), target=evolve(find_target("cuda:device"), arch="sm_30")))
