"""Prefix scans by parts.

The steps grow with n instead of n * n.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec, load_spec
from cuts.ir.compiled import CompileOptions
from cuts.ir.dfg import Load, post_order
from cuts.ir.graph import Graph, Node
from cuts.ir.kernel import phases
from cuts.ir.segment import FusedGroup
from cuts.ir.statement import Program
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.language import walk_recurrences
from cuts.ops.reference import evaluate
from cuts.passes.fusion.normalise import normalise
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.statements.prefix_scan import MIN_LANE_ROW, MIN_WALKED_ROWS, divide_scans
from cuts.tests.amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl
from .build import REGISTRY, graph, op


def program_of(name: str, shape: tuple[int, ...], dtype: DType = DType.F32, **attributes: Any) -> Program:
    return REGISTRY[name].instantiate([TensorType(dtype, shape)], attributes).program


def steps(program: Program) -> int:
    """Return the number of body evaluations.

    A cached row has one for each element.
    """
    return sum(prod(v.extent for v in (s.axes if s.along else (*s.axes, *s.reduce))) for s in program.statements)


@st.composite
def running(draw: Any) -> tuple[str, tuple[int, ...], DType, dict[str, Any]]:
    """Return an operation, its operand's shape and type, and its attributes.

    Rows are multiples of the part's length or not.
    """
    length = draw(st.one_of(st.integers(1, 400), st.sampled_from([64, 65, 80, 256, 1024, 1040, 4096, 4097, 4128])))
    shape = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
    axis = draw(st.integers(0, len(shape)))
    shape.insert(axis, length)
    attributes = {"axis": axis, "exclusive": draw(st.booleans()), "reverse": draw(st.booleans())}
    dtype = draw(st.sampled_from([DType.F16, DType.BF16, DType.F32, DType.F64, DType.I32, DType.I64, DType.U8]))
    name = draw(st.sampled_from(["cumsum", "cumprod", *(["logcumsumexp"] if dtype.is_float else [])]))
    return name, tuple(shape), dtype, attributes if name != "logcumsumexp" else {"axis": axis}


@settings(max_examples=examples(30, 1500), deadline=None)
@given(running(), st.integers(0, 2**32 - 1), st.booleans())
def test_what_is_cut_computes_the_same(
    case: tuple[str, tuple[int, ...], DType, dict[str, Any]], seed: int, extreme: bool
) -> None:
    name, shape, dtype, attributes = case
    program = program_of(name, shape, dtype, **attributes)
    found = divide_scans(program)
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.9, 1.1, shape) if name == "cumprod" else rng.standard_normal(shape)
    if not dtype.is_float:
        x = rng.integers(0, 3, shape)
    elif extreme:
        x.flat[:: max(1, x.size // 3)] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0])
    expected, ours = evaluate(program, {"x": x})["y"], evaluate(found, {"x": x})["y"]
    # Results of half types are rounded once, where they are stored.
    rounding = dtype.element.epsilon if dtype in (DType.F16, DType.BF16) else 1e-9
    np.testing.assert_allclose(ours, expected, rtol=rounding, atol=1e-7 if rounding > 1e-9 else 1e-9)
    length = shape[attributes["axis"]]
    assert (found is program) == (length <= MIN_LANE_ROW)
    assert steps(found) <= min(steps(program), 90 * prod(shape) + 64 * 64 * prod(shape) // length)


def test_a_row_between_two_kernels_is_single() -> None:
    """Half-precision storage of partial sums would lose digits."""
    found = divide_scans(program_of("cumsum", (2, 16384), DType.F16, axis=1))
    assert {found.tensors[s.target].dtype for s in found.statements if s.target != "y"} == {DType.F32}
    assert found.tensors["y"].dtype is DType.F16


DECLARATIONS = """
op running_greatest "the greatest of all products so far" {
  in x: f32[N, M], w: f32[M]
  out y: f32[N, M]
  y[n, m] = max[j < M] (x[n, j] * w[j] if m - j >= 0 else -inf)
}
op so_many "sums of a window that is as long as half a row" {
  in x: f32[N]
  out y: f32[N]
  y[n] = sum[j < N] (x[j] if n - j >= 0 and n - j < N // 2 else 0)
}
op weighted "terms that differ from element to element" {
  in x: f32[N]
  out y: f32[N]
  y[n] = sum[j < N] (x[j] * x[n] if n - j >= 0 else 0)
}
op shifted "two places before" {
  in x: f32[N]
  out y: f32[N]
  y[n] = sum[j < N] (x[j] if n - j >= 2 else 0)
}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    path = tmp_path_factory.mktemp("spec") / "own.cuts"
    path.write_text(DECLARATIONS)
    return Registry.builtin().load(path)


@pytest.mark.parametrize("name", ["so_many", "weighted", "shifted"])
def test_what_is_no_running_reduction_stays(name: str, registry: Registry) -> None:
    program = registry[name].instantiate([TensorType(DType.F32, (200,))], {}).program
    assert divide_scans(program) is program


def test_a_declaration_of_ones_own_is_cut(registry: Registry) -> None:
    types = [TensorType(DType.F32, (3, 200)), TensorType(DType.F32, (200,))]
    program = registry["running_greatest"].instantiate(types, {}).program
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((3, 200)), "w": rng.standard_normal(200)}
    found = divide_scans(program)
    assert steps(found) < steps(program) / 4
    np.testing.assert_array_equal(evaluate(found, inputs)["y"], evaluate(program, inputs)["y"])


@needs_opencl
@pytest.mark.parametrize(
    ("name", "shape", "attributes"),
    [
        ("cumsum", (3, 1000), {"axis": 1}),
        ("cumsum", (300, 5), {"axis": 0, "reverse": True, "exclusive": True}),
        ("cumprod", (2, 130, 3), {"axis": 1, "exclusive": True}),
        ("cumsum", (5000,), {"axis": 0}),
        ("cumsum", (37, MIN_WALKED_ROWS), {"axis": 0, "reverse": True}),
        ("cumprod", (18, 2, MIN_WALKED_ROWS // 2), {"axis": 0, "exclusive": True}),
    ],
)
def test_kernels_of_parts_compute_the_whole(name: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    lines = [op("h", "sin", "x"), op("a", name, "h", **attributes), op("y", "relu", "a")]
    model = graph({"x": shape}, *lines, out="y")
    plan = build_graph(model, load_spec([]), find_target("opencl"), CompileOptions())
    assert all(result.ok for result in plan.verify())


RECURRENCES = """
op decayed "sums that decay, from the first step or the last" {
  type T: float
  in a: T[S, N], x: T[S, N], first: T[N]
  temp h[t < S + 1]: T[N], m[t < S]: T[N]
  out y: T[S, N]
  h[0][n] = first[n]
  each t < S {
    m[t][n] = tanh(a[t, n]) * h[t][n]
    h[t + 1][n] = m[t][n] + x[t, n]
  }
  each t < S: y[t, n] = h[t + 1][n] * x[t, n]
}
op two_states "a state that another one follows" {
  type T: float
  in a: T[S, N], x: T[S, N]
  temp c[t < S + 1]: T[N], h[t < S + 1]: T[N]
  out y: T[S, N], last: T[N]
  c[0][n] = 0
  h[0][n] = 1
  each t < S {
    c[t + 1][n] = a[t, n] * c[t][n] + x[t, n]
    h[t + 1][n] = 0.5 * h[t][n] + tanh(c[t + 1][n])
  }
  each t < S: y[t, n] = h[t + 1][n] - c[t + 1][n]
  last[n] = h[S][n]
}
op adjoint "a recurrence from the last step, whose first iteration differs" {
  type T: float
  in a: T[S, N], x: T[S, N]
  temp h[t < S]: T[N]
  out y: T[S, N]
  each t < S: h[S - 1 - t][n] = x[S - 1 - t, n] + (a[S - t, n] outside 0) * (h[S - t][n] outside 0)
  each t < S: y[t, n] = h[t][n]
}
op coupled "a loop that stays one, whose first iteration differs" {
  type T: float
  in a: T[S, N], x: T[S, N]
  temp h[t < S]: T[N], g[t < S]: T[N]
  out y: T[S, N]
  each t < S {
    h[S - 1 - t][n] = x[S - 1 - t, n] + (g[S - t][n] outside 0)
    g[S - 1 - t][n] = a[S - 1 - t, n] * (h[S - 1 - t][n - 1] outside 0)
  }
  each t < S: y[t, n] = h[t][n] - g[t][n]
}
op ends "a state that is only read at its end" {
  type T: float
  in x: T[S, N]
  temp h[t < S + 1]: T[N]
  out y: T[N]
  h[0][n] = 0
  each t < S: h[t + 1][n] = x[t, n] + 0.5 * h[t][n]
  y[n] = h[S][n]
}
op mixing "elements that read their neighbours" {
  type T: float
  in x: T[S, N]
  temp h[t < S + 1]: T[N]
  out y: T[N]
  h[0][n] = 0
  each t < S: h[t + 1][n] = x[t, n] + (h[t][n - 1] outside 0)
  y[n] = h[S][n]
}
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    path = tmp_path_factory.mktemp("spec") / "recurrences.cuts"
    path.write_text(RECURRENCES)
    return load_spec([path])


def recurrence(spec: Spec, name: str, steps: int, width: int, dtype: DType = DType.F32) -> Program:
    first = [(width,)] if name == "decayed" else []
    types = [
        TensorType(dtype, shape) for shape in [*[(steps, width)] * (1 if name in ("mixing", "ends") else 2), *first]
    ]
    return spec.registry[name].instantiate(types, {}).program


@pytest.mark.parametrize(
    ("name", "states"), [("decayed", 1), ("two_states", 2), ("adjoint", 1), ("coupled", 0), ("ends", 0), ("mixing", 0)]
)
def test_states_of_own_elements_are_rows(name: str, states: int, spec: Spec) -> None:
    program = recurrence(spec, name, 40, 3)
    found, rng = walk_recurrences(program), np.random.default_rng(1)
    inputs = {t: rng.uniform(-1, 1, program.tensors[t].shape) for t in program.inputs}
    assert sum(s.is_recurrence for s in found.statements) == states
    assert name != "adjoint" or [s.axes[0].extent for s in found.statements] == [40, 40]
    expected, ours = evaluate(program, inputs), evaluate(found, inputs)
    for output in program.outputs:
        np.testing.assert_array_equal(ours[output], expected[output])


def check_recurrence(spec: Spec, name: str, dtype: DType, device: str) -> None:
    """Check a recurrence, whose rows are no whole blocks, on a device."""
    program = recurrence(spec, name, 45, 19, dtype)
    types = {t: program.tensors[t] for t in (*program.inputs, *program.outputs)}
    node = Node("n0", name, program.inputs, program.outputs, {})
    model = Graph("test", program.inputs, program.outputs, types, (node,))
    plan = build_graph(model, spec, find_target(device), CompileOptions())
    assert len(plan.kernels) < 4 and all(result.ok for result in plan.verify())


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.F64])
@pytest.mark.parametrize("name", ["decayed", "two_states", "adjoint"])
def test_one_kernel_walks_a_recurrence(name: str, dtype: DType, spec: Spec) -> None:
    check_recurrence(spec, name, dtype, "opencl")


@needs_cuda
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("name", ["decayed", "two_states", "adjoint"])
def test_a_gpu_walks_a_recurrence(name: str, dtype: DType, spec: Spec) -> None:
    check_recurrence(spec, name, dtype, "cuda")


@pytest.mark.parametrize("steps", [45, 64])
def test_walked_rows_stay_inside_tensors(steps: int, spec: Spec) -> None:
    program = walk_recurrences(recurrence(spec, "decayed", steps, 64))
    found = normalise(program.statements, program.tensors, program.outputs)
    assert isinstance(found, FusedGroup)
    target = find_target("cuda:sm_90")
    kernel = lower(found, choose(found, target)[0].schedule, {}, target)
    loads = [n for p in phases(kernel.items) for n in post_order(p.roots) if isinstance(n, Load) and not n.guards]
    assert loads
    for load in loads:
        low, high = load.address.bounds()
        assert low >= 0 and high < program.tensors[load.buffer].size
