"""Text and JSON forms of graphs: round trips, and the published schema."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from cuts.frontends.graph_json import graph_from_json, graph_to_json, load_graph, save_graph
from cuts.ir.errors import ParseError, UsageError
from cuts.ir.graph import Graph, Node
from cuts.ir.text import parse_graph, print_graph
from cuts.ir.types import DType, TensorType
from cuts.tests.frontends.strategies import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

EVIL = [
    "x;}__global__ void",
    "*/",
    '\\\n#include "/etc/passwd"',
    "a\0b",
    "",
    "_",
    "true",
    "%x: f32[1]",
    "ünïcödé",
    "\u202e",
]


def _comparable(array: np.ndarray) -> np.ndarray:
    # NumPy takes two NaNs for the same in its own types alone, not in those of ml_dtypes; f32 holds each of these.
    return array.astype(np.float32) if array.dtype.isbuiltin != 1 else array


def assert_same(one: Graph, other: Graph) -> None:
    assert one == other
    assert dict(one.constants).keys() == dict(other.constants).keys()
    for name, array in one.constants.items():
        assert array.dtype == other.constants[name].dtype
        np.testing.assert_array_equal(_comparable(array), _comparable(other.constants[name]))


def evil(name: str) -> str:
    return f"{EVIL[hash(name) % len(EVIL)]}{name}"


@given(graphs(rename=evil))
@settings(max_examples=60, deadline=None)
def test_print_parse_print_is_the_identity(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse_graph(text, graph.constants)
    assert_same(graph, again)
    assert print_graph(again) == text


@given(graphs(rename=evil))
@settings(max_examples=40, deadline=None)
def test_json_text_holds_the_whole_graph(graph: Graph) -> None:
    assert_same(graph, graph_from_json(graph_to_json(graph)))


attributes = st.one_of(
    st.integers(-(2**40), 2**40), st.floats(), st.booleans(), st.text(max_size=5),
    st.lists(st.integers(-9, 9), max_size=3).map(tuple), st.lists(st.floats(), min_size=1, max_size=3).map(tuple),
    st.lists(st.text(max_size=3), min_size=1, max_size=3).map(tuple),
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=5), attributes, max_size=4), st.text(max_size=5), st.text(max_size=5))
def test_any_attribute_and_name_survives_both_forms(given_: dict[str, object], name: str, origin: str) -> None:
    type_ = TensorType(DType.F32, (2,))
    node = Node(name, "any_op", ("in", None), ("out",), given_, origin)  # type: ignore[arg-type]
    graph = Graph(name, ("in",), ("out",), {"in": type_, "out": type_}, (node,))
    for again in (
        parse_graph(print_graph(graph)),
        graph_from_json(graph_to_json(graph), infer=lambda node, types: [type_]),
    ):
        # Texts tell 1 from 1.0 and True, and nan from nothing.
        assert print_graph(again) == print_graph(graph)
        assert {k: repr(v) for k, v in again.nodes[0].attributes.items()} == {k: repr(v) for k, v in given_.items()}


@pytest.mark.parametrize("large", [False, True])
def test_unwritable_graph_is_one_error(large: bool, tmp_path: Path) -> None:
    array = np.zeros((7, 30 if large else 1), np.float32)
    graph = Graph("g", (), ("w",), {"w": TensorType(DType.F32, array.shape)}, (), {"w": array})
    with pytest.raises(UsageError, match="cannot write"):
        save_graph(graph, tmp_path / "none" / "g.json")
    (tmp_path / "g.json").mkdir()
    with pytest.raises(UsageError, match="cannot write graph"):
        save_graph(graph, tmp_path / "g.json")
    assert {path.name for path in tmp_path.iterdir()} <= {"g.json", "g.safetensors"}


@pytest.mark.parametrize("dtype", list(DType))
def test_constants_of_every_type_survive_both_forms(dtype: DType, tmp_path: Path) -> None:
    values = (
        [0, 1] if dtype is DType.BOOL else [0.1, -0.0, np.inf, -np.inf, np.nan, 1e-7] if dtype.is_float else [0, 1, 100]
    )
    small = np.array(values).astype(dtype.numpy)
    large = np.resize(small, (7, 30))
    build = {"small": small, "one": small[1], "splat": np.broadcast_to(small[1], (100,)), "large": large}
    types = {name: TensorType(dtype, array.shape) for name, array in build.items()}
    graph = Graph("g", (), tuple(build), types, (), build)
    assert_same(graph, parse_graph(print_graph(graph), build))
    assert_same(graph, graph_from_json(graph_to_json(graph)))
    save_graph(graph, tmp_path / "g.json")
    assert_same(graph, load_graph(tmp_path / "g.json"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.json", "g.safetensors"]


def test_absent_types_are_derived_and_nodes_sorted() -> None:
    document = {
        "format": "cuts.graph", "version": 1, "name": "g", "inputs": [{"name": "x", "dtype": "f32", "shape": [2, 3]}],
        "outputs": ["y"],
        "nodes": [
            {"name": "last", "op": "relu", "inputs": ["a"], "outputs": ["y"]},
            {"name": "first", "op": "transpose", "inputs": ["x"], "outputs": ["a"]},
        ],
    }  # fmt: skip
    graph = graph_from_json(document)
    assert [node.name for node in graph.nodes] == ["first", "last"]
    assert graph.types["y"] == TensorType(DType.F32, (3, 2))


def test_float_attributes_accept_integers_and_infinity_texts() -> None:
    text = """{"format": "cuts.graph", "version": 1, "name": "g",
               "inputs": [{"name": "x", "dtype": "f32", "shape": [2]}], "outputs": ["y"],
               "nodes": [{"name": "n", "op": "clip", "inputs": ["x"], "outputs": ["y"],
                          "attributes": {"min": 0, "max": {"float": "inf"}}}]}"""
    assert graph_from_json(text).nodes[0].attributes == {"min": 0, "max": np.inf}


@given(graphs(rename=evil))
@settings(max_examples=15, deadline=None)
def test_documents_follow_the_published_schema(graph: Graph) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(files("cuts.spec").joinpath("graph.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(graph_to_json(graph)))


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("graf", 1, 1, "expected 'graph', found 'graf'"),
        ('graph "g" {\n  input x: f32[1]\n}', 2, 9, "expected '%', found 'x'"),
        ('graph "g" {\n  input %x: f33[1]\n}', 2, 13, "expected an element type"),
        ('graph "g" {\n  input %x: f32[1.5]\n}', 2, 17, "expected an extent, found '1.5'"),
        ('graph "g" {\n  const %x: i8[2] = [1, 300]\n}', 2, 21, "expected elements of type i8"),
        ('graph "g" {\n  const %x: i8[3] = [1, 2]\n}', 2, 21, "expected 3 elements for i8[3], found 2"),
        ('graph "g" {\n  const %x: i8[2] = opaque\n}', 2, 21, "the array of constant 'x' is not in the text"),
        ('graph "g" {\n  %y: f32[1] = relu(%x)\n}', 3, 1, "expected '@', found '}'"),
        ('graph "g" {\n  %y: f32[1] = relu(%x', 2, 23, "expected ',', found the end of the text"),
        ('graph "g" {\n  §\n}', 2, 3, "unexpected character"),
        ('graph "g\\x" {}', 1, 7, "expected a string with JSON escapes"),
    ],
)
def test_a_malformed_text_is_pointed_at(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text, name="t")
    assert str(caught.value).startswith(f"t:{line}:{column}: error: {message}")
