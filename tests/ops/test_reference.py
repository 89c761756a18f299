"""The declarations' reference against ONNX's own, on odd shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuts.ir.types import TensorType, dtype_of_numpy
from cuts.ops import Registry
from cuts.ops.reference import copy_array, evaluate

helper = pytest.importorskip("onnx.helper")
reference = pytest.importorskip("onnx.reference")

REGISTRY = Registry.builtin()
RNG = np.random.default_rng(7)


def run(op: str, *operands: np.ndarray | None, **attributes: Any) -> list[np.ndarray]:
    """Evaluate an op of the vocabulary."""
    types = [None if x is None else TensorType(dtype_of_numpy(x.dtype), x.shape) for x in operands]
    instance = REGISTRY[op].instantiate(types, attributes)
    results = evaluate(
        instance.program, {n: x for n, x in zip(instance.inputs, operands, strict=False) if n is not None}
    )
    for name, type_ in zip(instance.outputs, instance.output_types, strict=True):
        assert results[name].shape == type_.shape
    return [results[name] for name in instance.outputs]


def oracle(
    op: str, *operands: np.ndarray | None, outputs: int = 1, opset: int = 20, **attributes: Any
) -> list[np.ndarray]:
    """Evaluate one ONNX node by the reference implementation of the ONNX package."""
    names = ["" if x is None else f"x{n}" for n, x in enumerate(operands)]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, operands, strict=True)
        if n
    ]
    outs = [helper.make_tensor_value_info(n, 0, None) for n in results]
    model = helper.make_model(
        helper.make_graph([node], "g", infos, outs), opset_imports=[helper.make_opsetid("", opset)]
    )
    return reference.ReferenceEvaluator(model).run(None, {n: x for n, x in zip(names, operands, strict=True) if n})


def close(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], tolerance: float = 2e-5) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == np.shape(b)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance)


def f(*shape: int, low: float = -3, high: float = 3) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal"}
UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "celu": "Celu", "cos": "Cos", "cosh": "Cosh", "elu": "Elu", "erf": "Erf", "exp": "Exp",
    "floor": "Floor", "gelu": "Gelu", "hard_sigmoid": "HardSigmoid", "hard_swish": "HardSwish",
    "leaky_relu": "LeakyRelu", "log": "Log", "mish": "Mish", "neg": "Neg", "reciprocal": "Reciprocal", "relu": "Relu",
    "round": "Round", "selu": "Selu", "shrink": "Shrink", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin",
    "sinh": "Sinh", "softplus": "Softplus", "softsign": "Softsign", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
    "thresholded_relu": "ThresholdedRelu", "identity": "Identity",
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_unary_equals_onnx(op: str) -> None:
    low, high = {"acosh": (1.1, 4), "acos": (-0.9, 0.9), "asin": (-0.9, 0.9), "atanh": (-0.9, 0.9)}.get(op, (-3, 3))
    x = f(3, 5, low=0.1 if op in POSITIVE else low, high=high)
    close(run(op, x), oracle(UNARY[op], x))


BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "min": "Min", "max": "Max", "prelu": "PRelu",
    "sum": "Sum", "mean": "Mean", "greater": "Greater", "greater_or_equal": "GreaterOrEqual", "less": "Less",
    "less_or_equal": "LessOrEqual",
    "equal": "Equal",
}  # fmt: skip


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("shapes", [((3, 5), (3, 5)), ((2, 3, 5), (3, 1)), ((2, 3, 5), ())], ids=str)
def test_binary_broadcasts_as_onnx(op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (f(*s, low=0.5) for s in shapes)
    close(run(op, a, b), oracle(BINARY[op], a, b))


CASES: list[tuple[str, str, list[Any], dict[str, Any], dict[str, Any]]] = [
    # our op, ONNX op, operands, our attributes, ONNX attributes (extra operands under "operands")
    ("conv", "Conv", [f(2, 4, 9, 7), f(6, 4, 3, 2), f(6)],
     {"pads": (1, 0, 2, 1), "strides": (2, 1), "dilations": (1, 2)}, {}),
    ("conv", "Conv", [f(1, 4, 7, 7), f(6, 2, 3, 3)], {"groups": 2, "pads": (1, 1, 1, 1)},
     {"group": 2, "pads": (1, 1, 1, 1)}),
    ("conv", "Conv", [f(1, 4, 7, 7), f(8, 1, 3, 3), f(8)], {"groups": 4}, {"group": 4}),
    ("conv", "Conv", [f(1, 3, 11), f(5, 3, 4)], {"strides": (3,)}, {"strides": (3,)}),
    ("conv", "Conv", [f(1, 2, 4, 5, 6), f(3, 2, 2, 2, 2)], {}, {}),
    ("conv_transpose", "ConvTranspose", [f(1, 4, 4, 5), f(4, 3, 3, 2), f(3)], {"strides": (2, 3), "pads": (1, 0, 0, 1)},
     {}),
    ("conv_transpose", "ConvTranspose", [f(1, 2, 4, 5), f(2, 3, 3, 3)], {"strides": (2, 2), "output_padding": (1, 1)},
     {}),
    ("gemm", "Gemm", [f(3, 5), f(7, 3), f(7)], {"trans_a": True, "trans_b": True, "alpha": 0.5, "beta": 2.0},
     {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("gemm", "Gemm", [f(3, 5), f(5, 7)], {}, {}),
    ("max_pool", "MaxPool", [f(1, 3, 8, 9)], {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1)}, {}),
    ("average_pool", "AveragePool", [f(1, 3, 8, 9)], {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1)},
     {}),
    ("average_pool", "AveragePool", [f(1, 3, 8)],
     {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "count_include_pad": True},
     {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "count_include_pad": 1}),
    ("global_average_pool", "GlobalAveragePool", [f(2, 3, 5, 4)], {}, {}),
    ("global_max_pool", "GlobalMaxPool", [f(2, 3, 5, 4)], {}, {}),
    ("batch_norm", "BatchNormalization", [f(2, 3, 5), f(3), f(3), f(3), f(3, low=0.5)], {}, {}),
    ("layer_norm", "LayerNormalization", [f(2, 3, 5), f(5), f(5)], {}, {}),
    ("layer_norm", "LayerNormalization", [f(2, 3, 5), f(3, 5)], {"axis": 1}, {"axis": 1}),
    ("instance_norm", "InstanceNormalization", [f(2, 3, 5, 4), f(3), f(3)], {}, {}),
    ("softmax", "Softmax", [f(2, 3, 5)], {"axis": 1}, {"axis": 1}),
    ("log_softmax", "LogSoftmax", [f(2, 3, 5)], {}, {}),
    ("lp_norm", "LpNormalization", [f(2, 3, 5)], {"axis": 1, "p": 2}, {}),
    ("lrn", "LRN", [f(5, 5, 3, 2)], {"size": 3}, {"size": 3}),
    ("transpose", "Transpose", [f(2, 3, 5)], {"perm": (1, 2, 0)}, {"perm": (1, 2, 0)}),
    ("transpose", "Transpose", [f(2, 3, 5)], {}, {}),
    ("concat", "Concat", [f(2, 3), f(2, 1), f(2, 4)], {"axis": -1}, {"axis": -1}),
    ("gather", "Gather", [f(4, 3, 5), np.array([[0, -1], [2, 1]])], {"axis": 1}, {"axis": 1}),
    ("gather_elements", "GatherElements", [f(2, 3), np.array([[0, -1], [2, 1]])], {"axis": 1}, {"axis": 1}),
    ("gather_nd", "GatherND", [f(4, 3, 2), np.array([[0, 1], [3, 2]])], {}, {}),
    ("depth_to_space", "DepthToSpace", [f(1, 12, 2, 3)], {"blocksize": 2}, {"blocksize": 2}),
    ("depth_to_space", "DepthToSpace", [f(1, 12, 2, 3)], {"blocksize": 2, "mode": "CRD"},
     {"blocksize": 2, "mode": "CRD"}),
    ("space_to_depth", "SpaceToDepth", [f(1, 3, 4, 6)], {"blocksize": 2}, {"blocksize": 2}),
    ("argmax", "ArgMax", [f(3, 5, 2)], {"axis": 1}, {"axis": 1}),
    ("argmin", "ArgMin", [np.array([[1, 0, 0], [2, 2, 2]], np.float32)],
     {"axis": 1, "keepdims": False, "select_last_index": True},
     {"axis": 1, "keepdims": 0, "select_last_index": 1}),
    ("where", "Where", [f(2, 3) > 0, f(3), f(2, 1)], {}, {}),
    ("mod", "Mod", [np.array([-5, 5, -3, 7], np.int32), np.array([3, -3, 2, 4], np.int32)], {}, {}),
    ("mod", "Mod", [f(4), f(4, low=1)], {"fmod": True}, {"fmod": 1}),
    ("is_nan", "IsNaN", [np.array([np.nan, 1, np.inf], np.float32)], {}, {}),
    ("is_inf", "IsInf", [np.array([np.nan, -np.inf, np.inf], np.float32)], {"detect_negative": False},
     {"detect_negative": 0}),
    ("logical_and", "And", [f(4) > 0, f(4) > 0], {}, {}),
    ("logical_xor", "Xor", [f(4) > 0, f(4) > 0], {}, {}),
    ("logical_not", "Not", [f(4) > 0], {}, {}),
    ("bitwise_and", "BitwiseAnd", [i64(6, 5), i64(3, 9)], {}, {}),
    ("gelu", "Gelu", [f(5)], {"approximate": "tanh"}, {"approximate": "tanh"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "onnx_op", "operands", "ours", "theirs"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_op_equals_onnx(
    op: str, onnx_op: str, operands: list[Any], ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    close(run(op, *operands, **ours), oracle(onnx_op, *operands, **(theirs or ours)))


@pytest.mark.parametrize(
    "op", ["sum", "mean", "max", "min", "prod", "l1", "l2", "log_sum", "log_sum_exp", "sum_square"]
)
@pytest.mark.parametrize(("axes", "keepdims"), [((0,), True), ((-1, 1), False), ((0, 1, 2), False)])
def test_reduction_equals_onnx(op: str, axes: tuple[int, ...], keepdims: bool) -> None:
    x = f(2, 3, 5, low=0.2)
    name = "Reduce" + "".join(part.capitalize() for part in op.split("_"))
    close(run(f"reduce_{op}", x, axes=axes, keepdims=keepdims), oracle(name, x, np.array(axes), keepdims=int(keepdims)))


def test_matmul_follows_numpy_for_vectors_and_batches() -> None:
    for s, t in [((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,)), ((4,), (3, 4, 2)), ((2, 3, 4), (4,)), ((1, 1), (1, 1))]:
        a, b = f(*s), f(*t)
        close(run("matmul", a, b), [a.astype(np.float64) @ b])


@pytest.mark.parametrize(
    "case",
    [
        ([1], [4], [1], [2]),
        ([-1, 3], [-7, 0], [0, 2], [-2, -1]),
        ([5], [9], [1], [1]),
        ([0, 0], [9, 2], [0, 1], [1, 1]),
    ],
)
def test_slice_equals_onnx(case: tuple[list[int], ...]) -> None:
    x = f(4, 6, 5)
    starts, ends, axes, steps = case
    ours = run("slice", x, starts=tuple(starts), ends=tuple(ends), axes=tuple(axes), steps=tuple(steps))
    close(ours, oracle("Slice", x, *(np.array(v) for v in case)))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_equals_onnx(mode: str) -> None:
    x = f(3, 4)
    ours = run("pad", x, pads=(1, 2, 2, 1), mode=mode, value=7.0)
    close(ours, [np.pad(x, ((1, 2), (2, 1)), mode, **({"constant_values": 7} if mode == "constant" else {}))])


def test_reshape_split_tile_expand_trilu_onehot_cumsum() -> None:
    x = f(4, 6)
    close(run("reshape", x, shape=(0, 2, -1)), [x.reshape(4, 2, 3)])
    close(run("reshape", x, shape=(3, 8)), [x.reshape(3, 8)])
    close(run("split", x, axis=1, split=(1, 2, 3)), np.split(x, [1, 3], axis=1))
    close(run("tile", x, repeats=(2, 3)), [np.tile(x, (2, 3))])
    close(run("expand", f(3, 1), shape=(2, 1, 4))[0:0], [])
    close(run("trilu", x, k=1, upper=True), [np.triu(x, 1)])
    close(run("trilu", x, k=-1, upper=False), [np.tril(x, -1)])
    close(run("one_hot", i64(0, -1, 2), depth=3, on=2.0, off=-1.0), [np.eye(3)[[0, 2, 2]] * 3 - 1])
    close(run("cumsum", x, axis=1), [np.cumsum(x, axis=1)])
    close(
        run("cumsum", x, axis=0, exclusive=True, reverse=True), oracle("CumSum", x, np.array(0), exclusive=1, reverse=1)
    )
    close(run("clip", x, min=-0.5), [np.maximum(x, -0.5)])
    assert run("cast", x, to="i32")[0].dtype == np.int32


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("size", [(1, 1, 9, 4), (1, 1, 3, 12), (1, 1, 5, 6)])
def test_resize_equals_onnx(mode: str, size: tuple[int, ...]) -> None:
    x = f(1, 1, 5, 6)
    args = (x, None, None, np.array(size))
    close(run("resize_linear", x, sizes=size, coordinate_transformation_mode=mode),
          oracle("Resize", *args, mode="linear", coordinate_transformation_mode=mode))  # fmt: skip
    for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        ours = run("resize_nearest", x, sizes=size, coordinate_transformation_mode=mode, nearest_mode=nearest)
        close(ours, oracle("Resize", *args, mode="nearest", coordinate_transformation_mode=mode, nearest_mode=nearest))


def test_group_norm_and_rms_norm() -> None:
    x, scale, bias = f(2, 6, 3, 2), f(6), f(6)
    groups = x.astype(np.float64).reshape(2, 2, -1)
    normal = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    close(
        run("group_norm", x, scale, bias, num_groups=2),
        [normal.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]],
    )
    y, weight = f(3, 7).astype(np.float64), f(7)
    close(run("rms_norm", y.astype(np.float32), weight), [y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * weight])


def test_winograd_transforms_make_a_convolution() -> None:
    x, w = f(2, 3, 7, 6), f(4, 3, 3, 3)
    (v,), (u,) = run("winograd_input", x, pads=(1, 1, 1, 1)), run("winograd_filter", w)
    product = np.einsum("abkc,abcnpq->abknpq", u, v)
    close(run("winograd_output", product.astype(np.float32), sizes=(7, 6)), run("conv", x, w, pads=(1, 1, 1, 1)), 1e-4)


def test_ceil_mode_pools_drop_windows_in_padding() -> None:
    x = f(1, 1, 5, 5)
    (y,) = run("max_pool", x, kernel_shape=(2, 2), strides=(3, 3), pads=(0, 0, 1, 1), ceil_mode=True)
    assert y.shape == (1, 1, 2, 2)


def test_integers_stay_exact() -> None:
    big = i64(2**60 + 1, -(2**60) - 1)
    np.testing.assert_array_equal(run("add", big, i64(1, -1))[0], big + i64(1, -1))
    np.testing.assert_array_equal(run("div", i64(-7, 7), i64(2, -2))[0], i64(-3, -3))


def test_an_algorithm_equals_its_declaration() -> None:
    x, w = f(2, 3, 7, 6), f(5, 3, 3, 3)
    attributes = {"pads": (1, 0, 1, 2)}
    types = [TensorType(dtype_of_numpy(v.dtype), v.shape) for v in (x, w)]
    values = {"x": x, "w": w}
    for node in REGISTRY["conv"].instantiate(types, attributes).algorithms["winograd_2x2"]:
        values.update(
            zip(
                node.outputs,
                run(node.op, *(values[v].astype(np.float32) for v in node.operands), **node.attributes),
                strict=True,
            )
        )
    close([values["y"]], run("conv", x, w, **attributes), 1e-4)
    assert not REGISTRY["conv"].instantiate(types, {"strides": (2, 2), "dilations": (2, 2)}).algorithms


def test_an_infinity_is_not_factored_from_sums() -> None:
    """A sum of products with a constant factor is factored.

    inf - inf is no number.
    """
    x, w = np.array([[np.inf]], np.float32), np.array([[1.0], [-2.0]], np.float32)
    assert np.isnan(run("einsum", x, w, left=(0, 2), right=(1, 0), sizes=(1, 2, 1), results=0)[0]).all()
    ones = np.ones((2, 1), np.float32)
    assert run("einsum", x, ones, left=(0, 2), right=(1, 0), sizes=(1, 2, 1), results=0)[0] == np.inf


def test_exact_linear_resizes_read_one_neighbour() -> None:
    x = np.array([[[np.inf, 1, 2, 3, 4]]], np.float32)
    (found,) = run("resize_linear", x, sizes=(1, 1, 3), coordinate_transformation_mode="align_corners")
    assert found.tolist() == [[[np.inf, 2, 4]]]  # of axes of one element too


def test_unchecked_invalid_indices_clamp_or_match_nothing() -> None:
    x, places = np.arange(4.0, dtype=np.float32), i64(2**32, -(2**33), 3, -1)
    types = [TensorType(dtype_of_numpy(a.dtype), a.shape) for a in (x, places)]
    gather = REGISTRY["gather"].instantiate(types, {}).program
    found = evaluate(gather, {"x": x, "indices": places}, checked=False)
    assert found["y"].tolist() == [3, 0, 3, 3]
    scatter = REGISTRY["scatter_elements"].instantiate([types[0], types[1], types[0]], {"reduction": "add"}).program
    found = evaluate(scatter, {"x": x, "indices": places, "updates": x}, checked=False)
    assert found["y"].tolist() == [0, 1, 2, 3 + 2 + 3]


def test_what_is_stored_is_rounded_to_its_type() -> None:
    type_ = TensorType(dtype_of_numpy(np.dtype(np.float16)), (2,))
    program = REGISTRY["mul"].instantiate([type_, type_], {}).program
    given = {name: np.array([300.0, 1.001], np.float16) for name in ("a", "b")}
    assert evaluate(program, given)["y"][0] == 90000
    stored = evaluate(program, given, np.float32, stored=True)["y"]
    assert stored[0] == np.inf
    assert stored[1] == np.float16(stored[1])


def test_every_step_can_be_moved() -> None:
    type_ = TensorType(dtype_of_numpy(np.dtype(np.float32)), (2, 3))
    program = REGISTRY["reduce_l2"].instantiate([type_], {"axes": (1,)}).program
    seen: list[str] = []

    def move_values(fn: str, values: np.ndarray) -> np.ndarray:
        seen.append(fn)
        return values * 2 if fn == "sqrt" else values

    found = evaluate(program, {"x": np.ones((2, 3), np.float32)}, perturb=move_values)["y"]
    np.testing.assert_allclose(found, 2 * 3**0.5)
    assert {"sqrt", "add"} <= set(seen)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)])
def test_arrays_are_turned_round_block_by_block(order: tuple[int, ...]) -> None:
    source = np.random.default_rng(0).standard_normal((3, 301, 299)).transpose(order)
    target = np.empty(source.shape)
    copy_array(target, source)
    assert np.array_equal(target, source)
