"""Source positions in errors of graphs and declarations."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from cuts.frontends.graph_json import graph_from_json, load_graph
from cuts.frontends.json_places import Step, members, place_of, steps_of
from cuts.ir.errors import CutsError, PassError
from cuts.ir.graph import Graph
from cuts.ir.source import Source, Span
from cuts.ir.text import parse_graph, print_graph
from cuts.ops import Registry
from cuts.ops.language.inference import Instances
from cuts.passes.fusion.programs import build_programs
from cuts.passes.graph.base import run_passes
from cuts.tests.operations import DIFFERENTIABLE, FLAT, REGISTRY, SCALAR, Use
from cuts.tests.operations_graph import bench_of
from hypothesis import given
from hypothesis import strategies as st

SHIFT = 'op shift "the element before" {\n  in x: f32[N]\n  out y: f32[N]\n  y[n] = x[n - 1]\n}\n'
GRAPH = """\
{
  "format": "cuts.graph", "version": 1, "name": "g", "outputs": ["b"],
  "inputs": [{"name": "x", "dtype": "f32", "shape": [4]}],
  "nodes": [
    {"name": "first", "op": "relu", "inputs": ["x"], "outputs": ["a"]},
    {"name": "second", "op": "shift", "inputs": ["a"], "outputs": ["b"]}
  ]
}
"""


def infer(*texts: str) -> Any:
    return Instances(Registry.builtin().extend(*(Source("my.cuts", text) for text in texts))).infer


def message(text: str, *specs: str) -> str:
    with pytest.raises(CutsError) as caught:
        graph_from_json(text, infer=infer(*specs))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def test_shape_errors_point_into_the_declaration() -> None:
    assert message(GRAPH, SHIFT) == (
        "my.cuts:4:10: error: node 'second' (shift): op 'shift' of (f32[4]): "
        "'x' is read out of bounds: index n - 1 of axis 0 runs from -1"
        " to 2, the axis has 4 elements; say what is 'outside'\n"
        "   4 |   y[n] = x[n - 1]\n"
        "     |          ^^^^^^^^\n"
        "<json>:6:30: note: it is used here\n"
        '   6 |     {"name": "second", "op": "shift", "inputs": ["a"], "outputs": ["b"]}\n'
        "     |                              ^^^^^^^"
    )


def test_misspelt_operation_is_the_only_error() -> None:
    assert message(GRAPH.replace('"relu"', '"rleu"'), SHIFT.replace("x[n - 1]", "x[n]")) == (
        "<json>:5:29: error: node 'first' (rleu): unknown op 'rleu'\n"
        '   5 |     {"name": "first", "op": "rleu", "inputs": ["x"], "outputs": ["a"]},\n'
        "     |                             ^^^^^^ did you mean 'relu' or 'trilu' or 'prelu'?"
    )


def test_misfitting_operands_point_to_the_node() -> None:
    text = GRAPH.replace('"shift", "inputs": ["a"]', '"matmul", "inputs": ["a", "a", "a"]')
    assert message(text) == (
        "<json>:6:30: error: node 'second' (matmul): op 'matmul': expected 2 operands (a, b), found 3\n"
        '   6 |     {"name": "second", "op": "matmul", "inputs": ["a", "a", "a"], "outputs": ["b"]}\n'
        "     |                              ^^^^^^^^"
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"op": "relu"', '"op": 5', "<json>:5:29: error: at $.nodes[0].op: expected a string, found 5"),
        (
            '"shape": [4]',
            '"shape": [4, true]',
            "<json>:3:57: error: at $.inputs[0].shape[1]: expected an integer, found true",
        ),
        (', "outputs": ["a"]', "", "<json>:5:5: error: at $.nodes[0].outputs: this field is required"),
        ('"version": 1', '"version": 2', "<json>:2:38: error: at $.version: expected 1, found 2"),
    ],
)
def test_a_field_that_is_wrong_is_shown(old: str, new: str, expected: str) -> None:
    assert message(GRAPH.replace(old, new)).startswith(f"{expected}\n")


def test_a_file_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(GRAPH)
    with pytest.raises(CutsError) as caught:
        load_graph(tmp_path / "g.json")
    assert str(caught.value).startswith(
        f"{tmp_path / 'g.json'}:6:30: error: node 'second' (shift): unknown op 'shift'\n"
    )


def test_a_long_line_is_cut_around_the_fault() -> None:
    text = json.dumps({**json.loads(GRAPH), "name": "g" * 500})
    first, line, caret = message(text).split("\n")
    column = text.index('"shift"') + 1
    assert first.startswith(f"<json>:1:{column}: error: ")
    assert len(line) < 180
    assert line[caret.index("^") :].startswith('"shift"')


def test_a_pass_that_fails_shows_the_node() -> None:
    class Failing:
        name = "failing"

        def run(self, graph: Graph) -> Graph:
            raise CutsError("no", graph.nodes[0].span)

    graph = graph_from_json(GRAPH, infer=infer(SHIFT.replace("x[n - 1]", "x[n]")))
    with pytest.raises(PassError, match="<json>:5:29: error: pass 'failing': no"):
        run_passes(graph, [Failing()])


def test_places_take_no_part_in_equality() -> None:
    graph = graph_from_json(GRAPH, infer=infer(SHIFT.replace("x[n - 1]", "x[n]")))
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert [node.span for node in again.nodes] != [node.span for node in graph.nodes]
    spans = [node.span for node in again.nodes if node.span]
    assert [span.source.text[span.start : span.end] for span in spans] == ["relu", "shift"]


def uses_of(use: Use) -> str:
    return use.op


@pytest.mark.parametrize("use", {use.op: use for use in (*DIFFERENTIABLE, *SCALAR, *FLAT)}.values(), ids=uses_of)
def test_every_statement_knows_its_text(use: Use) -> None:
    instance = use.instance
    assert instance.program.statements
    for statement in instance.program.statements:
        assert statement.span is not None
        assert "=" in text_of(statement.span) or "[" in text_of(statement.span)
        assert statement.span.source.name.endswith(".cuts")


def text_of(span: Span) -> str:
    return span.source.text[span.start : span.end]


def test_statements_of_units_keep_their_spans() -> None:
    programs = build_programs(bench_of([use for use in SCALAR if use.op != "constant"][:12]).graph, REGISTRY)
    assert [unit.name for unit in programs.units for statement in unit.statements if statement.span is None] == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=VALUES, indent=st.sampled_from((None, 0, 2)))
def test_the_place_of_a_value_holds_the_value(value: Any, indent: int | None) -> None:
    text = "\n " + json.dumps(value, indent=indent) + " \n"
    for path, expected in walk(value, ()):
        start, end = place_of(text, path)
        assert json.loads(text[start:end]) == expected
        inner = [name for name, _ in members(text, start)]
        assert inner == (
            list(expected)
            if isinstance(expected, dict)
            else list(range(len(expected)))
            if isinstance(expected, list)
            else []
        )


def walk(value: Any, path: tuple[Step, ...]) -> list[tuple[tuple[Step, ...], Any]]:
    """Return every value in a value, by its path."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(path, value), *(found for name, inner in parts for found in walk(inner, (*path, name)))]


def test_the_steps_of_a_path() -> None:
    assert steps_of("$.nodes[3].attributes['k']") == ("nodes", 3, "attributes", "k")
    assert steps_of("$") == ()
