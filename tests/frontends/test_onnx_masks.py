"""Masked writes of one value compile as choices; others stay foreign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cuts.frontends.onnx.load import load_onnx
from cuts.ir.errors import VocabularyError
from cuts.tests.frontends.test_onnx import compare, floats, ints, model, node


def masked_write_model(updates: Sequence[Any]) -> Any:
    """Return a model that writes updates at rows of positive mean."""
    nodes = [
        node("ReduceMean", "x", "last", keepdims=0, outputs=["means"]),
        node("Greater", "means", "zero", outputs=["mask"]), node("NonZero", "mask", outputs=["columns"]),
        node("Transpose", "columns", perm=[1, 0], outputs=["places"]), node("Reshape", "mask", "all", outputs=["row"]),
        node("Cast", "row", to=7, outputs=["ones"]),
        node("ReduceSum", "ones", "", keepdims=1, outputs=["count"]),
        node("Concat", "count", "width", axis=0, outputs=["shape"]), *updates,
        node("ScatterND", "x", "places", "updates"),
    ]  # fmt: skip
    constants = {"last": ints(-1), "zero": floats(0)[0], "two": floats(2)[0], "width": ints(5), "all": ints(-1)}
    return model(nodes, {"x": (3, 4, 5)}, 18, constants)


def test_one_value_at_a_mask_is_a_choice() -> None:
    spread = [node("Expand", "two", "shape", outputs=["wide"]), node("Identity", "wide", outputs=["updates"])]
    assert "where" in {n.op for n in compare(masked_write_model(spread)).nodes}


def test_computed_masked_writes_stay_outside_the_vocabulary() -> None:
    computed = [
        node("ReduceMax", "x", keepdims=0, outputs=["greatest"]),
        node("Expand", "greatest", "shape", outputs=["updates"]),
    ]
    with pytest.raises(VocabularyError, match=r"1 operation is not supported: NonZero \(node 'the NonZero'\)"):
        load_onnx(masked_write_model(computed))


def test_a_mask_that_others_read_too_stays() -> None:
    spread = [node("Expand", "two", "shape", outputs=["updates"])]
    proto = masked_write_model(spread)
    proto.graph.output.add().name = "count"
    graph = load_onnx(proto)
    assert graph.outputs == ("y", "count")
    assert np.prod(graph.types["count"].shape) == 1
