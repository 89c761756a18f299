"""What is computed of constants at import equals what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cuts.tests.frontends.test_onnx import compare, floats, model, node


@pytest.mark.parametrize(
    ("shape", "axis", "indices"), [((3, 70), 1, (3, 1)), ((70, 3), 0, (2, 3)), ((4, 6), 1, (2, 3)), ((2, 3, 4), -2, (1, 5, 2))]
)
def test_gathering_elements_of_constants(shape: Sequence[int], axis: int, indices: Sequence[int]) -> None:
    drawn = np.random.default_rng(0).integers(-shape[axis], shape[axis], indices)
    table = floats(*range(int(np.prod(shape)))).reshape(shape)
    nodes = [node("GatherElements", "table", "places", axis=axis, outputs=["g"]), node("Add", "g", "x")]
    assert [n.op for n in compare(model(nodes, {"x": (1,)}, 17, {"table": table, "places": drawn})).nodes] == ["add"]
