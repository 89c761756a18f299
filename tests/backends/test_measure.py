"""Timing candidates: the fast one wins, the wrong and the broken ones cost only themselves."""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.backends.device import Timing
from cuts.backends.measure import Measured, fastest, measure
from cuts.backends.opencl import OpenCLDevice
from cuts.backends.targets import find_target
from cuts.ir.errors import BackendError
from cuts.ir.launch import Argument, KernelFunction
from cuts.ir.types import DType
from cuts.tests.needs import needs_opencl

EXTENTS = {"x": 64, "y": 64}


def candidate(body: str, name: str = "k") -> KernelFunction:
    """Return a kernel of 64 threads from `x` to `y`."""
    source = f"__kernel void {name}(__global const float* x, int xb, __global float* y, int yb, __global const int* t, int tb)"
    source += f" {{ int i = get_global_id(0); x += xb; y += yb; {body} }}\n"
    arguments = (Argument("x", DType.F32, False), Argument("y", DType.F32, True), Argument("t", DType.I32, False, table=True))
    return KernelFunction(name, "opencl", source, (4, 1, 1), (16, 1, 1), arguments, tables={"t": (2, 3)})


FAST = candidate("y[i] = x[i] * t[1];")
SLOW = candidate("float s = 0; for (int n = 0; n < 200000; ++n) s = s * 0.5f + x[i]; y[i] = x[i] * t[1] + s * 1e-30f;")


@needs_opencl
def test_the_fast_one_wins_and_failures_are_told() -> None:
    wrong, broken = candidate("y[i] = x[i];"), candidate("y[i] = nonsense;", "b")
    refused = evolve(FAST, shared_bytes=1 << 30)
    results = measure(OpenCLDevice(find_target("opencl")), [SLOW, FAST, wrong, broken, refused], EXTENTS)
    assert fastest(results) == 1
    assert results[0].timing is not None
    assert [result.failure for result in results[:2]] == ["", ""]
    assert "other numbers" in results[2].failure
    assert results[3].failure.startswith("kernel b does not compile")
    assert "shared memory" in results[4].failure


@needs_opencl
def test_hopeless_candidates_are_timed_once() -> None:
    slow, fast = measure(OpenCLDevice(find_target("opencl")), [SLOW, FAST], EXTENTS)
    assert slow.timing is not None
    assert fast.timing is not None
    assert len(slow.timing.samples) < len(fast.timing.samples)


def test_ties_go_to_the_earlier_candidate() -> None:
    times = [Measured(None, "broken"), Measured(Timing((1.004,))), Measured(Timing((1.0,)))]
    assert fastest(times) == 1


def test_nothing_that_runs_is_an_error() -> None:
    with pytest.raises(BackendError, match="none of 1 candidates runs: broken"):
        fastest([Measured(None, "broken")])
