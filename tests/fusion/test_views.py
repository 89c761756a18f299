"""Views of affine data movement, which costs no kernel.

Tensors lie at the view's addresses.
"""

from __future__ import annotations

import pytest
from cuts.ir.compiled import Storage
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views

from .build import REGISTRY, Line, graph, op, views_of

X = {"x": (2, 6, 4)}

AFFINE: dict[str, tuple[Line, Storage]] = {
    "reshape": (op("v", "reshape", "x", shape=(12, 4)), Storage("x", 0, (4, 1))),
    "split axis": (op("v", "reshape", "x", shape=(2, 3, 2, 4)), Storage("x", 0, (24, 8, 4, 1))),
    "transpose": (op("v", "transpose", "x", perm=(2, 0, 1)), Storage("x", 0, (1, 24, 4))),
    "slice": (op("v", "slice", "x", starts=(1,), ends=(6,), axes=(1,), steps=(2,)), Storage("x", 4, (24, 8, 1))),
    "split": (op("u v", "split", "x", axis=1, split=(2, 4)), Storage("x", 8, (24, 4, 1))),
    "expand": (op("v", "expand", "x", shape=(5, 2, 6, 4)), Storage("x", 0, (0, 24, 4, 1))),
}


@pytest.mark.parametrize("name", AFFINE)
def test_an_affine_movement_is_a_view(name: str) -> None:
    line, expected = AFFINE[name]
    views = views_of(graph(X, line, op("y", "relu", "v"), out="y"))
    assert views.storage("v") == expected
    assert all(u.free for u in views.programs.units if u.node == "n0")


OTHER: dict[str, list[Line]] = {
    "reshape of a transpose": [op("t", "transpose", "x", perm=(0, 2, 1)), op("v", "reshape", "t", shape=(2, -1))],
    "pad": [op("v", "pad", "x", pads=(0, 0, 1, 0, 0, 1))],
    "reversed slice": [op("v", "slice", "x", starts=(-1,), ends=(-7,), axes=(1,), steps=(-1,))],
    "tile": [op("v", "tile", "x", repeats=(1, 2, 1))],
}


@pytest.mark.parametrize("name", OTHER)
def test_other_movements_need_kernels_or_inlining_readers(name: str) -> None:
    views = views_of(graph(X, *OTHER[name], op("y", "relu", "v"), out="y"))
    assert "v" not in views.storages
    assert not next(u for u in views.programs.units if "v" in u.writes).free


def test_operands_of_a_concatenation_live_inside_its_buffer() -> None:
    made = graph(
        {"x": (2, 3), "z": (2, 5)},
        op("a", "relu", "x"),
        op("b", "exp", "z"),
        op("y", "concat", "a", "b", axis=1),
        out="y",
    )
    views = views_of(made)
    assert views.storages == {"a": Storage("y", 0, (8, 1)), "b": Storage("y", 3, (8, 1))}


#: Concatenations of x: [2, 3] and z: [2, 3] with readers, and whether the readers select between the operands.
CONCATENATIONS: dict[str, tuple[bool, str, list[Line]]] = {
    "elementwise": (True, "y", [
        op("a", "relu", "x"), op("b", "exp", "z"), op("c", "concat", "a", "b", axis=1), op("y", "tanh", "c")]),
    "two readers": (True, "y v", [
        op("a", "relu", "x"), op("b", "exp", "z"), op("c", "concat", "a", "b", axis=1), op("y", "tanh", "c"),
        op("v", "sigmoid", "c")]),
    "sum as operand": (False, "y", [
        op("a", "reduce_sum", "x", axes=(1,), keepdims=True), op("b", "exp", "z"),
        op("c", "concat", "a", "b", axis=1), op("y", "tanh", "c")]),
    "operand with two readers": (False, "y v", [
        op("a", "relu", "x"), op("b", "exp", "z"), op("c", "concat", "a", "b", axis=1), op("y", "tanh", "c"),
        op("v", "sigmoid", "a")]),
    "product as reader": (False, "y", [
        op("a", "relu", "x"), op("b", "exp", "z"), op("c", "concat", "a", "b", axis=1), op("y", "matmul", "c", "w")]),
    "reader at other elements": (False, "y", [
        op("a", "relu", "x"), op("b", "exp", "z"), op("c", "concat", "a", "b", axis=1),
        op("y", "transpose", "c", perm=(1, 0))]),
    "graph output": (False, "c y", [
        op("a", "relu", "x"), op("b", "exp", "z"), op("c", "concat", "a", "b", axis=1), op("y", "tanh", "c")]),
    "three operands": (False, "y", [
        op("a", "relu", "x"), op("b", "exp", "z"), op("d", "tanh", "z"),
        op("c", "concat", "a", "b", "d", axis=1), op("y", "tanh", "c")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONCATENATIONS)
def test_readers_of_an_elementwise_concatenation_select_its_operands(name: str) -> None:
    selected, outputs, lines = CONCATENATIONS[name]
    made = graph({"x": (2, 3), "z": (2, 3), "w": (6, 4)}, *lines, out=outputs)
    views = views_of(made)
    (joining,) = (u for u in views.programs.units if "c" in u.writes)
    placed = {storage.buffer for storage in views.storages.values()}
    assert (not joining.free and "c" not in placed) == selected


def test_growing_prefixes_share_the_largest_buffer() -> None:
    made = graph({"x": (1, 2, 3)}, op("a", "relu", "x"), op("b", "exp", "a"), op("ab", "concat", "a", "b", axis=1),
                 op("c", "reduce_sum", "ab", axes=(1,), keepdims=True), op("abc", "concat", "a", "b", "c", axis=1),
                 op("y", "relu", "abc"), out="y")  # fmt: skip
    views = views_of(made)
    placed = {t: (s.buffer, s.offset) for t, s in views.storages.items()}
    assert placed == {"a": ("abc", 0), "b": ("abc", 6), "c": ("abc", 12), "ab": ("abc", 0)}


def test_an_operand_with_another_place_is_copied_alone() -> None:
    made = graph(
        {"x": (2, 3), "z": (2, 5)},
        op("b", "exp", "z"),
        op("c", "concat", "x", "b", axis=1),
        op("y", "relu", "c"),
        out="y",
    )
    views = views_of(made)
    assert [u.name for u in views.programs.units if u.node == "n1" and not u.free] == ["n1/0"]
    assert views.storage("b") == Storage("c", 3, (8, 1))


def test_an_output_owns_its_buffer_and_viewed_tensors() -> None:
    made = graph(
        {"x": (2, 3)}, op("a", "relu", "x"), op("t", "transpose", "a"), op("y", "reshape", "t", shape=(6,)), out="y"
    )
    assert views_of(made).storages == {"t": Storage("y", 0, (2, 1)), "a": Storage("y", 0, (1, 2))}


def test_pieces_live_inside_a_transposed_output() -> None:
    pieces = op("a", "conv_transpose", "x", "w", strides=(2,), pads=(1, 1))
    whole = graph({"x": (2, 8, 6), "w": (8, 3, 3)}, pieces, op("y", "transpose", "a", perm=(0, 2, 1)), out="y")
    programs = build_programs(whole, REGISTRY)
    assert len(programs.producers()["a"]) > 1
    views = find_views(programs)
    assert views.storages["a"] == Storage("y", 0, (33, 1, 3)) and views.sources["y"] == "a"


def test_an_output_that_shows_an_input_is_copied() -> None:
    views = views_of(graph({"x": (2, 3)}, op("y", "transpose", "x"), out="y"))
    assert not views.storages
    assert not any(u.free for u in views.programs.units)


def test_what_is_shown_backwards_is_not_placed_backwards() -> None:
    turned = op("t", "slice", "r", starts=(-1,), ends=(-9,), axes=(0,), steps=(-1,))
    assert not views_of(graph({"x": (3,)}, op("r", "relu", "x"), turned, out="t")).storages
    joined = views_of(graph({"x": (3,)}, op("r", "relu", "x"), turned, op("y", "concat", "t", "t", axis=0), out="y"))
    assert all(stride >= 0 for storage in joined.storages.values() for stride in storage.strides)


def test_transposed_operands_are_no_view() -> None:
    made = (op("a", "relu", "x"), op("b", "sigmoid", "x"), op("j", "concat", "a", "b", axis=0), op("k", "relu", "j"))
    found = views_of(graph({"x": (1,)}, *made, op("y", "concat", "k", "b", "a", axis=0), out="y"))
    assert all(stride >= 0 for storage in found.storages.values() for stride in storage.strides)


@pytest.mark.parametrize(
    ("shape", "axis", "placed"), [((1024, 512, 1), 2, False), ((16, 8, 1), 2, True), ((1024, 512), 1, True)]
)
def test_large_interleaved_tensors_are_written_together(shape: tuple[int, ...], axis: int, placed: bool) -> None:
    """Each alone would write every other element of memory.

    Adjacent matrices have a place of their own.
    """
    lines = [op("u", "sin", "a"), op("v", "cos", "b"), op("y", "concat", "u", "v", axis=axis)]
    found = find_views(build_programs(graph({"a": shape, "b": shape}, *lines, out="y"), REGISTRY))
    assert len([u for u in found.programs.units if not u.free]) == (2 if placed else 3)
    assert [found.storage(t).buffer == "y" for t in ("u", "v")] == [placed, placed]


@pytest.mark.parametrize(("rows", "twice", "placed"), [(1024, False, False), (16, False, True), (1024, True, True)])
def test_a_value_is_computed_in_its_readers_order(rows: int, twice: bool, placed: bool) -> None:
    """A large tensor would be written element by element, with large strides.

    A second reader needs it whole.
    """
    lines = [op("u", "sin", "a"), op("y", "transpose", "u", perm=(1, 0)), *([op("z", "exp", "u")] if twice else [])]
    found = find_views(build_programs(graph({"a": (rows, 512)}, *lines, out="y z" if twice else "y"), REGISTRY))
    assert (found.storage("u").buffer == "y") == placed
