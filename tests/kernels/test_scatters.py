"""Deterministic scatter: updates at positions from data combine as in NumPy.

The result does not depend on the order of arrival, for every element type and reduction. The work is that of the
updates, not of all pairs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.backends import find_target
from cuts.backends.compilers.cubins import find_toolchain
from cuts.backends.source import emit
from cuts.backends.source.atomics import combining_helpers
from cuts.backends.source.ctext import call_text
from cuts.backends.source.dialect.dialect import Dialect
from cuts.backends.source.dialect.dialects import CUDA, OPENCL
from cuts.ir import (
    COMBINERS,
    VECTOR_ADDITIONS,
    CompileOptions,
    CutsError,
    DType,
    Graph,
    Node,
    Program,
    Source,
    TensorType,
    parse_ir,
    print_ir,
)
from cuts.ops import Registry, evaluate
from cuts.ops.costs import program_costs
from cuts.ops.gradient.adjoint import adjoint
from cuts.passes.context import CompileContext
from cuts.passes.pipeline import compile_graph, stage_results
from cuts.passes.statements.scatters import deterministic_scatter as scatters
from cuts.passes.statements.scatters import scatter_rows
from cuts.tests.amounts import examples
from cuts.tests.needs import needs_opencl, needs_toolchain
from cuts.tests.ops.test_empty_tensors import graph
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from .extremes import is_real, saturate

NUMBERS = [d for d in DType if d is not DType.BOOL]
WAYS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "both": math.inf, "zero": -0.0}


@pytest.fixture
def no_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small scatters take the way of large ones."""
    monkeypatch.setattr(scatters, "MAX_COMPARED_PAIRS", 0)
    monkeypatch.setattr(scatters, "MAX_COMPARED_TERMS", 0)


@pytest.fixture
def numbered_rows(monkeypatch: pytest.MonkeyPatch, no_comparisons: None) -> None:
    """Let updates take the path of few rows of a large tensor."""
    monkeypatch.setattr(scatter_rows, "MIN_SAVED_ELEMENTS", -(1 << 40))


def updates_of(dtype: DType, count: int, width: int, seed: int, special: str = "") -> np.ndarray[Any, Any]:
    """Return values over an integer type's range, or of different magnitudes."""
    rng = np.random.default_rng(seed)
    if dtype.is_int:
        whole = np.frombuffer(rng.bytes(count * width * dtype.size), dtype.numpy)
        return whole.reshape(count, width).copy()
    spread = 3.0 if dtype is DType.F16 else 20.0
    found = (rng.standard_normal((count, width)) * np.exp(rng.uniform(-spread, spread, (count, 1)) / 2)).astype(
        dtype.numpy
    )
    if special:
        found[count // 2, 0] = SPECIAL[special]
    if special == "both":
        found[0, 0] = -math.inf
    return found


def combine_numpy(
    how: str, x: np.ndarray[Any, Any], places: np.ndarray[Any, Any], updates: np.ndarray[Any, Any]
) -> Any:
    """Return NumPy's result in float64; integers wrap."""
    result = x.astype(np.float64) if is_real(x) else x.copy()
    inside = (places >= -len(x)) & (places < len(x))
    with np.errstate(all="ignore"):
        WAYS[how].at(result, places[inside], updates[inside].astype(result.dtype))
    return result


def group_tolerance(how: str, dtype: DType, result: Any, updates: np.ndarray[Any, Any]) -> Any:
    """Return the rounding of the result.

    Sums add that of NumPy's own float64 in any order, products that of every factor.
    """
    if not dtype.is_float:
        return 0.0
    terms = len(updates) if how in ("add", "mul") else 0
    finite = np.nan_to_num(np.abs(updates.astype(np.float64)), nan=0, posinf=0).sum()
    own = max(dtype.element.epsilon, DType.F64.element.epsilon)
    step = terms * own if how == "mul" else own
    floor = {DType.F16: 2.0**-24}.get(dtype, 2.0**-126)  # the least number that is not rounded to nothing
    return np.abs(np.nan_to_num(result, posinf=0, neginf=0)) * step + finite * terms * 2.0**-52 + floor


CASES = st.tuples(
    st.sampled_from(sorted(WAYS)),
    st.sampled_from(NUMBERS),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(0, 99),
    st.sampled_from(["", "", *SPECIAL]),
)


def check(case: Any, target: str, slack: int, **attributes: Any) -> None:
    how, dtype, count, rows, width, seed, special = case
    rng = np.random.default_rng(seed)
    x = updates_of(dtype, rows, width, seed + 1)
    updates = updates_of(dtype, count, width, seed, special)
    places = rng.integers(-rows - slack, rows + slack, count)
    ids = places[:, None]
    plan = cuts.build(graph("scatter_nd", x, ids, updates, reduction=how, **attributes), target=target)
    found = plan.run({"x0": x, "x1": ids, "x2": updates})["y0"]
    with np.errstate(all="ignore"):
        expected = combine_numpy(how, x, places, updates)
        rounded = saturate(expected, dtype)
        nearest = rounded.astype(expected.dtype) if dtype is DType.F8E4M3 else expected
        wrong = np.abs(np.subtract(found.astype(expected.dtype), nearest)) if dtype.is_float else found != rounded
    same = (found == rounded) | (np.isnan(rounded) & np.isnan(found)) if dtype.is_float else ~wrong
    if dtype is DType.F32 and how == "mul":  # partial products of single precision may leave its range
        same = same | (np.abs(expected) > 1e30) | ~np.isfinite(found) | (np.abs(expected) < 1e-30)
    if dtype is DType.F16 and how == "mul":
        same = same | ~np.isfinite(found) | (np.abs(expected) < 1e-4)
    assert np.all(same | (np.nan_to_num(wrong, nan=np.inf) <= group_tolerance(how, dtype, expected, updates))), (
        found,
        expected,
    )


@given(CASES)
@settings(max_examples=40)
def test_the_reference_combines_as_numpy(case: Any) -> None:
    check(case, "reference", 0)


@needs_opencl
@pytest.mark.usefixtures("no_comparisons")
@given(CASES)
@settings(max_examples=examples(8, 100))
def test_kernels_combine_as_numpy_and_skip_invalid_positions(case: Any) -> None:
    check(case, "opencl", 2)


@needs_opencl
@pytest.mark.usefixtures("numbered_rows")
@given(CASES, st.sampled_from([DType.F32, DType.F64]))
@example(("add", DType.F32, 4, 1, 1, 0, ""), DType.F32)  # of one axis, as where they arrive
@settings(max_examples=examples(2, 60), phases=(Phase.explicit, Phase.generate))
def test_kernels_that_number_rows_combine_as_numpy(case: Any, dtype: DType) -> None:
    check(("add", dtype, *case[2:]), "opencl", 2)


@needs_opencl
@pytest.mark.parametrize("how", ["add", "mul"])
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64, DType.U8, DType.I64])
def test_atomic_operations_combine_as_numpy(how: str, dtype: DType) -> None:
    values = np.array([[1], [2], [-1], [2], [1], [2], [1]]).astype(dtype.numpy)  # exact in any order
    x, ids = values[:3], np.array([[0], [2], [2], [-3], [1], [2], [5]])
    plan = cuts.build(graph("scatter_nd", x, ids, values, reduction=how, atomic=True), target="opencl")
    found = plan.run({"x0": x, "x1": ids, "x2": values})["y0"]
    np.testing.assert_array_equal(found, combine_numpy(how, x, ids[:, 0], values).astype(dtype.numpy))


@needs_opencl
@pytest.mark.usefixtures("no_comparisons")
@pytest.mark.parametrize("how", ["add", "mul", "max"])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32, DType.F64, DType.I32])
def test_scatters_in_any_order_are_two_kernels(how: str, dtype: DType) -> None:
    values = np.array([[1], [2], [-1], [2], [1], [2], [1]]).astype(dtype.numpy)  # exact in any order
    x, ids = values[:3], np.array([[0], [2], [2], [-3], [1], [2], [5]])
    call = graph("scatter_nd", x, ids, values, reduction=how)
    plan = cuts.build(call, target="opencl", deterministic=False)
    found = plan.run({"x0": x, "x1": ids, "x2": values})["y0"]
    np.testing.assert_array_equal(found, combine_numpy(how, x, ids[:, 0], values).astype(dtype.numpy))
    # The tensor itself, and the updates; narrow types are converted.
    assert len(plan.kernels) == (3 if dtype is DType.BF16 and how != "max" else 2)


@needs_opencl
@pytest.mark.usefixtures("numbered_rows")
@pytest.mark.parametrize("how", ["add", "mul"])
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64])
def test_scatters_in_any_order_of_few_rows(how: str, dtype: DType) -> None:
    values = np.array([[1], [2], [-1], [2], [1]]).astype(dtype.numpy)
    x, ids = np.arange(22).reshape(11, 2).astype(dtype.numpy), np.array([[0], [2], [9], [-3], [11]])
    updates = np.concatenate([values, -values], 1)
    call = graph("scatter_nd", x, ids, updates, reduction=how)
    found = cuts.build(call, target="opencl", deterministic=False).run({"x0": x, "x1": ids, "x2": updates})["y0"]
    np.testing.assert_array_equal(found, combine_numpy(how, x, ids[:, 0], updates).astype(dtype.numpy))


@pytest.mark.usefixtures("no_comparisons")
def test_narrow_sums_in_any_order_are_wide() -> None:
    """Ones that follow 2048 are lost in half precision."""
    x, updates, ids = np.zeros((2, 1), np.float16), np.ones((4096, 1), np.float16), np.zeros((4096, 1), np.int64)
    call = graph("scatter_nd", x, ids, updates, reduction="add")
    program = Registry.builtin().instances.of_node(call.nodes[0], call).program
    (sent,) = (s for s in scatters.make_scatters_atomic(program).statements if s.into)
    assert scatters.make_scatters_atomic(program).tensors[sent.target].dtype is DType.F32


@needs_opencl
@pytest.mark.usefixtures("no_comparisons")
@pytest.mark.parametrize("special", ["nan", "inf", "-inf", "both"])
def test_scatters_in_any_order_have_special_values(special: str) -> None:
    x, updates = np.zeros((3, 1), np.float32), updates_of(DType.F32, 9, 1, 0, special)
    ids = np.arange(9)[:, None] % 3
    call = graph("scatter_nd", x, ids, updates, reduction="add")
    found = cuts.build(call, target="opencl", deterministic=False).run({"x0": x, "x1": ids, "x2": updates})["y0"]
    expected = combine_numpy("add", x, ids[:, 0], updates)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3 * np.abs(updates[np.isfinite(updates)]).max())


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64])
def test_sums_are_order_independent_and_round_once(dtype: DType) -> None:
    count, rows = 3000, 40
    rng = np.random.default_rng(0)
    updates, ids = updates_of(dtype, count, 2, 5), rng.integers(0, rows, (count, 1))
    if dtype is DType.F16:
        updates = updates / np.float16(64)
    x = np.zeros((rows, 2), dtype.numpy)
    plan = cuts.build(graph("scatter_nd", x, ids, updates, reduction="add"), target="opencl")
    assert len(plan.kernels) > 1  # not the one kernel that compares
    results = []
    for _ in range(3):
        order = rng.permutation(count)
        results.append(plan.run({"x0": x, "x1": ids[order], "x2": updates[order]})["y0"])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    exact = [[math.fsum(updates[ids[:, 0] == v, k].astype(np.float64)) for k in range(2)] for v in range(rows)]
    greatest = [[np.abs(updates[ids[:, 0] == v, k].astype(np.float64)).max() for k in range(2)] for v in range(rows)]
    bound = np.abs(exact) * dtype.element.epsilon + np.array(greatest) * count * 2.0 ** -(
        48 if dtype is not DType.F64 else 90
    )
    assert np.all(np.abs(results[0].astype(np.float64) - exact) <= bound + 2.0**-24 * (dtype is DType.F16))


def test_the_work_is_that_of_updates_and_elements() -> None:
    rows = updates = 20_000
    operands = [TensorType(DType.F32, (rows,)), TensorType(DType.I64, (updates, 1)), TensorType(DType.F32, (updates,))]
    for how in ("none", "add", "max", "min"):
        program = Registry.builtin()["scatter_nd"].instantiate(operands, {"reduction": how}).program
        settled = scatters.make_scatters_deterministic(program)
        assert program_costs(settled).flops < 60 * (rows + updates)


@pytest.mark.parametrize(("updates", "separate"), [(3999, False), (4000, True)])
def test_units_are_computed_once_where_many_terms_arrive(updates: int, separate: bool) -> None:
    operands = [TensorType(DType.F64, (500,)), TensorType(DType.I64, (updates, 1)), TensorType(DType.F64, (updates,))]
    program = Registry.builtin()["scatter_nd"].instantiate(operands, {"reduction": "add"}).program
    targets = [s.target for s in scatters.make_scatters_deterministic(program).statements]
    assert any(t.endswith(".unit") for t in targets) == separate


def test_only_terms_with_rests_are_sent_twice() -> None:
    x, ids, updates = np.zeros((500, 8), np.float32), np.zeros((4000, 1), np.int64), np.zeros((4000, 8), np.float32)
    model = graph("scatter_nd", x, ids, updates, reduction="add")
    found = compile_graph(model, Registry.builtin(), find_target("cuda:sm_90"), CompileOptions(), emit)
    sources = "\n".join(kernel.source for kernel in found.kernels)
    assert "_sum_i64(&" in sources and "_sum_f64(&" in sources
    assert " != 0.0 &&" in sources, "a rest is looked up where there is one"


@needs_opencl
def test_small_terms_keep_their_digits_beside_great_ones() -> None:
    rng = np.random.default_rng(0)
    ids, updates = rng.integers(0, 40, (4000, 1)), rng.standard_normal((4000, 2)).astype(np.float32)
    updates[ids[:, 0] >= 8] *= np.float32(2.0**-50)
    updates[ids[:, 0] == 3] = np.float32(3e38)
    updates[ids[:, 0] == 4, 1] = np.float32(np.inf)
    model = graph("scatter_nd", np.zeros((40, 2), np.float32), ids, updates, reduction="add")
    updates[ids[:, 0] == 3] = np.float32(2.0**20)
    found = cuts.build(model, target="opencl").run({"x0": np.zeros((40, 2), np.float32), "x1": ids, "x2": updates})[
        "y0"
    ]
    expected = combine_numpy("add", np.zeros((40, 2)), ids[:, 0], updates)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_scatter_replacement_computes_the_same() -> None:
    operands = [TensorType(DType.F64, (4, 2)), TensorType(DType.I64, (30, 1)), TensorType(DType.F64, (30, 2))]
    rng = np.random.default_rng(0)
    inputs = {
        "x": np.zeros((4, 2)),
        "indices": rng.integers(-4, 4, (30, 1)),
        "updates": updates_of(DType.F64, 30, 2, 1),
    }
    for how in WAYS:
        program = Registry.builtin()["scatter_nd"].instantiate(operands, {"reduction": how}).program
        expected = evaluate(program, inputs)["y"]
        for most in (0, 1 << 20):
            found = evaluate(settled_with(program, most), inputs)["y"]
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)


#: Operations that send rows to a tensor, and how many places each integer may name.
SCATTERS = {
    "two integers a row": ("scatter_nd", [(4, 3, 2), (9, 2), (9, 2)], {"reduction": "add"}, (4, 3)),
    "rows of a middle axis": ("gather_grad", [(2, 3, 2, 3), (3, 2)], {"axis": 1, "size": 5}, (5,)),
    "elements of each column": ("scatter_elements", [(6, 3), (4, 3), (4, 3)], {"reduction": "add"}, (6,)),
}


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("index", [DType.I32, DType.I64])
def test_rows_that_are_numbered_are_those_that_arrive(name: str, index: DType, numbered_rows: None) -> None:
    op, shapes, attributes, places = SCATTERS[name]
    rng = np.random.default_rng(0)
    at = len(shapes) - (1 if op == "gather_grad" else 2)
    types = [TensorType(index if n == at else DType.F32, shape) for n, shape in enumerate(shapes)]
    program = Registry.builtin()[op].instantiate(types, attributes).program
    ends = np.array(places)  # of each of a row's integers
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    values[at] = rng.integers(-ends, ends, shapes[at]).astype(index.numpy)
    inputs = dict(zip(program.inputs, values, strict=True))
    settled = scatters.make_scatters_deterministic(program)
    assert any(s.target.endswith(".slot") for s in settled.statements)
    (result,) = program.outputs
    np.testing.assert_allclose(
        evaluate(settled, inputs)[result], evaluate(program, inputs)[result], rtol=1e-6, atol=1e-6
    )


def test_few_rows_of_large_table_cost_their_writes() -> None:
    """The gradient of a lookup writes the table once.

    It has integers for the rows that arrive.
    """
    operands = [TensorType(DType.F32, (64, 16)), TensorType(DType.I64, (64,))]
    program = Registry.builtin()["gather_grad"].instantiate(operands, {"axis": 0, "size": 100_000}).program
    settled = scatters.make_scatters_deterministic(program)
    large = [name for name, type_ in settled.tensors.items() if type_.size >= 100_000 * 16]
    assert large == ["dx"]
    crowded = Registry.builtin()["gather_grad"].instantiate(operands, {"axis": 0, "size": 100}).program
    assert not any(s.target.endswith(".slot") for s in scatters.make_scatters_deterministic(crowded).statements)


@pytest.mark.parametrize(("picks", "compared"), [(1, True), (3, True), (9, False)])
def test_element_with_few_terms_looks_for_them(picks: int, compared: bool) -> None:
    """Gradient of a value that each row picks.

    A cross entropy has one. It is one statement that fuses with its reader. Positions may be negative, or repeated.
    """
    rng = np.random.default_rng(0)
    operands = [TensorType(DType.F32, (300, 500)), TensorType(DType.I64, (300, picks))]
    program = Registry.builtin()["gather_elements"].instantiate(operands, {"axis": 1}).program
    derived = adjoint(program, ["x"], ["y"]).program
    settled = scatters.make_scatters_deterministic(derived)
    assert any(s.into for s in derived.statements)
    assert any(s.into for s in settled.statements) is not compared
    places = rng.integers(-500, 500, (300, picks))
    places[:, -1] = places[:, 0]
    given = {"indices": places, "dy": rng.standard_normal((300, picks))}
    inputs = {name: given["indices" if name == "indices" else "dy"] for name in derived.inputs}
    (result,) = derived.outputs
    np.testing.assert_allclose(evaluate(settled, inputs)[result], evaluate(derived, inputs)[result], atol=1e-12)


def test_a_diagonal_is_written_where_both_places_agree() -> None:
    """Both dims run along one axis.

    Each is compared once, not both at each element.
    """
    text = 'op t "t" { in x: f32[N], ids: i64[N] out y: f32[N, N, 3] scatter sum y[n, n, ids[n]] = x[n] for n < N }'
    program = (
        Registry.builtin()
        .extend(Source("t.cuts", text))["t"]
        .instantiate([TensorType(DType.F32, (40,)), TensorType(DType.I64, (40,))])
        .program
    )
    inputs = {"x": np.arange(1.0, 41.0), "ids": np.arange(40) % 3}
    settled = scatters.make_scatters_deterministic(program)
    assert not any(s.into for s in settled.statements)
    np.testing.assert_array_equal(evaluate(settled, inputs)["y"], evaluate(program, inputs)["y"])


def settled_with(program: Program, most: int) -> Program:
    before, scatters.MAX_COMPARED_PAIRS = scatters.MAX_COMPARED_PAIRS, most
    try:
        return scatters.make_scatters_deterministic(program)
    finally:
        scatters.MAX_COMPARED_PAIRS = before


@needs_toolchain
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_every_atomic_operation_compiles_for_cuda(arch: str) -> None:
    names = [f"{into}_{dtype}" for into in ("sum", "prod", "min", "max") for dtype in NUMBERS]
    used = {f"cuts_{where}_{name}" for where in ("into", "meet") for name in names}
    text, more = combining_helpers(used, CUDA)
    more |= {f"cuts_{name}" for name in VECTOR_ADDITIONS}
    calls = [f"{name}(({CUDA.memory_type(DType(name.rsplit('_', 1)[1]))}*)p, 3);" for name in sorted(used)]
    calls += [f"cuts_{name}((float*)p{', 3' * width});" for name, width in VECTOR_ADDITIONS.items()]
    source = CUDA.helpers_of(more) + text + 'extern "C" __global__ void every(void* p) {\n' + "\n".join(calls) + "\n}\n"
    code, _ = find_toolchain().compile(source, arch, 120.0)
    assert code


WRONG = {
    ("f32", "scatter sum y[index(ids[n], 3) + 1] = x[n]"): "which is no element",
    ("f32", "scatter one y[index(ids[n], 3) + n] = x[n]"): "is written out of bounds",
    ("f32", "y[ids[n]] = x[n]"): "an element could be written twice, or never",
    ("f32", "scatter sum y[n] = y[n]"): "'y' is read by the statement that writes it",
    ("f32", "y[n] = x[n] for n < N scatter sum y[ids[n]] = x[n]"): "writes 8 of the 4 elements",
    ("bool", "scatter sum y[ids[n]] = x[n] > 0"): "holds conditions",
}


@pytest.mark.parametrize("case", WRONG)
def test_meaningless_scatter_is_an_error(case: tuple[str, str]) -> None:
    kind, line = case
    text = f'op t "t" {{ type B: bool in x: f32[N], ids: i64[N] attr d: dtype out y: d[N] {line} for n < N }}'
    with pytest.raises(CutsError, match=WRONG[case]):
        _instantiate(text, {"d": DType(kind)})


def _instantiate(text: str, attributes: Any) -> object:
    registry = Registry.builtin().extend(Source("t.cuts", text))
    return registry["t"].instantiate([TensorType(DType.F32, (4,)), TensorType(DType.I64, (4,))], attributes)


@needs_opencl
def test_a_value_arrives_at_a_sum(tmp_path: Path) -> None:
    """Sums outside of the tensor drop values, and negative integers too."""
    text = """op t "t" { in x: f32[J, K], at: i64[J] let N = J * K out y: f32[N]
      scatter one y[k + index(at[j], N)] = x[j, k] for j < J, k < K }"""
    (tmp_path / "t.cuts").write_text(text)
    types = {"x": TensorType(DType.F32, (4, 3)), "at": TensorType(DType.I64, (4,)), "y": TensorType(DType.F32, (12,))}
    model = Graph("g", ("x", "at"), ("y",), types, (Node("n", "t", ("x", "at"), ("y",), {}),))
    plan = cuts.build(model, "opencl", spec=[tmp_path / "t.cuts"])
    x = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    for at, kept in (([9, 0, 6, 3], [1, 3, 2, 0]), ([9, 0, 12, -2], [1, None, None, 0])):
        found = plan.run({"x": x, "at": np.array(at)})["y"].reshape(4, 3)
        for row, source in zip(found, kept, strict=True):
            assert source is None or row.tolist() == x[source].tolist()


@needs_opencl
@pytest.mark.parametrize("compared", [True, False])
def test_axis_of_one_element_is_compared_once(compared: bool, request: pytest.FixtureRequest) -> None:
    if not compared:
        request.getfixturevalue("no_comparisons")
    types = {"dy": TensorType(DType.F32, (5,)), "i": TensorType(DType.I64, (5,)), "dx": TensorType(DType.F32, (1,))}
    node = Node("n", "gather_grad", ("dy", "i"), ("dx",), {"axis": 0, "size": 1})
    plan = cuts.build(Graph("g", ("dy", "i"), ("dx",), types, (node,)), "opencl")
    inputs = {"dy": np.arange(1.0, 6.0, dtype=np.float32), "i": np.array([7, 0, -1, -2, 2**40], np.int64)}
    assert plan.run(inputs)["dx"].tolist() == [2.0 + 3.0]


def test_a_scatter_over_nothing_is_the_identity() -> None:
    text = 'op t "t" { in x: f32[N], ids: i64[N] out y: f32[3] scatter max y[ids[n]] = x[n] for n < N }'
    decl = Registry.builtin().extend(Source("t.cuts", text))["t"]
    program = decl.instantiate([TensorType(DType.F32, (0,)), TensorType(DType.I64, (0,))]).program
    assert np.all(np.isneginf(evaluate(program, {"x": np.zeros(0, np.float32), "ids": np.zeros(0, np.int64)})["y"]))


def test_the_gradient_of_a_lookup_is_a_scatter() -> None:
    rows = picks = 20_000
    operands = [TensorType(DType.F32, (rows, 2)), TensorType(DType.I64, (picks, 2))]
    program = Registry.builtin()["gather_elements"].instantiate(operands, {"axis": 0}).program
    derived = adjoint(program, ["x"], ["y"]).program
    assert [s.into for s in derived.statements if s.into] == ["sum"]
    settled = scatters.make_scatters_deterministic(derived)
    assert program_costs(settled).flops < 60 * 2 * (rows + picks)


def test_atomic_kernels_are_printed_and_read_back() -> None:
    operands = (np.zeros((40, 2), np.float32), np.zeros((2000, 1), np.int64), np.zeros((2000, 2), np.float32))
    context = CompileContext(Registry.builtin(), find_target("opencl"), CompileOptions(), emit)
    *_, (_, made) = stage_results(graph("scatter_nd", *operands, reduction="add"), context)
    printed = [print_ir(node) for each in (made.blocks, made.threads) for node in each.values()]
    printed += [print_ir(group.form) for group in made.launches.scheduled.partition.unique.values()]
    assert sum(" into sum: " in text for text in printed) == 4
    assert [print_ir(parse_ir(text)) for text in printed] == printed


@pytest.mark.parametrize("dialect", [CUDA, OPENCL], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float])
@pytest.mark.parametrize("into", ["max", "min"])
def test_float_extremes_equal_those_of_other_kernels(into: str, dtype: DType, dialect: Dialect) -> None:
    """The table's function decides about changes.

    As an integer a NaN whose sign bit is set is the least.
    """
    text, _ = combining_helpers([f"cuts_into_{into}_{dtype.value}"], dialect)
    assert call_text(COMBINERS[into].fn, ("a", "v"), dtype, dialect) in text


@needs_opencl
def test_computed_positions_are_stored_before_the_scatter(no_comparisons: None) -> None:
    """Gradient of a cross entropy with an ignored class.

    A kernel computed the positions and scattered to them.
    """
    nodes = (
        Node("n0", "abs", ("at",), ("places",)),
        Node("n1", "neg", ("dy",), ("moved",)),
        Node("n2", "scatter_elements", ("zeros", "places", "moved"), ("y",), {"axis": 0, "reduction": "add"}),
    )
    floats, places = TensorType(DType.F32, (40,)), TensorType(DType.I64, (40,))
    types = {"dy": floats, "at": places, "places": places, "moved": floats}
    types |= {name: TensorType(DType.F32, (90,)) for name in ("zeros", "y")}
    model = Graph("computed", ("dy", "at"), ("y", "places"), types, nodes, {"zeros": np.zeros(90, np.float32)})
    plan = cuts.build(model, target="opencl")
    rng = np.random.default_rng(2)
    given_ = {"dy": rng.standard_normal(40).astype(np.float32), "at": rng.integers(-89, 90, 40)}
    assert all(each.ok for each in plan.verify(given_))
