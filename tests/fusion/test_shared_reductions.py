"""Reductions of the same rows by the same function are computed once."""

from __future__ import annotations

import cuts
import numpy as np
from cuts.ir import DType, Graph, Node, TensorType
from cuts.ops import Registry
from cuts.passes.fusion import Group, GroupBuilder, Policy, build_programs, find_views
from cuts.tests.needs import needs_opencl

_TYPES = {"x": TensorType(DType.F32, (6, 40)), "y": TensorType(DType.F32, (6,)), "p": TensorType(DType.I64, (6,))}


def extremum(value: str, place: str) -> Graph:
    """Return a graph of the extremum of each row and its index."""
    nodes = (
        Node("value", value, ("x",), ("y",), {"axes": (1,), "keepdims": False}),
        Node("place", place, ("x",), ("p",), {"axis": 1, "keepdims": False}),
    )
    return Graph("g", ("x",), ("y", "p"), _TYPES, nodes)


def combines(value: str, place: str) -> list[str]:
    """Return the reductions of both nodes as one group."""
    views = find_views(build_programs(extremum(value, place), Registry.builtin()))
    shop = GroupBuilder(views, Policy())
    group = shop._form((("value", "place"),), None)
    assert isinstance(group, Group)
    return [r.combine for segment in group.form.segments for r in segment.reductions]


def test_an_extremum_and_its_position_share_a_reduction():
    assert combines("reduce_max", "argmax") == ["max", "min"]  # the second finds the least position
    assert combines("reduce_min", "argmax") == ["min", "max", "min"]


@needs_opencl
def test_the_kernel_computes_both():
    x = np.random.default_rng(0).integers(-3, 4, (6, 40)).astype(np.float32)
    x[2, 7] = np.nan
    found = cuts.build(extremum("reduce_max", "argmax"), target="opencl", mode="fusion").run({"x": x})
    np.testing.assert_array_equal(found["y"], x.max(1))
    np.testing.assert_array_equal(found["p"], x.argmax(1))
