"""Meaning of numbers in whole graphs.

NaN, infinities, indices of 64 bits, overflow between fused operations, means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.compile.plan import CompiledPlan
from cuts.ir.compiled import CompileOptions, Mode
from cuts.ir.errors import GraphError
from cuts.ir.graph import Graph, Node
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType, dtype_of_numpy
from cuts.ops import Registry
from cuts.passes.fusion import build_programs, shift_means
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit
from cuts.tests.needs import DEVICES

from .cases import legal_points, unite
from .extremes import NUMBERS, extremes, saturate
from .test_points import SPACES, _device, _run

REGISTRY = Registry.builtin()
TARGETS = [pytest.param("reference"), *DEVICES]
NAN, INF = float("nan"), float("inf")


def node(result: str, op: str, *operands: str, **attributes: Any) -> Node:
    return Node(result, op, operands, (result,), attributes)


def graph_of(inputs: dict[str, np.ndarray], nodes: tuple[Node, ...]) -> Graph:
    """Return a graph of nodes over arrays.

    The last result is its output.
    """
    types = {name: TensorType(dtype, a.shape) for name, a in inputs.items() if (dtype := dtype_of_numpy(a.dtype))}
    for each in nodes:
        made = REGISTRY[each.op].instantiate([types[v] for v in each.inputs if v], each.attributes)
        types |= dict(zip(each.outputs, made.output_types, strict=False))
    return Graph("numbers", tuple(inputs), nodes[-1].outputs[:1], types, nodes)


def compile_nodes(
    inputs: dict[str, np.ndarray], nodes: tuple[Node, ...], target: str, mode: Mode = "mixed"
) -> CompiledPlan:
    return build_graph(graph_of(inputs, nodes), load_spec([]), find_target(target), CompileOptions(mode=mode))


def result(target: str, inputs: dict[str, np.ndarray], *nodes: Node, mode: Mode = "mixed") -> np.ndarray:
    """Run nodes on a target and return the last result."""
    (found,) = compile_nodes(inputs, nodes, target, mode).run(inputs).values()
    return np.asarray(found)


# ---- NaN and infinities

WINDOWS = np.array([[[1.0, NAN, 2.0, 3.0, 4.0, 5.0]]], np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("max_pool", {"kernel_shape": (2,), "strides": (2,)}, [NAN, 3, 5]),
        ("max_pool", {"kernel_shape": (3,), "strides": (3,), "pads": (1, 2)}, [NAN, 4, 5]),
        ("global_max_pool", {}, [NAN]),
        ("average_pool", {"kernel_shape": (2,), "strides": (2,)}, [NAN, 2.5, 4.5]),
        ("softmax", {}, [NAN] * 6),
        ("clip", {"min": 0.0, "max": 6.0}, [1, NAN, 2, 3, 4, 5]),
        ("hard_swish", {}, [2 / 3, NAN, 5 / 3, 3, 4, 5]),
        ("hardmax", {}, [0, 1, 0, 0, 0, 0]),
        ("layer_norm", {}, [NAN] * 6),
    ],
)
def test_nan_propagates(op: str, attributes: dict[str, Any], expected: list[float], target: str) -> None:
    inputs = {"x": WINDOWS} | ({"scale": np.ones(6, np.float32)} if op == "layer_norm" else {})
    found = result(target, inputs, node("y", op, *inputs, **attributes))
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_argmax_is_position_of_first_nan(target: str) -> None:
    rows = np.array([[1, NAN, INF, NAN], [-INF, -INF, -INF, -INF], [3, 1, 3, NAN], [NAN, 0, 0, 0]], np.float32)
    for op in ("argmax", "argmin"):
        found = result(target, {"x": rows}, node("y", op, "x", axis=1, keepdims=False))
        np.testing.assert_array_equal(found, getattr(np, op)(rows, axis=1))


@pytest.mark.parametrize("target", TARGETS)
def test_log_sum_exp_of_infinities(target: str) -> None:
    rows = np.array([[-INF, -INF, -INF], [INF, 0, 1], [INF, INF, -INF], [NAN, INF, 0], [-INF, 0, 0]], np.float32)
    found = result(target, {"x": rows}, node("y", "reduce_log_sum_exp", "x", axes=(1,), keepdims=False))
    np.testing.assert_allclose(found, [-INF, INF, INF, NAN, np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["expm1", "log1p", "elu", "celu", "selu", "softplus"])
def test_functions_near_zero_keep_their_digits(op: str, target: str) -> None:
    x = np.array([1e-8, -1e-8, -1e-6, 3e-20, -18.0, -80.0], np.float32)
    x = x[x > -1] if op == "log1p" else x
    scale = 1.7580993408473766
    meaning = {
        "expm1": np.expm1, "log1p": np.log1p, "softplus": lambda v: np.log1p(np.exp(v)),
        "elu": lambda v: np.where(v > 0, v, np.expm1(v)),
        "celu": lambda v: np.where(v > 0, v, np.expm1(v)),
        "selu": lambda v: np.where(v > 0, 1.0507009873554805 * v, scale * np.expm1(v)),
    }  # fmt: skip
    found = result(target, {"x": x}, node("y", op, "x"))
    np.testing.assert_allclose(found, meaning[op](x.astype(np.float64)), rtol=1e-6)


# ---- means


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["no-fusion", "mixed"])
@pytest.mark.parametrize("value", [123.456, -1e6, 0.1])
def test_normalised_constant_rows_are_zero(value: float, mode: Mode, target: str) -> None:
    x, ones = np.full((2, 4, 1003), value, np.float32), np.ones(1003, np.float32)
    inputs = {"x": x, "scale": ones, "channels": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)}
    nodes = (
        node("layer", "layer_norm", "x", "scale"),
        node("group", "group_norm", "x", "channels", "bias", num_groups=2),
        node("mean", "reduce_mean", "x", axes=(2,)),
        node("centred", "sub", "x", "mean"),
        node("y", "sum", "layer", "group", "centred"),
    )
    assert np.abs(result(target, inputs, *nodes, mode=mode)).max() == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_mean_of_infinities_is_what_it_was(target: str) -> None:
    rows = np.array([[INF, 1, 2], [1, -INF, 2], [3e38, -3e38, 1.5], [NAN, 0, 1], [1, 2, 3]], np.float32)
    found = result(target, {"x": rows}, node("m", "reduce_mean", "x", axes=(1,)), node("y", "sub", "x", "m"))
    with np.errstate(invalid="ignore"):
        wide = rows.astype(np.float64)
        expected = (wide - wide.mean(axis=1, keepdims=True)).astype(np.float32)
    # A sum is as exact as its largest term is, for any order in which a kernel adds.
    largest = np.max(np.abs(rows), axis=1, where=np.isfinite(rows), initial=0)
    for mine, right, scale in zip(found, expected, largest, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-6, atol=float(scale) * 1e-6)


def test_mean_without_centring_stays_unchanged() -> None:
    x = {"x": np.zeros((3, 5), np.float32)}
    programs = build_programs(
        graph_of(x, (node("m", "reduce_mean", "x", axes=(1,)), node("y", "add", "x", "m"))), REGISTRY
    )
    assert shift_means(programs) == programs


def run_unfused(target: str, inputs: dict[str, np.ndarray], nodes: tuple[Node, ...], *results: str) -> dict[str, Any]:
    """Run nodes in one plan, unfused, and return some results."""
    graph = graph_of(inputs, nodes)
    graph = Graph(graph.name, graph.inputs, results, graph.types, graph.nodes)
    return build_graph(graph, load_spec([]), find_target(target), CompileOptions(mode="mixed")).run(inputs)


@pytest.mark.parametrize("target", TARGETS)
def test_literals_are_what_they_are_called(target: str) -> None:
    floats, values = [d for d in DType if d.is_float], [NAN, INF, -INF, -0.0, 1.5]
    inputs = {f"x{d}": np.ones(2, d.numpy) for d in floats}
    nodes = [node(f"{d} {v}", "pad", f"x{d}", pads=(1, 1), value=v) for d in floats for v in values]
    found = run_unfused(target, inputs, tuple(nodes), *(n.outputs[0] for n in nodes))
    for dtype in floats:
        for value in values:
            held = float(saturate(np.array(value), dtype))
            np.testing.assert_array_equal(found[f"{dtype} {value}"].astype(float), [held, 1, 1, held])


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
@pytest.mark.parametrize("target", TARGETS)
def test_zero_keeps_its_sign_beside_other_zero(target: str, order: tuple[float, ...]) -> None:
    """No node or kernel of one zero replaces that of the other.

    Both are in one program and one process.
    """
    inputs = {"x": np.ones(3, np.float32)}
    nodes = [node(f"{value}", "pad", "x", pads=(1, 1), value=value) for value in order]
    for own in (tuple(nodes), *((each,) for each in nodes)):
        found = run_unfused(target, inputs, own, *(n.outputs[0] for n in own))
        for each in own:
            array = found[each.outputs[0]]
            assert np.signbit(array[[0, -1]]).tolist() == 2 * [each.outputs[0] == "-0.0"], each.outputs[0]


@pytest.mark.parametrize("target", TARGETS)
def test_condition_is_0_or_1_for_any_number(target: str) -> None:
    inputs = {f"x{d}": np.array([0, 1, 2, 100], d.numpy) for d in NUMBERS}
    tests = [node(f"b{d}", "cast", f"x{d}", to="bool") for d in NUMBERS]
    nodes = [node(f"y{d}", "cast", f"b{d}", to="i32") for d in NUMBERS]
    for name, found in run_unfused(target, inputs, (*tests, *nodes), *(n.outputs[0] for n in nodes)).items():
        assert found.tolist() == [0, 1, 1, 1], name


# ---- integers


@pytest.mark.parametrize("target", TARGETS)
def test_fused_integers_wrap_between_operations(target: str) -> None:
    x = np.array([-(2**31), 2**31 - 1, 3, -5], np.int32)
    four, big = np.full(4, 4, np.int32), np.full(4, 2**30, np.int32)
    found = result(
        target, {"x": x, "b": four}, node("a", "abs", "x"), node("y", "bit_shift", "a", "b", direction="RIGHT")
    )
    np.testing.assert_array_equal(found, [-(2**27), 2**27 - 1, 0, 0])
    found = result(target, {"x": x, "b": big}, node("a", "mul", "x", "b"), node("y", "div", "a", "b"))
    np.testing.assert_array_equal(found, [0, -1, -1, -1])
    found = result(target, {"x": x, "b": big}, node("a", "add", "x", "x"), node("y", "greater", "a", "x"))
    np.testing.assert_array_equal(found, [True, False, True, False])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [DType.U8, DType.I8, DType.I16, DType.I32, DType.U64], ids=str)
def test_means_of_integers_round_towards_zero(dtype: DType, target: str) -> None:
    x = np.random.default_rng(3).choice(extremes(dtype)[1:], (4, 300)) // dtype.numpy.type(2 if dtype.size == 8 else 1)
    x = x % 1000 if dtype.size == 8 else x
    exact = [int(abs(t) // 300 * np.sign(t)) for t in x.astype(object).sum(axis=1)]
    found = result(target, {"x": x}, node("y", "reduce_mean", "x", axes=(1,), keepdims=False))
    assert found.tolist() == exact


def test_the_reference_refuses_negative_powers_of_integers() -> None:
    inputs = {"a": np.array([2, 3], np.int32), "b": np.array([1, -2], np.int32)}
    with pytest.raises(
        GraphError, match=r"node 'y': expected exponents of at least 0 for integers, found 3 to the power -2"
    ):
        result("reference", inputs, node("y", "pow", "a", "b"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_integer_conversions_wrap_and_small_ones_are_exact(source: DType, target: str) -> None:
    values = extremes(source) if source.is_int else np.array([0.0, -0.0, 1.5, 2.0, 100.0, 3.75], source.numpy)
    targets = [d for d in DType if d is not source and not (source.is_int and d is DType.F16)]
    nodes = [node(f"y{d}", "cast", "x", to=d.value) for d in targets]
    graph = graph_of({"x": values}, tuple(nodes))
    graph = Graph("casts", graph.inputs, tuple(n.name for n in nodes), graph.types, graph.nodes)
    found = build_graph(graph, load_spec([]), find_target(target), CompileOptions(mode="no-fusion")).run({"x": values})
    for dtype in targets:
        np.testing.assert_array_equal(found[f"y{dtype}"], saturate(values, dtype), err_msg=str(dtype))


@pytest.mark.parametrize("target", DEVICES)
def test_indices_beyond_32_bits_are_out_of_range(target: str) -> None:
    x = np.arange(10, 15, dtype=np.float32)
    places = np.array([2**32, 2**32 + 1, -(2**32), 2**62, -(2**63), 2**63 - 1, 1, -1], np.int64)
    nearest = np.array([14, 14, 10, 14, 10, 14, 11, 14], np.float32)
    np.testing.assert_array_equal(result(target, {"x": x, "i": places}, node("y", "gather", "x", "i", axis=0)), nearest)
    np.testing.assert_array_equal(
        result(target, {"x": x, "i": places}, node("y", "gather_elements", "x", "i", axis=0)), nearest
    )
    np.testing.assert_array_equal(
        result(target, {"x": x, "i": places[:, None]}, node("y", "gather_nd", "x", "i")), nearest
    )
    updates = -np.arange(1, 9, dtype=np.float32)
    for op, indices in (("scatter_elements", places), ("scatter_nd", places[:, None])):
        for reduction, expected in (
            ("none", [10, -7, 12, 13, -8]),
            ("add", [10, 4, 12, 13, 6]),
            ("min", [10, -7, 12, 13, -8]),
        ):
            inputs = {"x": x, "i": indices, "u": updates}
            np.testing.assert_array_equal(result(target, inputs, node("y", op, *inputs, reduction=reduction)), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [d for d in NUMBERS if d.is_int], ids=str)
@pytest.mark.parametrize("how", ["min", "max"])
def test_scattering_leaves_what_no_update_names(how: str, dtype: DType, target: str) -> None:
    x = np.array([dtype.element.highest, dtype.element.lowest, 3, dtype.element.highest], dtype.numpy)
    inputs = {"x": x, "i": np.array([2], np.int64), "u": np.array([2], dtype.numpy)}
    found = result(target, inputs, node("y", "scatter_elements", *inputs, reduction=how))
    np.testing.assert_array_equal(found, [x[0], x[1], 2 if how == "min" else 3, x[3]])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor", "add"])
def test_computed_integers_are_padded_afterwards(op: str, target: str) -> None:
    a, b = np.array([5, -3, 127], np.int8), np.array([3, 3, 1], np.int8)
    inputs = {"a": a, "b": b}
    found = result(target, inputs, node("c", op, "a", "b"), node("d", "pad", "c", pads=(1, 2)), node("y", "neg", "d"))
    whole = {"bitwise_and": a & b, "bitwise_or": a | b, "bitwise_xor": a ^ b, "add": a + b}[op]
    np.testing.assert_array_equal(found, -np.pad(whole, (1, 2)))


# ---- padded K blocks

SPARSE = """op spread "a sum in which one factor varies along fewer axes than the other" {
  in x: f32[N, C], w: f32[C, R]
  out y: f32[N]
  y[n] = sum[c < C, r < R] x[n, c] * w[c, r]
}"""


@pytest.mark.parametrize("device", DEVICES)
def test_missing_elements_make_no_nan_of_infinity(device: str) -> None:
    registry = REGISTRY.extend(Source("spread.cuts", SPARSE))
    types = {"x": TensorType(DType.F32, (3, 2)), "w": TensorType(DType.F32, (2, 33)), "y": TensorType(DType.F32, (3,))}
    programs = build_programs(Graph("g", ("x", "w"), ("y",), types, (node("y", "spread", "x", "w"),)), registry)
    group = unite(programs, "y")
    inputs = {"x": np.array([[INF, 1], [1, 1], [1, -INF]], np.float32), "w": np.ones((2, 33), np.float32)}
    space = make_space(group, SPACES[device])
    schedules = [s for structure in space.templates for s in legal_points(space, structure, 5, 3)]
    for schedule in schedules[:: max(1, len(schedules) // 12)]:
        function = emit(extract(lower(group, schedule, {}, SPACES[device])), device)
        found = _run(_device(device), function, group, {t: inputs[t] for t in group.inputs})
        np.testing.assert_array_equal(next(iter(found.values())), [INF, 66, -INF], err_msg=function.source)
