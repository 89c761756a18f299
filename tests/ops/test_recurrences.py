"""A repetition that became a loop means what its turns, written out one by one, mean."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir import Program, parse_ir, print_ir, runs, verify_program
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry, evaluate
from cuts.ops.language import assignment
from cuts.ops.unroll import unrolled
from hypothesis import given

from .recurrences import Recurrence, recurrences


def program(case: Recurrence, short: int) -> Program:
    """Return the program of a recurrence; up to `short` assignments are written out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "SHORT", short)
        return case.registry["t"].instantiate(case.types, {}).program


def results(found: Program, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, r, i = (found.tensors.get(name) for name in ("x", "r", "i"))
    values = {
        name: rng.integers(0, type_.shape[0], type_.shape) if name == "i" else rng.standard_normal(type_.shape)
        for name, type_ in (("x", x), ("r", r), ("i", i))
        if type_ is not None
    }
    return evaluate(found, values)


@given(recurrences())
def test_a_loop_computes_what_its_turns_do(case: Recurrence) -> None:
    loop, written_out = program(case, 0), program(case, 10**9)
    assert verify_program(loop)
    assert not any(s.step for s in written_out.statements)
    assert parse_ir(print_ir(loop)) == loop
    expected = results(written_out)
    for name, values in results(loop).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-12, atol=1e-12)


@given(recurrences())
def test_a_loop_written_out_again_computes_the_same(case: Recurrence) -> None:
    loop = program(case, 0)
    again = verify_program(unrolled(loop))
    assert not any(s.step for s in again.statements)
    expected = results(loop)
    for name, values in results(again).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-12, atol=1e-12)


HEAD = "in x: f32[S, N], r: f32[N, N]  out y: f32[N]  temp h[t < S + 1]: f32[N]  h[0] = x"
TYPES = [TensorType(DType.F32, (100, 4)), TensorType(DType.F32, (4, 4))]


def stepped(lines: str) -> tuple[list[str], list[str]]:
    """Return the tensors that statements around the loop write, and those that its turns do."""
    text = f'op t "t" {{ {HEAD.replace("h[0] = x", "h[0][n] = 0")}  {lines}  y[n] = h[S][n] }}'
    found = Registry.builtin().extend(Source("op.cuts", text))["t"].instantiate(TYPES, {}).program
    loops = [run for step, run in runs(found.statements) if step is not None]
    assert len(loops) <= 1
    inside = [s.target for run in loops for s in run]
    return [s.target for s in found.statements if s.step is None], inside


def test_a_product_that_needs_no_state_is_computed_for_all_turns_at_once() -> None:
    around, inside = stepped("each t < S: h[t + 1][n] = h[t][n] + (sum[q < N] r[n, q] * x[t, q])")
    assert (around, inside) == (["h", "h_sum", "y"], ["h"])


def test_what_depends_on_the_turn_alone_is_computed_ahead() -> None:
    around, inside = stepped("each t < S: h[t + 1][n] = h[t][n] * f32(t) + (x[t - 1, n] outside 0)")
    assert (sorted(around), inside) == (["h", "h_ahead", "h_ahead2", "y"], ["h"])


def test_what_no_turn_needs_comes_behind() -> None:
    lines = "temp v[t < S]: f32[N]  out z: f32[S, N]  each t < S { h[t + 1] = h[t] * 2  v[t][n] = h[t + 1][n] + 1 }"
    around, inside = stepped(f"{lines}  each t < S: z[t, n] = v[t][n]")
    assert (around, inside) == (["h", "v", "z", "y"], ["h"])


def test_turns_that_share_no_state_are_no_loop() -> None:
    lines = "temp v[t < S]: f32[N]  out z: f32[S, N]  each t < S: v[t][n] = x[t, n]  each t < S: h[t + 1] = v[t]"
    _, inside = stepped(f"{lines}  each t < S: z[t, n] = v[t][n] * 2")
    assert inside == []


@pytest.mark.parametrize(
    "value",
    ["h[t][n] if t > 0 else x[0, n]", "h[t][n] if t < S - 1 else 0", "(h[t - 1][n] if t > 0 else 0) + h[t][n]"],
)
def test_a_first_or_last_turn_may_differ(value: str) -> None:
    _, inside = stepped(f"each t < S: h[t + 1][n] = {value}")
    assert inside == ["h"]


def test_a_turn_that_no_slice_fits_is_written_out() -> None:
    _, inside = stepped("each t < S: h[t + 1][n] = h[t // 2][n]")
    assert inside == []


@pytest.mark.parametrize("steps", [10**5, 10**6])
def test_any_length_is_a_few_statements(steps: int) -> None:
    types = [TensorType(DType.F32, s) for s in ((steps, 1, 2), (1, 8, 2), (1, 8, 2))]
    found = Registry.builtin()["lstm"].instantiate(types, {}).program
    assert len(found.statements) < 30
    assert verify_program(found)
