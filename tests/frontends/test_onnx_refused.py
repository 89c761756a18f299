"""Rare operations of ONNX compile, or are cut out of the plan."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from cuts.compile.build import build
from cuts.frontends.onnx.staged_model import OpaqueWarning
from onnx import TensorProto, helper, numpy_helper

CHANCE = np.random.default_rng(0)
F, I64, INT4 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT4
MICROSOFT = "com.microsoft"


def real(*shape: int) -> Any:
    return CHANCE.standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(","), outputs.split(","), domain=domain, **attributes)


def branch(name: str, *nodes: Any) -> Any:
    return helper.make_graph(nodes, name, [], [helper.make_value_info(name, onnx.TypeProto())])


def small(kind: int, values: list[float], *shape: int) -> Any:
    return helper.make_tensor("w", kind, shape, values)


def boxes(count: int) -> Any:
    corners = np.abs(real(count, 2))
    return np.concatenate([corners, corners + 2.3], 1).astype(np.float32)


IF = node(
    "If", "c", "y", then_branch=branch("a", node("ReduceMax", "e", "a")), else_branch=branch("b", node("Neg", "e", "b"))
)
#: Nodes, inputs by name, and constants. `e` is exp of the input `x`.
CASES: dict[str, tuple[Any, ...]] = {
    "NonMaxSuppression": ([node("NonMaxSuppression", "b,s,most,overlap", "y")],
                          {"b": boxes(6)[None], "s": real(1, 1, 6)},
                          {"most": np.array([3]), "overlap": np.array([0.5], np.float32)}),
    "Unique": ([node("Unique", "e", "u"), node("Neg", "u", "y")], {"x": np.float32([[1, 2, 1], [3, 2, 1]])}, {}),
    "NonZero": ([node("Relu", "x", "r"), node("NonZero", "r", "y")], {"x": real(3, 4)}, {}),
    "Det": ([node("Det", "e", "d"), node("Neg", "d", "y")], {"x": real(2, 3, 3)}, {}),
    "Optional": ([node("Optional", "e", "o"), node("OptionalHasElement", "o", "h"),
                  node("OptionalGetElement", "o", "g"), node("Where", "h,g,x", "y")], {"x": real(3, 4)}, {}),
    "If of unlike shapes": ([node("ReduceSum", "x", "t", keepdims=0), node("Greater", "t,zero", "c"), IF],
                            {"x": real(3, 4)}, {"zero": np.float32(0)}),
    "CumProd, computed axis": ([node("CumProd", "e,axis", "y")], {"x": real(3, 4), "axis": np.array(1)}, {}),
    "CumSum, computed axis": ([node("CumSum", "e,axis", "y")], {"x": real(3, 4), "axis": np.array(1)}, {}),
    "INT4": ([node("DequantizeLinear", "w,scale", "d"), node("MatMul", "e,d", "y")], {"x": real(3, 4)},
             {"w": small(INT4, [1, -2, 3, -4, 5, -6, 7, -8], 4, 2), "scale": np.float32(0.5)}),
    "UINT4": ([node("DequantizeLinear", "w,scale", "d"), node("MatMul", "e,d", "y")], {"x": real(3, 4)},
              {"w": small(TensorProto.UINT4, [1, 2, 3, 4, 5, 6, 7, 15], 4, 2), "scale": np.float32(0.5)}),
    **{f"float8, {kind}": ([node("DequantizeLinear", "w,scale", "d"), node("MatMul", "e,d", "y")], {"x": real(3, 4)},
                           {"w": small(getattr(TensorProto, kind), [1, -2, 3, -4, 0.5, -6, 7, -8], 4, 2),
                            "scale": np.float32(0.5)}) for kind in ("FLOAT8E4M3FN", "FLOAT8E5M2")},
    "float8, Cast": ([node("Cast", "e", "q", to=TensorProto.FLOAT8E4M3FN), node("Cast", "q", "f", to=F),
                      node("Neg", "f", "y")], {"x": real(3, 4)}, {}),
    "RoiAlign": ([node("RoiAlign", "e,r,at", "y", sampling_ratio=0, output_height=2, output_width=2)],
                 {"x": real(1, 2, 8, 8), "r": boxes(3)}, {"at": np.zeros(3, np.int64)}),
    "RoiAlign, max": ([node("RoiAlign", "e,r,at", "y", sampling_ratio=0, output_height=2, output_width=2, mode="max")],
                      {"x": real(1, 2, 8, 8), "r": boxes(3)}, {"at": np.zeros(3, np.int64)}),
    "Cast to strings": ([node("Cast", "n", "s", to=TensorProto.STRING), node("Cast", "s", "f", to=F),
                         node("Add", "f,e", "y")], {"x": real(3, 4), "n": np.arange(4)}, {}),
    "Attention": ([node("Attention", "e,w,b", "a", MICROSOFT, num_heads=2), node("Softmax", "a", "y")],
                  {"x": real(1, 4, 8)}, {"w": real(8, 24), "b": real(24)}),
    "MultiHeadAttention": ([node("MultiHeadAttention", "e,e,x", "a", MICROSOFT, num_heads=2),
                            node("Softmax", "a", "y")], {"x": real(1, 4, 8)}, {}),
    "GroupQueryAttention": (
        [node("Softmax", "x", "q"),
         node("GroupQueryAttention", "q,k,k,,,n,total", "a", MICROSOFT, num_heads=2, kv_num_heads=1),
         node("Softmax", "a", "y")],
        {"x": real(1, 4, 16), "k": real(1, 4, 8)}, {"n": np.array([3], np.int32), "total": np.array(4, np.int32)}),
    "RotaryEmbedding": ([node("RotaryEmbedding", "e,at,cos,sin", "a", MICROSOFT), node("Softmax", "a", "y")],
                        {"x": real(1, 2, 4, 8)},
                        {"at": np.arange(4)[None], "cos": real(8, 4), "sin": real(8, 4)}),
    "MatMulNBits": ([node("MatMulNBits", "e,w,scale", "a", MICROSOFT, K=32, N=4, bits=4, block_size=32),
                     node("Softmax", "a", "y")],
                    {"x": real(3, 32)},
                    {"w": CHANCE.integers(0, 255, (4, 1, 16)).astype(np.uint8), "scale": np.abs(real(4))}),
}  # fmt: skip


def model_of(nodes: list[Any], inputs: dict[str, Any], constants: dict[str, Any]) -> Any:
    """Return a model whose results are `y`."""
    types = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    fixed = [array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(array, name)
             for name, array in constants.items()]  # fmt: skip
    first = [node("Exp", "x", "e")] if "x" in inputs else []
    graph = helper.make_graph([*first, *nodes], "g", types, [helper.make_value_info("y", onnx.TypeProto())], fixed)
    opsets = [helper.make_opsetid("", 26 if any(n.op_type == "CumProd" for n in nodes) else 21)]
    return helper.make_model(graph, opset_imports=[*opsets, helper.make_opsetid(MICROSOFT, 1)], ir_version=10)


def expected_of(model: Any, inputs: dict[str, Any]) -> Any:
    """Return the result by ONNX Runtime, else by ONNX."""
    try:
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL  # some of them round more
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, inputs)[0]
    except Exception:  # of its bindings
        return onnx.reference.ReferenceEvaluator(model).run(None, inputs)[0]


@pytest.mark.parametrize("name", CASES)
def test_an_operation_compiles_or_is_cut_out(name: str) -> None:
    nodes, inputs, constants = CASES[name]
    model = model_of(nodes, inputs, constants)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = build(model, "reference", fallback=True)
        found = plan.run(inputs)["y"]
    np.testing.assert_allclose(found, expected_of(model, inputs), rtol=1e-4, atol=1e-5)
    assert sum(issubclass(each.category, OpaqueWarning) for each in caught) <= 1
