"""Legality and level of fusing two nodes, and reasons of refusal."""

from __future__ import annotations

import pytest
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.normalise import Illegal

from .build import Line, fuse_units, graph, op

CONV = op("c", "conv", "x", "w", pads=(1, 1, 1, 1))
INPUTS = {
    "x": (1, 4, 8, 8),
    "w": (4, 4, 3, 3),
    "p": (6, 4, 1, 1),
    "d": (4, 1, 3, 3),
    "m": (1, 4, 8, 8),
    "b": (4, 1, 1),
    "q": (8, 5),
    "u": (5,),
    "v": (8, 5),
}

LEVELS: dict[str, tuple[list[Line], str, str]] = {
    "relu after a convolution": ([CONV, op("y", "relu", "c")], "n0 n1", "register"),
    "relu before a convolution": ([op("a", "relu", "x"), op("y", "conv", "a", "w")], "n0 n1", "register"),
    "convolution, convolution": ([CONV, op("y", "conv", "c", "w")], "n0 n1", "shared"),
    "convolution, pointwise convolution": ([CONV, op("y", "conv", "c", "p")], "n0 n1", "shared"),
    "depthwise, pointwise": ([op("c", "conv", "x", "d", groups=4), op("y", "conv", "c", "p")], "n0 n1", "shared"),
    "convolution with an epilogue, convolution with one": (
        [CONV, op("r", "relu", "c"), op("s", "conv", "r", "p"), op("y", "relu", "s")], "n0 n1 n2 n3", "shared"),
    "matrix product, matrix product": ([op("c", "matmul", "x", "m"), op("y", "matmul", "c", "q")], "n0 n1", "shared"),
    "convolution, pooling": ([CONV, op("y", "max_pool", "c", kernel_shape=(2, 2), strides=(2, 2))], "n0 n1", "shared"),
    "sums of a row, one of them weighed": (
        [op("a", "mul", "q", "u"), op("e", "mul", "a", "v"), op("f", "reduce_sum", "e", axes=(1,), keepdims=True),
         op("g", "reduce_max", "v", axes=(1,), keepdims=True), op("h", "mul", "q", "f"), op("y", "add", "h", "g")],
        "n1 n2 n4 n5 n3 n0", "register"),
    "softmax, what follows": ([op("s", "softmax", "x"), op("y", "relu", "s")], "n0 n1", "register"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEVELS)
def test_level_of_a_legal_pair(name: str) -> None:
    lines, units, level = LEVELS[name]
    found = fuse_units(graph(INPUTS, *lines, out="y"), units)
    assert isinstance(found, Group), found
    assert found.level == level


REASONS: dict[str, tuple[list[Line], str, str, str]] = {
    "softmax reads a whole row of the product": (
        [op("c", "matmul", "x", "m"), op("y", "softmax", "c")], "n0 n1", "y", "is also read outside of a reduction"),
    "the first result is wanted too": ([CONV, op("y", "conv", "c", "w")], "n0 n1", "c y",
                                       "'c' is in shared memory but needed outside"),
    "the prologue's result is wanted too": (
        [op("a", "relu", "x"), op("y", "conv", "a", "p")], "n0 n1", "a y", "cannot be matched with the instances"),
    "a dear prologue": ([op("a", "gelu", "x"), op("y", "conv", "a", "w")], "n0 n1", "y",
                        "issue slots would be recomputed"),
    "a broadcast of a contraction": (
        [op("c", "conv", "x", "w"), op("y", "expand", "c", shape=(3, 4, 6, 6))], "n0 n1", "y", "would be broadcast"),
    "two contractions that join": (
        [op("c", "conv", "x", "p"), op("e", "conv", "m", "p"), op("y", "add", "c", "e")], "n0 n2 n1", "y",
        "compete for registers"),
    "the first result is an index": (
        [op("i", "argmax", "q", axis=1, keepdims=False), op("g", "gather", "q", "i", axis=0),
         op("y", "reduce_sum", "g", axes=(0,))],
        "n0 n1 n2", "y", "is what other tensors are indexed with"),
    "no overlap between windows and threads": (
        [op("a", "max_pool", "x", kernel_shape=(2, 2)), op("y", "softmax", "a")], "n0 n1", "y", "is also read outside"),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_reason_of_an_illegal_pair(name: str) -> None:
    lines, units, outs, reason = REASONS[name]
    found = fuse_units(graph(INPUTS, *lines, out=outs), units)
    assert isinstance(found, Illegal), found
    assert reason in found.reason


def test_the_box_has_to_fit_shared_memory() -> None:
    made = graph(
        {"x": (1, 512, 4, 4), "w": (512, 512, 1, 1)}, op("c", "conv", "x", "w"), op("y", "conv", "c", "w"), out="y"
    )
    assert isinstance(fuse_units(made, "n0 n1", shared_bytes=2048), Group)
    found = fuse_units(made, "n0 n1", shared_bytes=2047)
    assert isinstance(found, Illegal)
    assert "needs 2048 bytes of 'c', shared memory has 2047" in found.reason


def test_the_first_segment_has_the_shared_dims() -> None:
    found = fuse_units(graph(INPUTS, CONV, op("y", "conv", "c", "p"), out="y"), "n0 n1")
    assert isinstance(found, Group)
    first = found.form.segments[0]
    assert [a.extent for a in first.axes] == [1, 4, 8, 8]
    assert found.form.tensors[first.reductions[0].name].shape == (1, 4, 8, 8)


def test_a_kernel_has_at_most_two_segments() -> None:
    made = graph(INPUTS, CONV, op("e", "conv", "c", "w"), op("y", "conv", "e", "w"), out="y")
    found = fuse_units(made, "n0 n1 n2")
    assert isinstance(found, Illegal)


def test_no_shared_level_where_the_policy_says_so() -> None:
    assert isinstance(
        fuse_units(graph(INPUTS, CONV, op("y", "conv", "c", "w"), out="y"), "n0 n1", shared=False), Illegal
    )
