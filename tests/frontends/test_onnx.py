"""ONNX import of attributes and operands in every operator set.

Results are compared with ONNX Runtime's; unsupported models are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from cuts.frontends.onnx.load import load_onnx  # onnx is optional
from cuts.ir.graph import Graph
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from onnx import TensorProto, helper, numpy_helper

F = TensorProto.FLOAT


def model(
    nodes: Sequence[Any],
    inputs: dict[str, Sequence[int | str]],
    opset: int,
    constants: dict[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
) -> Any:
    """Return a model of float inputs whose outputs have no declared shape."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, F, shape) for name, shape in inputs.items()],
        [helper.make_value_info(name, helper.make_tensor_type_proto(F, None)) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op: str, *inputs: str, outputs: Sequence[str] = ("y",), **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), list(outputs), name=f"the {op}", **attributes)


def compare(proto: Any, shapes: dict[str, Sequence[int]] | None = None) -> Graph:
    """Assert that the imported graph computes ONNX Runtime's results."""
    graph = load_onnx(proto, shapes)
    rng = np.random.default_rng(0)
    feeds = {v: rng.uniform(-2, 2, graph.types[v].shape).astype(np.float32) for v in graph.inputs}
    options = ort.SessionOptions()
    options.log_severity_level = 3
    expected = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    found = evaluate_graph(graph, Registry.builtin(), feeds)
    for name, value in zip(graph.outputs, expected, strict=True):
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    return graph


I64 = np.int64
ints = lambda *values: np.array(values, I64)  # noqa: E731
floats = lambda *values: np.array(values, np.float32)  # noqa: E731

ASYMMETRIC = {"coordinate_transformation_mode": "asymmetric"}

#: Changes between operator sets: (operation, operator set, constant operands, attributes).
CHANGES: list[tuple[str, int, dict[str, np.ndarray], dict[str, Any]]] = [
    ("Softmax", 7, {}, {"axis": 1}),
    ("Softmax", 12, {}, {}),
    ("Softmax", 13, {}, {}),
    ("LogSoftmax", 11, {}, {"axis": 2}),
    ("Clip", 7, {}, {"min": -0.5, "max": 0.5}),
    ("Clip", 11, {"lo": floats(-0.5).reshape(()), "hi": floats(0.5).reshape(())}, {}),
    ("Slice", 7, {}, {"starts": [1, 0], "ends": [9, -1], "axes": [1, 3]}),
    ("Slice", 10, {"starts": ints(1, -1), "ends": ints(9, -9), "axes": ints(1, 3), "steps": ints(1, -2)}, {}),
    ("Slice", 13, {"starts": ints(-9), "ends": ints(-9), "axes": ints(3), "steps": ints(-1)}, {}),
    ("Squeeze", 7, {}, {"axes": [0]}),
    ("Squeeze", 13, {"axes": ints(0)}, {}),
    ("Squeeze", 13, {}, {}),
    ("Unsqueeze", 7, {}, {"axes": [0, 3]}),
    ("Unsqueeze", 13, {"axes": ints(-1, 1)}, {}),
    ("ReduceSum", 7, {}, {"axes": [1], "keepdims": 0}),
    ("ReduceSum", 13, {"axes": ints(1, -1)}, {}),
    ("ReduceSum", 13, {}, {"noop_with_empty_axes": 1}),
    ("ReduceMean", 11, {}, {"axes": [2, 3]}),
    ("ReduceMean", 18, {"axes": ints(2, 3)}, {"keepdims": 0}),
    ("ReduceL2", 18, {}, {}),
    ("ReduceSumSquare", 18, {"axes": ints()}, {"noop_with_empty_axes": 1}),
    ("Pad", 7, {}, {"pads": [0, 0, 1, 2, 0, 0, 3, 0], "value": 1.5}),
    ("Pad", 11, {"pads": ints(0, 0, 1, 2, 0, 0, 3, -1), "value": floats(1.5).reshape(())}, {}),
    ("Pad", 18, {"pads": ints(1, 1), "value": floats(0).reshape(()), "axes": ints(2)}, {"mode": "edge"}),
    ("Reshape", 7, {"shape": ints(0, -1, 2)}, {}),
    ("Expand", 8, {"shape": ints(2, 1, 1, 6)}, {}),
    ("Tile", 7, {"repeats": ints(1, 2, 1, 3)}, {}),
    ("Flatten", 11, {}, {"axis": -1}),
    ("Transpose", 7, {}, {}),
    ("Gather", 11, {"indices": ints(-1, 0)}, {"axis": 3}),
    ("Upsample", 7, {}, {"scales": [1.0, 1.0, 2.0, 3.0]}),
    ("Upsample", 9, {"scales": floats(1, 1, 2, 2)}, {"mode": "linear"}),
    ("Resize", 10, {"scales": floats(1, 1, 0.6, 2)}, {}),
    ("Resize", 11, {"roi": floats(), "scales": floats(1, 1, 2, 2)}, {**ASYMMETRIC, "nearest_mode": "floor"}),
    ("Resize", 13, {"": floats(), " ": floats(), "sizes": ints(1, 4, 7, 8)}, {"mode": "linear"}),
    ("Resize", 18, {"": floats(), " ": floats(), "sizes": ints(7, 8)}, {"axes": [2, 3], "mode": "linear"}),
    ("Resize", 19, {"": floats(), " ": floats(), "sizes": ints(1, 4, 7, 3)},
     {"coordinate_transformation_mode": "half_pixel_symmetric"}),
    ("Resize", 13, {"": floats(), "scales": floats(1, 1, 0.1, 1)}, {"mode": "cubic"}),
    ("Dropout", 7, {}, {"ratio": 0.3}),
    ("Dropout", 12, {"ratio": floats(0.3).reshape(())}, {}),
    ("MaxPool", 7, {}, {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("MaxPool", 12, {}, {"kernel_shape": [2, 2], "ceil_mode": 1, "strides": [2, 2], "pads": [1, 0, 0, 1],
                         "dilations": [1, 2]}),
    ("GlobalLpPool", 2, {}, {"p": 3}),
    ("AveragePool", 7, {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("AveragePool", 11, {}, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", 19, {}, {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
    ("Conv", 7, {"w": np.ones((2, 2, 3, 3), np.float32)}, {"group": 2, "auto_pad": "VALID"}),
    ("Conv", 11, {"w": np.ones((2, 4, 3, 2), np.float32), "b": floats(1, 2)},
     {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    ("ConvTranspose", 11, {"w": np.ones((4, 2, 3, 3), np.float32)}, {"strides": [2, 2], "output_shape": [10, 12]}),
    ("ConvTranspose", 11, {"w": np.ones((4, 1, 3, 3), np.float32)},
     {"strides": [2, 2], "group": 2, "output_padding": [1, 0]}),
    ("ConvTranspose", 11, {"w": np.ones((4, 1, 3, 3), np.float32)},
     {"strides": [2, 2], "pads": [1, 0, 1, 0], "dilations": [2, 1]}),
    ("BatchNormalization", 7, {k: floats(1, 2, 3, 4) for k in "sbmv"}, {"epsilon": 1e-3}),
    ("BatchNormalization", 15, {k: floats(1, 2, 3, 4) for k in "sbmv"}, {}),
    ("GroupNormalization", 18, {"s": floats(1, 2), "b": floats(3, 4)}, {"num_groups": 2}),
    ("LayerNormalization", 17, {"s": floats(1, 2, 3, 4, 5, 6), "b": floats(1, 1, 1, 1, 1, 1)}, {}),
    ("InstanceNormalization", 7, {"s": floats(1, 2, 3, 4), "b": floats(3, 4, 5, 6)}, {}),
    ("LpNormalization", 7, {}, {"axis": 1, "p": 1}),
    ("LRN", 7, {}, {"size": 3}),
    ("Gemm", 7, {"b": np.ones((6, 3), np.float32), "c": floats(1, 2, 3)}, {"alpha": 0.5, "beta": 2.0}),
    ("Gemm", 11, {"b": np.ones((3, 6), np.float32)}, {"transB": 1}),
    ("MatMul", 9, {"b": np.ones((6, 3), np.float32)}, {}),
    ("PRelu", 9, {"slope": floats(0.1, 0.2, 0.3, 0.4).reshape(4, 1, 1)}, {}),
    ("Sum", 8, {"b": floats(1), "c": floats(1, 2, 3, 4, 5, 6)}, {}),
    ("Mean", 8, {"b": floats(1), "c": floats(1, 2, 3, 4, 5, 6)}, {}),
    ("Pow", 12, {"b": ints(2)}, {}),
    ("CumSum", 11, {"axis": np.array(1, I64)}, {"exclusive": 1, "reverse": 1}),
    ("DepthToSpace", 11, {}, {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", 7, {}, {"blocksize": 1}),
    ("Trilu", 14, {"k": np.array(-1, I64)}, {"upper": 0}),
    ("HardSigmoid", 7, {}, {}),
    ("Selu", 7, {}, {}),
    ("MeanVarianceNormalization", 13, {}, {}),
]  # fmt: skip


IDS = [f"{row[0]}-{row[1]}-{n}" for n, row in enumerate(CHANGES)]


@pytest.mark.parametrize(("op", "opset", "constants", "attributes"), CHANGES, ids=IDS)
def test_an_operation_means_what_its_operator_set_says(
    op: str, opset: int, constants: dict[str, np.ndarray], attributes: dict[str, Any]
) -> None:
    shape = (5, 6) if op == "Gemm" else (1, 4, 5, 6)
    names = [name.strip() for name in constants]
    kept = {name: array for name, array in constants.items() if name.strip()}
    compare(model([node(op, "x", *names, **attributes)], {"x": shape}, opset, kept))


@pytest.mark.parametrize("axis", [-2, 0, 2])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_axis_of_a_running_result_may_be_computed(op: str, axis: int) -> None:
    nodes = [node("Cast", "n", outputs=["axis"], to=TensorProto.INT32), node(op, "x", "axis", exclusive=1)]
    proto = model(nodes, {"x": (2, 3, 4), "n": ()}, 14 if op == "CumSum" else 26)
    graph, x = load_onnx(proto), np.random.default_rng(0).uniform(-2, 2, (2, 3, 4)).astype(np.float32)
    found = evaluate_graph(graph, Registry.builtin(), {"x": x, "n": np.float32(axis)})["y"]
    function = np.cumsum if op == "CumSum" else np.cumprod
    start = np.full_like(np.take(x, [0], axis), op == "CumProd")
    before = np.take(function(x, axis), range(x.shape[axis] - 1), axis)
    np.testing.assert_allclose(found, np.concatenate([start, before], axis), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 3), (2, 1, 4, 4), (1, 1)])
def test_determinants(shape: tuple[int, ...]) -> None:
    compare(model([node("Det", "x")], {"x": shape}, 11))


SPLITS = [(7, {"split": [1, 3]}, None), (13, {}, [1, 3]), (13, {}, None), (18, {"num_outputs": 2}, None)]


@pytest.mark.parametrize(("opset", "attributes", "sizes"), SPLITS)
def test_split_sizes_by_operator_set(opset: int, attributes: dict[str, Any], sizes: list[int] | None) -> None:
    constants = {} if sizes is None else {"sizes": ints(*sizes)}
    split = node("Split", "x", *constants, outputs=["y", "z"], axis=1, **attributes)
    compare(model([split], {"x": (1, 4, 5)}, opset, constants, ["y", "z"]))


def test_shape_subgraphs_fold() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n"], ["n1"], axes=[0]),
        helper.make_node("Concat", ["n1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    graph = compare(
        model(nodes, {"x": ("batch", 3, 2)}, 11, {"zero": np.array(0, I64), "rest": ints(-1)}), {"x": (4, 3, 2)}
    )
    assert [n.op for n in graph.nodes] == ["reshape"]
    assert not graph.constants


def test_a_large_fill_costs_no_memory() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["c"], value=numpy_helper.from_array(floats(2))),
        node("Mul", "x", "c"),
    ]
    graph = load_onnx(model(nodes, {"x": (1,)}, 13, {"s": ints(1 << 14, 1 << 14)}))
    assert graph.constants["c"].strides == (0, 0)


def test_the_branch_of_a_constant_condition_is_taken() -> None:
    branches = {
        key: helper.make_graph(
            [helper.make_node(op, ["x"], [key])], key, [], [helper.make_tensor_value_info(key, F, [3])]
        )
        for key, op in (("then_branch", "Exp"), ("else_branch", "Relu"))
    }
    graph = compare(model([node("If", "c", **branches)], {"x": (3,)}, 13, {"c": np.array(False)}))
    assert [n.op for n in graph.nodes] == ["relu", "identity"]


def test_local_functions_are_inlined() -> None:
    body = [helper.make_node("Exp", ["a"], ["t"]), helper.make_node("Relu", ["t"], ["b"])]
    function = helper.make_function("mine", "F", ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    proto = model([helper.make_node("F", ["x"], ["y"], domain="mine")], {"x": (3,)}, 13)
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert [n.op for n in compare(proto).nodes] == ["exp", "relu"]


def test_results_keep_their_names_when_nothing_computes_them() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Dropout", ["x"], ["z"])]
    graph = compare(model(nodes, {"x": (3,)}, 13, outputs=["y", "z"]))
    assert graph.outputs == ("y", "z")


def test_operands_of_concat_and_gather_may_be_empty() -> None:
    constants = {"start": ints(0), "end": ints(0), "axis": ints(0), "k": ints(0)}
    nodes = [
        node("Slice", "x", "start", "end", "axis", outputs=["none"]), node("Concat", "none", "none", axis=1),
        helper.make_node("TopK", ["none", "k"], ["v", "i"], axis=0), node("TopK", "x", "k", outputs=["w", "j"], axis=1),
    ]  # fmt: skip
    compare(model(nodes, {"x": (3, 4)}, 13, constants, ["y", "v", "w"]))


def test_a_triangle_of_conditions() -> None:
    nodes = [node("Greater", "x", "c", outputs=["m"]), node("Trilu", "m", outputs=["t"]), node("Cast", "t", to=F)]
    compare(model(nodes, {"x": (3, 4)}, 16, {"c": floats(0)}))


def test_the_logarithm_of_a_sum_of_integers() -> None:
    whole = helper.make_node("Cast", ["a"], ["i"], to=TensorProto.INT32)
    nodes = [node("Abs", "x", outputs=["a"]), whole, node("ReduceLogSum", "i", outputs=["n"]), node("Cast", "n", to=F)]
    compare(model(nodes, {"x": (3, 4)}, 18))


def test_function_body_for_float_only() -> None:
    norm = helper.make_node("MeanVarianceNormalization", ["h"], ["n"], axes=[1])
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=TensorProto.DOUBLE), norm, node("Cast", "n", to=F)]
    graph = load_onnx(model(nodes, {"x": (3, 4)}, 13))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = evaluate_graph(graph, Registry.builtin(), {"x": x})["y"]
    np.testing.assert_allclose(y, (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2])
def test_a_row_of_norm_zero_stays_zero(p: int) -> None:
    nodes = [node("Mul", "x", "c", outputs=["m"]), node("LpNormalization", "m", axis=1, p=p)]
    compare(model(nodes, {"x": (3, 4)}, 13, {"c": floats(1, 0, 2).reshape(3, 1)}))


def test_axes_that_become_one_may_be_empty() -> None:
    compare(model([node("Softmax", "x", axis=1)], {"x": (1, 2, 0)}, 11))


def test_steps_of_a_loop_may_be_empty() -> None:
    body = model(
        [helper.make_node("Identity", ["keep"], ["on"]), helper.make_node("Neg", ["x"], ["seen"])], {}, 13
    ).graph
    kinds = [
        ("n", TensorProto.INT64, []),
        ("keep", TensorProto.BOOL, []),
        ("on", TensorProto.BOOL, []),
        ("seen", F, [0, 2]),
    ]
    infos = [helper.make_tensor_value_info(*kind) for kind in kinds]
    body.input.extend(infos[:2])
    del body.output[:]
    body.output.extend(infos[2:])
    compare(model([node("Loop", "steps", "", body=body)], {"x": (0, 2)}, 13, {"steps": np.array(3, I64)}))


@pytest.mark.parametrize("corners", [0, 1])
def test_cubic_samples_around_a_place_beyond_the_border(corners: int) -> None:
    sample = node("GridSample", "x", "g", mode="bicubic", padding_mode="border", align_corners=corners)
    compare(model([sample], {"x": (1, 1, 4, 5), "g": (1, 3, 4, 2)}, 16))


def test_a_region_counts_only_where_one_is_cropped() -> None:
    constants = {"scales": floats(1, 1, 2)}
    compare(model([node("Resize", "x", "r", "scales", mode="linear")], {"x": (1, 2, 3), "r": (6,)}, 13, constants))


def test_zero_point_with_an_extra_axis() -> None:
    constants = {
        "s": np.float32(0.05), "z": np.uint8(3), "w": np.arange(6, dtype=np.uint8).reshape(3, 2),
        "last": np.array([7], np.uint8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "last"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    compare(model(nodes, {"x": (2, 3)}, 13, {name: np.asarray(value) for name, value in constants.items()}))


def test_what_is_padded_with_may_be_computed() -> None:
    nodes = [node("Pad", "x", "pads", "least"), helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0)]
    compare(model(nodes[::-1], {"x": (3, 4)}, 18, {"pads": ints(1, -1, 0, 2)}))


@pytest.mark.parametrize("pads", [(-1, 3), (7, -2), (-4, 3), (-1, -1)])
def test_elements_of_negative_pads_are_not_wrapped(pads: Sequence[int]) -> None:
    compare(model([node("Pad", "x", "pads", mode="wrap")], {"x": (5,)}, 19, {"pads": ints(*pads)}))


def test_nothing_has_no_greatest_element() -> None:
    compare(model([node("Hardmax", "x")], {"x": (2, 0)}, 13))
    compare(
        model(
            [node("ArgMax", "x", outputs=["p"], axis=1), helper.make_node("Cast", ["p"], ["y"], to=F)],
            {"x": (0, 0)},
            13,
        )
    )
