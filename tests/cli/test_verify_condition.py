"""`cuts verify` of functions that lose digits in exact execution.

A rotary embedding rotates its elements by thousands of radians. Its loss of digits is no fault of a kernel; a wrong
kernel still is one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from cuts.runtime.files import load_plan, save_plan
from cuts.tests.cli.conftest import Cuts
from cuts.tests.needs import needs_opencl

POSITIONS, WIDTH = 4096, 16

ROTARY = """
op turned "pairs of elements turned by angles that grow with the position, which are computed" {
  in x: f32[S, E], first: f32[1]
  let R = E // 2
  temp angle: f32[S, R]
  out y: f32[S, E]
  angle[s, r] = (first[0] + f32(s)) * exp(f32(r) * (-9.210340371976184 / R))
  each p < 2: y[s, r + p * R] = x[s, r + p * R] * cos(angle[s, r])
    + (2 * p - 1) * x[s, r + (1 - p) * R] * sin(angle[s, r]) for s < S, r < R
}
"""


@pytest.fixture
def plan(cuts: Cuts, tmp_path: Path) -> Path:
    """The plan of a rotary embedding."""
    node = {"name": "turn", "op": "turned", "inputs": ["x", "first"], "outputs": ["y"]}
    again = {"name": "more", "op": "add", "inputs": ["y", "x"], "outputs": ["z"]}
    inputs = [
        {"name": "x", "dtype": "f32", "shape": [POSITIONS, WIDTH]},
        {"name": "first", "dtype": "f32", "shape": [1]},
    ]
    model = {"format": "cuts.graph", "version": 1, "name": "rotary", "inputs": inputs, "constants": []}
    (tmp_path / "rotary.json").write_text(json.dumps({**model, "nodes": [node, again], "outputs": ["y", "z"]}))
    (tmp_path / "rotary.cuts").write_text(ROTARY)
    assert cuts("compile", "rotary.json", "--spec", "rotary.cuts", "-o", "p").code == 0
    return tmp_path / "p"


@needs_opencl
@pytest.mark.parametrize("flags", [(), ("--steps",)])
def test_what_the_function_loses_is_allowed(cuts: Cuts, plan: Path, flags: tuple[str, ...]) -> None:
    result = cuts("verify", str(plan), *flags)
    assert result.code == 0, result.err + result.out
    assert "1.91e-06" not in result.out  # more than the tolerance of well-conditioned functions


@needs_opencl
@pytest.mark.parametrize("fault", [("cos(", "sin("), ("sin(", "cos("), ("exp(", "exp(0.001f + ")])
def test_a_wrong_kernel_is_still_wrong(cuts: Cuts, plan: Path, fault: tuple[str, str]) -> None:
    right = load_plan(plan)
    wrong = tuple(evolve(kernel, source=kernel.source.replace(*fault, 1)) for kernel in right.kernels)
    assert wrong != right.kernels
    save_plan(evolve(right, kernels=wrong), plan)
    result = cuts("verify", str(plan))
    assert result.code == 5
    assert "wrong numbers" in result.err
