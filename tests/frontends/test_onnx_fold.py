"""Constants folded at import equal those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cuts.tests.frontends.test_onnx import compare, floats, model, node


@pytest.mark.parametrize(
    ("shape", "axis", "indices"),
    [((3, 70), 1, (3, 1)), ((70, 3), 0, (2, 3)), ((4, 6), 1, (2, 3)), ((2, 3, 4), -2, (1, 5, 2))],
)
def test_gathering_elements_of_constants(shape: Sequence[int], axis: int, indices: Sequence[int]) -> None:
    drawn = np.random.default_rng(0).integers(-shape[axis], shape[axis], indices)
    table = floats(*range(int(np.prod(shape)))).reshape(shape)
    nodes = [node("GatherElements", "table", "places", axis=axis, outputs=["g"]), node("Add", "g", "x")]
    assert [n.op for n in compare(model(nodes, {"x": (1,)}, 17, {"table": table, "places": drawn})).nodes] == ["add"]


SYMMETRIC = {"coordinate_transformation_mode": "half_pixel_symmetric"}

#: (operation, operator set, constant operands, attributes) where ONNX's own reference is wrong or raises.
ODD: list[tuple[str, int, dict[str, np.ndarray], dict[str, Any]]] = [
    ("Unsqueeze", 11, {}, {"axes": [3, 0]}),
    ("Unsqueeze", 13, {"axes": np.array([4, 0])}, {}),
    ("Squeeze", 11, {}, {"axes": [-3, 0]}),
    ("Pad", 13, {"pads": np.array([0, 1, 0, 0, 0, -1, 2, 0])}, {}),
    ("LogSoftmax", 11, {}, {"axis": 1}),
    ("LpNormalization", 13, {}, {"axis": 1, "p": 1}),
    ("LRN", 13, {}, {"size": 5}),
    (
        "Resize",
        19,
        {"": floats(), " ": floats(), "sizes": np.array([1, 1, 4, 9])},
        {"coordinate_transformation_mode": "half_pixel_symmetric"},
    ),
    ("CumSum", 14, {"axis": np.array([1])}, {}),
]


@pytest.mark.parametrize(("op", "opset", "constants", "attributes"), ODD, ids=[f"{row[0]}-{row[1]}" for row in ODD])
def test_what_the_reference_evaluator_cannot(
    op: str, opset: int, constants: dict[str, np.ndarray], attributes: dict[str, Any]
) -> None:
    table = (
        np.random.default_rng(0)
        .uniform(-2, 2, (1, 1, 4, 5) if op in ("Squeeze", "Resize") else (2, 3, 4, 5))
        .astype(np.float32)
    )
    names = [name.strip() for name in constants]
    nodes = [node(op, "table", *names, outputs=["t"], **attributes), node("Add", "t", "x")]
    kept = {name: array for name, array in constants.items() if name.strip()}
    assert [n.op for n in compare(model(nodes, {"x": (1,)}, opset, {"table": table, **kept})).nodes] == ["add"]
