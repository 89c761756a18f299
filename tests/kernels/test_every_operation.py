"""Every operation and its gradient through the whole pipeline.

Each device computes the reference. Tests in `tests/gradients` compare the same gradients with finite differences; this
one compares generated kernels with the reference.
"""

from __future__ import annotations

import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.ir.compiled import CompileOptions
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import DEVICES
from cuts.tests.operations import DIFFERENTIABLE, FLAT, REGISTRY, SCALAR, Use
from cuts.tests.operations_graph import Bench, bench_of, with_constants

pytestmark = pytest.mark.long

#: Uses that are compiled together.
TOGETHER = 16
FORWARD = [*DIFFERENTIABLE, *SCALAR, *FLAT]
BACKWARD = [*DIFFERENTIABLE, *SCALAR]
#: Those with an operand that may be a constant besides.
OF_SEVERAL = [use for use in FORWARD if len(use.types) > 1]


def parts(uses: list[Use]) -> list[list[Use]]:
    return [uses[first : first + TOGETHER] for first in range(0, len(uses), TOGETHER)]


def span(uses: list[Use]) -> str:
    """Name a part by its first and its last operation."""
    return f"{uses[0].op}-{uses[-1].op}"


def check(bench: Bench, device: str) -> None:
    plan = build_graph(bench.graph, bench.spec, find_target(device), CompileOptions(mode="mixed"))
    assert [result.text for result in plan.verify(bench.inputs) if not result.ok] == []


def test_every_operation_is_used() -> None:
    assert {use.op for use in FORWARD} == set(REGISTRY)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("uses", parts(FORWARD), ids=span)
def test_kernels_compute_what_the_reference_does(uses: list[Use], device: str) -> None:
    check(bench_of(uses), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("uses", parts(OF_SEVERAL if NIGHTLY else OF_SEVERAL[::2]), ids=span)
def test_kernels_compute_what_the_reference_does_with_constants(uses: list[Use], device: str) -> None:
    check(with_constants(bench_of(uses)), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("uses", parts(BACKWARD), ids=span)
def test_kernels_of_gradients_compute_what_the_reference_does(uses: list[Use], device: str) -> None:
    # Building kernels for a CPU takes its time, and there are three times as many as for the operations alone.
    check(bench_of(uses if device != "opencl" or NIGHTLY else uses[:: TOGETHER // 4], backward=True), device)
