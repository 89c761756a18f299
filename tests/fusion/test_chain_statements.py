"""Statements of chains: merged dims and values of rows."""

from __future__ import annotations

import numpy as np
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.interpret import interpret
from cuts.passes.geometry import register_chain

from ..kernels.cases import arrays
from ..kernels.test_attention_chains import attention, find_chain, group_of


def merged_batches(batch: int, heads: int, queries: int, keys: int, width: int) -> Graph:
    """Softmax between products whose batches and heads are merged."""
    whole, scores, merged = (batch * heads, queries, width), (batch, heads, queries, keys), batch * heads
    shapes = {"q": whole, "k": (merged, width, keys), "v": (merged, keys, width), "y": whole}
    shapes |= {"p": (merged, queries, keys), "s": scores, "a": scores, "w": (merged, queries, keys)}
    nodes = (
        Node("p", "matmul", ("q", "k"), ("p",)),
        Node("s", "reshape", ("p",), ("s",), {"shape": scores}),
        Node("a", "softmax", ("s",), ("a",), {"axis": -1}),
        Node("w", "reshape", ("a",), ("w",), {"shape": (merged, queries, keys)}),
        Node("y", "matmul", ("w", "v"), ("y",)),
    )
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    return Graph("written", ("q", "k", "v"), ("y",), types, nodes)


def test_merged_batches_are_axes() -> None:
    found = find_chain(merged_batches(2, 3, 16, 24, 8))
    assert isinstance(found, Group), found
    chain = register_chain(found.form)
    assert chain is not None
    inputs = arrays(found.form, 1)
    q, k, v = (inputs[t].astype(np.float64) for t in found.form.inputs)
    p = np.exp(q @ k)
    (result,) = interpret(found.form, inputs).values()
    np.testing.assert_allclose(result, p / p.sum(-1, keepdims=True) @ v, rtol=1e-9)


def test_long_rows_of_few_heads_are_a_chain() -> None:
    chain = register_chain(group_of(attention((1, 8, 2, 1, 16384, 64, 64), DType.BF16)))
    assert chain is not None
