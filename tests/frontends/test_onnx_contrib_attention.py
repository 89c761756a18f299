"""ONNX Runtime's attention and rotary embedding compute ONNX Runtime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from cuts.compile.build import build
from onnx import helper

RNG = np.random.default_rng(0)


def real(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def words(*values: int) -> Any:
    return np.array(values, np.int32)


ANGLES, TOTAL = (np.cos(real(16, 4)), np.sin(real(16, 4))), np.array(6, np.int32)
CACHE, WIDE_ANGLES = (real(2, 2, 8, 16), real(2, 2, 8, 16)), (np.cos(real(16, 8)), np.sin(real(16, 8)))
GROUPS = {"num_heads": 4, "kv_num_heads": 2}
#: Operation, operands (None where absent), attributes, number of results.
CASES: dict[str, tuple[str, list[Any], dict[str, Any], int]] = {
    "rotary rows": ("RotaryEmbedding", [real(2, 3, 16), np.array([[3, 4, 5], [0, 1, 2]]), *ANGLES],
                    {"num_heads": 2}, 1),
    "rotary heads": ("RotaryEmbedding", [real(2, 2, 3, 8), np.array([5]), *ANGLES], {"interleaved": 1}, 1),
    "heads": ("MultiHeadAttention", [real(2, 3, 16), real(2, 5, 16), real(2, 5, 16)], {"num_heads": 2}, 1),
    "bias, padding": ("MultiHeadAttention", [real(2, 3, 16), real(2, 5, 16), real(2, 5, 16), real(48), words(4, 5)],
                      {"num_heads": 2, "scale": 0.3}, 1),
    "masked, added": ("MultiHeadAttention", [real(2, 3, 16), real(2, 5, 16), real(2, 5, 16), None,
                      words(1, 1, 0, 1, 1, 1, 1, 1, 1, 0).reshape(2, 5), real(1, 2, 3, 5)], {"num_heads": 2}, 1),
    "joined product": ("Attention", [real(2, 5, 16), real(16, 48), real(48), words(4, 5)],
                       {"num_heads": 2, "unidirectional": 1}, 1),
    "masked product": ("Attention", [real(2, 5, 16), real(16, 48), real(48), None, None, real(1, 2, 5, 5)],
                       {"num_heads": 2}, 1),
    "keys of heads": ("MultiHeadAttention", [real(2, 3, 16), real(2, 2, 5, 8), real(2, 2, 5, 8)], {"num_heads": 2}, 1),
    "past": ("MultiHeadAttention", [real(2, 3, 16), real(2, 3, 16), real(2, 3, 16), None, None, None,
             real(2, 2, 4, 8), real(2, 2, 4, 8)], {"num_heads": 2, "unidirectional": 1}, 3),
    "groups": ("GroupQueryAttention", [real(2, 3, 32), real(2, 3, 16), real(2, 3, 16), None, None, words(2, 2),
               np.array(3, np.int32)], GROUPS, 3),
    "cache": ("GroupQueryAttention", [real(2, 1, 64), real(2, 1, 32), real(2, 1, 32), *CACHE, words(5, 3), TOTAL,
              *WIDE_ANGLES], {**GROUPS, "do_rotary": 1, "local_window_size": 3}, 3),
    "joined": ("GroupQueryAttention", [real(2, 1, 128), None, None, *CACHE, words(5, 3), TOTAL, *WIDE_ANGLES],
               {**GROUPS, "do_rotary": 1, "rotary_interleaved": 1, "softcap": 2.0, "scale": 0.5}, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attention_computes_the_runtime_results(name: str) -> None:
    op, operands, attributes, count = CASES[name]
    names = ["" if array is None else f"x{n}" for n, array in enumerate(operands)]
    inputs = {n: array for n, array in zip(names, operands, strict=True) if n}
    types = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in inputs.items()]  # fmt: skip
    results = [f"y{n}" for n in range(count)]
    node = helper.make_node(op, names, results, domain="com.microsoft", **attributes)
    unknown = [helper.make_value_info(n, onnx.TypeProto()) for n in results]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", types, unknown), opset_imports=opsets, ir_version=10)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = build(model, "reference").run(inputs)
    for result, want in zip(results, session.run(None, inputs), strict=True):
        valid = want != 0  # the rest of a cache is undefined
        np.testing.assert_allclose(found[result][valid], want[valid], rtol=2e-4, atol=2e-5)
