"""Damaged files: a model loads, or a `CutsError` explains its fault.

No other exception is raised, for any changed bytes.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from cuts.frontends.graph_json import graph_from_json, load_graph, save_graph
from cuts.ir.errors import CutsError
from cuts.ir.text import parse_graph, print_graph
from cuts.tests.frontends.strategies import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

build = GraphBuilder(0)
GRAPH = build.graph(
    build.node(
        "softmax",
        build.node("conv", build.input((1, 3, 4, 4)), build.constant((5, 3, 3, 3)), pads=(1, 1, 1, 1)),
        axis=1,
    )
)
changes = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4)
cuts = st.one_of(st.none(), st.integers(0, 1 << 20))


def damage(data: bytes, edits: list[tuple[int, int]], cut: int | None) -> bytes:
    result = bytearray(data)
    for position, value in edits:
        result[position % len(result)] = value
    return bytes(result[: cut % len(result)] if cut is not None else result)


def survives(load: object, *arguments: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(CutsError):
            load(*arguments)  # type: ignore[operator]


@given(changes, cuts)
@settings(max_examples=150, deadline=None)
def test_damaged_files_of_graph_json(edits: list[tuple[int, int]], cut: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.json"
        save_graph(GRAPH, path)
        for file in (path, path.with_suffix(".safetensors")):
            whole = file.read_bytes()
            file.write_bytes(damage(whole, edits, cut))
            survives(load_graph, path)
            file.write_bytes(whole)


@given(changes, cuts)
@settings(max_examples=150, deadline=None)
def test_damaged_text(edits: list[tuple[int, int]], cut: int | None) -> None:
    text = damage(print_graph(GRAPH).encode(), edits, cut).decode("utf-8", "replace")
    survives(parse_graph, text, GRAPH.constants)


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["x0", "f32", "conv", "y"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
EDITS = [
    ("inputs",), ("nodes",), ("outputs",), ("constants",), ("types",), ("weights",), ("name",),
    ("inputs", 0, "shape"), ("inputs", 0, "dtype"),
    ("inputs", 0), ("constants", 0, "data"), ("constants", 0, "shape"), ("nodes", 0, "inputs"), ("nodes", 0, "outputs"),
    ("nodes", 0, "op"), ("nodes", 0, "attributes"), ("nodes", 0, "attributes", "pads"),
    ("nodes", 1, "attributes", "axis"), ("nodes", 0), ("types", "v0"),
]  # fmt: skip


@given(st.sampled_from(EDITS), values)
@settings(max_examples=300, deadline=None)
def test_any_value_in_any_field(path: tuple[str | int, ...], value: object) -> None:
    from cuts.frontends.graph_json import graph_to_json

    document = json.loads(graph_to_json(GRAPH))
    target = document
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    survives(graph_from_json, document)


@given(changes, cuts)
@settings(max_examples=200, deadline=None)
def test_damaged_onnx(edits: list[tuple[int, int]], cut: int | None) -> None:
    onnx = pytest.importorskip("onnx")
    from cuts.frontends.onnx.load import load_onnx

    helper, tensor = onnx.helper, onnx.numpy_helper.from_array
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["n"], axis=0), helper.make_node("Unsqueeze", ["n", "zero"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["t"], axis=0), helper.make_node("Reshape", ["a", "t"], ["y"]),
    ]  # fmt: skip
    arrays = {"w": np.ones((2, 3, 3, 3), np.float32), "i": np.array(0), "zero": np.array([0]), "rest": np.array([-1])}
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", 1, [1, 3, 4, 4])], [value("y", 1, [1, 32])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [tensor(array, name) for name, array in arrays.items()])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()
    survives(load_onnx, damage(data, edits, cut))
