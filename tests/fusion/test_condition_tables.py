"""Constant masks as conditions on indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.fusion.programs import build_programs
from cuts.passes.statements.gather_to_slice import band_limits

ROWS, COLUMNS = np.ogrid[:16, :24]


@pytest.mark.parametrize(
    ("mask", "limits"),
    [
        (COLUMNS <= ROWS, (1, 2, -15, 1)),
        (COLUMNS > ROWS + 3, (1, 2, 4, 24)),
        ((COLUMNS <= ROWS) & (COLUMNS > ROWS - 4), (1, 2, -3, 1)),
        ((COLUMNS <= ROWS) | (COLUMNS == 20), None),
        ((COLUMNS + ROWS) % 2 == 0, None),
        (np.broadcast_to(COLUMNS < 5, (16, 24)), None),
        (np.zeros((16, 24), bool), None),
    ],
)
def test_bands_are_found(mask: Any, limits: tuple[int, int, int, int] | None) -> None:
    assert band_limits(np.broadcast_to(mask, (2, 16, 24))) == limits


def attention_graph(mask: Any) -> Graph:
    """Attention with a constant mask."""
    rows, keys = TensorType(DType.F32, (1, 2, 16, 8)), TensorType(DType.F32, (1, 2, 24, 8))
    types = {"q": rows, "k": keys, "v": keys, "y": rows, "mask": TensorType(DType.BOOL, (1, 1, 16, 24))}
    node = Node("y", "attention", ("q", "k", "v", "mask"), ("y",))
    return Graph("masked", ("q", "k", "v"), ("y",), types, (node,), {"mask": mask[None, None]})


@pytest.mark.parametrize("band", [True, False])
def test_kernels_read_no_mask_that_is_a_band(band: bool) -> None:
    mask = (COLUMNS <= ROWS + 2) if band else (COLUMNS % 3 != 1) & (ROWS >= 0)
    units = build_programs(attention_graph(mask), Registry.builtin()).units
    assert any("mask" in s.tensors_read for unit in units for s in unit.statements) is not band
    assert any("mask" in unit.reads for unit in units) is not band


def test_kernels_read_no_constant_of_equal_elements() -> None:
    type_ = TensorType(DType.F32, (16, 24))
    types = dict.fromkeys(("x", "c", "y", "t", "z"), type_)
    equal, varied = np.broadcast_to(np.float32(2.5), (16, 24)), np.arange(384, dtype=np.float32).reshape(16, 24)
    nodes = (Node("y", "mul", ("x", "c"), ("y",)), Node("z", "add", ("y", "t"), ("z",)))
    graph = Graph("equal", ("x",), ("z",), types, nodes, {"c": equal, "t": varied})
    units = build_programs(graph, Registry.builtin()).units
    assert {t for unit in units for t in unit.reads} == {"x", "y", "t"}
