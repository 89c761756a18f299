"""Loop rolling: a loop means the same as its unrolled iterations."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir import Program, parse_ir, print_ir, runs, verify_program
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry, evaluate
from cuts.ops.gradient.copy_propagation import propagate_copies
from cuts.ops.gradient.gradients import Gradients
from cuts.ops.language import assignment
from cuts.ops.language.unroll import unroll_loops
from hypothesis import given, settings

from .recurrences import Recurrence, recurrences


def program(case: Recurrence, short: int) -> Program:
    """Return a recurrence's program; up to `short` assignments are unrolled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "MAX_UNROLLED_ASSIGNMENTS", short)
        return case.registry["t"].instantiate(case.types, {}).program


def draw_operands(found: Program) -> dict[str, np.ndarray]:
    """Return random operands."""
    rng = np.random.default_rng(0)
    types = {name: found.tensors[name] for name in found.inputs}
    return {
        name: rng.integers(0, type_.shape[0], type_.shape) if name == "i" else rng.standard_normal(type_.shape)
        for name, type_ in types.items()
    }


def results(found: Program) -> dict[str, np.ndarray]:
    """Return the results of a program for random operands."""
    return evaluate(found, draw_operands(found))


@settings(max_examples=50)
@given(recurrences())
def test_a_loop_computes_what_its_turns_do(case: Recurrence) -> None:
    loop, written_out = program(case, 0), program(case, 10**9)
    assert verify_program(loop)
    assert not any(s.step for s in written_out.statements)
    assert parse_ir(print_ir(loop)) == loop
    expected = results(written_out)
    for name, values in results(loop).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-12, atol=1e-12)


@settings(max_examples=25)
@given(recurrences())
def test_a_loop_written_out_again_computes_the_same(case: Recurrence) -> None:
    loop = program(case, 0)
    again = verify_program(unroll_loops(loop))
    assert not any(s.step for s in again.statements)
    expected = results(loop)
    for name, values in results(again).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-12, atol=1e-12)


def type_of(name: str, values: np.ndarray) -> TensorType:
    """Return an operand's type; computation has more digits."""
    dtype = DType.BOOL if values.dtype == bool else DType.I32 if name == "i" else DType.F32
    return TensorType(dtype, values.shape)


def gradient(case: Recurrence, short: int, keep: bool = False) -> dict[str, np.ndarray]:
    """Return gradients of x and r, given those of some results.

    With `keep` they read the loop's held values, if there is one.
    """
    registry = case.registry
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "MAX_UNROLLED_ASSIGNMENTS", short)
        instance = registry["t"].instantiate(case.types, {})
        gradients = Gradients(registry)
        kept = gradients.with_saved_results(instance, ["x", "r"], ["y", "z"], ["y", "z"]) if keep else None
        steps = gradients.steps(instance, ["x", "r"], ["y", "z"]) if kept is None else (kept[0], *kept[1])
        values = draw_operands(instance.program)
        values |= evaluate(instance.program, values)
        rng = np.random.default_rng(1)
        values |= {f"d{name}": rng.standard_normal(values[name].shape) for name in ("y", "z")}
        for step in steps:
            types = [type_of(v, values[v]) for v in step.operands]
            made = gradients.registry[step.op].instantiate(types, step.attributes)
            operands = {formal: values[v] for formal, v in zip(made.inputs, step.operands, strict=True) if formal}
            found = evaluate(verify_program(made.program), operands)
            values |= {v: found[formal] for v, formal in zip(step.outputs, made.outputs, strict=True)}
    return {name: values[name] for name in ("dx", "dr") if name in values}


@pytest.mark.parametrize("keep", [False, True])
@settings(max_examples=8)
@given(case=recurrences())
def test_loop_gradients_equal_those_of_unrolled_iterations(case: Recurrence, keep: bool) -> None:
    expected = gradient(case, 10**9)
    found = gradient(case, 0, keep)
    assert found.keys() >= expected.keys()
    for name, values in found.items():  # one that is 0 may be left out
        np.testing.assert_allclose(values, expected.get(name, np.zeros_like(values)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("op", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_the_gradient_of_a_recurrence_is_a_recurrence(op: str, gates: int) -> None:
    shapes = ((10_000, 2, 3), (1, 4 * gates, 3), (1, 4 * gates, 4))
    registry = Registry.builtin()
    instance = registry[op].instantiate([TensorType(DType.F32, shape) for shape in shapes], {})
    gradients = Gradients(registry)
    (step,) = gradients.steps(instance, ["x", "w", "r"], ["y", "last"])
    tensors = {**instance.program.tensors, **{f"d{name}": instance.program.tensors[name] for name in ("y", "last")}}
    made = gradients.registry[step.op].instantiate([tensors[v] for v in step.operands], {}).program
    assert len(made.statements) < 120
    assert [v.extent for v, _ in runs(made.statements) if v] == [10_000, 10_000 - 1]


@pytest.mark.parametrize(("op", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_the_forward_loop_runs_once_with_stored_states(op: str, gates: int) -> None:
    shapes = ((10_000, 2, 3), (1, 4 * gates, 3), (1, 4 * gates, 4))
    registry = Registry.builtin()
    instance = registry[op].instantiate([TensorType(DType.F32, shape) for shape in shapes], {})
    gradients = Gradients(registry)
    kept = gradients.with_saved_results(instance, ["x", "w", "r"], ["y", "last"], ["y", "last"])
    assert kept is not None
    forward, (step,) = kept
    assert forward.outputs[:2] == ("y", "last")
    types = [instance.program.tensors[v] for v in forward.operands]
    made = gradients.registry[forward.op].instantiate(types, {})
    tensors = {**instance.program.tensors, **dict(zip(forward.outputs, made.output_types, strict=True))}
    tensors |= {f"d{name}": tensors[name] for name in ("y", "last")}
    back = gradients.registry[step.op].instantiate([tensors[v] for v in step.operands], {}).program
    assert [v.extent for v, _ in runs(made.program.statements) if v] == [10_000]
    assert [v.extent for v, _ in runs(back.statements) if v] == [10_000 - 1]


def test_a_copied_state_is_stored_once() -> None:
    text = """op t "t" {
      in x: f32[S, N], r: f32[N, N]  out y: f32[N]  temp c[t < S + 1]: f32[N], h[t < S + 1]: f32[N], u[t < S]: f32[N]
      c[0][n] = 0
      h[0][n] = 0
      each t < S {
        u[t][n] = c[t][n] * 0.5 + (sum[q < N] r[n, q] * h[t][q]) + x[t, n]
        c[t + 1][n] = u[t][n]
        h[t + 1][n] = tanh(u[t][n])
      }
      y[n] = h[S][n]
    }"""
    found = Registry.builtin().extend(Source("op.cuts", text))["t"].instantiate(TYPES, {}).program
    made = verify_program(propagate_copies(found))
    assert "u" in found.tensors and "u" not in made.tensors
    assert len(made.statements) == len(found.statements) - 1
    np.testing.assert_array_equal(results(made)["y"], results(found)["y"])


HEAD = "in x: f32[S, N], r: f32[N, N]  out y: f32[N]  temp h[t < S + 1]: f32[N]  h[0] = x"
TYPES = [TensorType(DType.F32, (100, 4)), TensorType(DType.F32, (4, 4))]


def written_tensors(lines: str) -> tuple[list[str], list[str]]:
    """Return tensors written by statements around a loop, and by its iterations."""
    text = f'op t "t" {{ {HEAD.replace("h[0] = x", "h[0][n] = 0")}  {lines}  y[n] = h[S][n] }}'
    found = Registry.builtin().extend(Source("op.cuts", text))["t"].instantiate(TYPES, {}).program
    loops = [run for step, run in runs(found.statements) if step is not None]
    assert len(loops) <= 1
    inside = [s.target for run in loops for s in run]
    return [s.target for s in found.statements if s.step is None], inside


def test_stateless_products_are_computed_for_all_iterations() -> None:
    around, inside = written_tensors("each t < S: h[t + 1][n] = h[t][n] + (sum[q < N] r[n, q] * x[t, q])")
    assert (around, inside) == (["h", "h_sum", "y"], ["h"])


def test_values_of_the_iteration_alone_are_hoisted() -> None:
    around, inside = written_tensors("each t < S: h[t + 1][n] = h[t][n] * f32(t) + (x[t - 1, n] outside 0)")
    assert (sorted(around), inside) == (["h", "h_ahead", "h_ahead2", "y"], ["h"])


def test_values_that_no_iteration_needs_come_last() -> None:
    lines = "temp v[t < S]: f32[N]  out z: f32[S, N]  each t < S { h[t + 1] = h[t] * 2  v[t][n] = h[t + 1][n] + 1 }"
    around, inside = written_tensors(f"{lines}  each t < S: z[t, n] = v[t][n]")
    assert (around, inside) == (["h", "v", "z", "y"], ["h"])


def test_turns_that_share_no_state_are_no_loop() -> None:
    lines = "temp v[t < S]: f32[N]  out z: f32[S, N]  each t < S: v[t][n] = x[t, n]  each t < S: h[t + 1] = v[t]"
    _, inside = written_tensors(f"{lines}  each t < S: z[t, n] = v[t][n] * 2")
    assert inside == []


@pytest.mark.parametrize(
    "value",
    ["h[t][n] if t > 0 else x[0, n]", "h[t][n] if t < S - 1 else 0", "(h[t - 1][n] if t > 0 else 0) + h[t][n]"],
)
def test_a_first_or_last_turn_may_differ(value: str) -> None:
    _, inside = written_tensors(f"each t < S: h[t + 1][n] = {value}")
    assert inside == ["h"]


def test_an_iteration_without_slices_is_unrolled() -> None:
    _, inside = written_tensors("each t < S: h[t + 1][n] = h[t // 2][n]")
    assert inside == []


@pytest.mark.parametrize("steps", [10**5, 10**6])
def test_any_length_is_a_few_statements(steps: int) -> None:
    types = [TensorType(DType.F32, s) for s in ((steps, 1, 2), (1, 8, 2), (1, 8, 2))]
    found = Registry.builtin()["lstm"].instantiate(types, {}).program
    assert len(found.statements) < 30
    assert verify_program(found)
