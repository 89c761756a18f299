"""Graphs for ranges of sizes, against the graph at each size."""

from __future__ import annotations

from typing import Any

import pytest
from cuts.ir import Dim, GraphError, SymbolicExtent, size_samples
from cuts.tests.amounts import examples
from cuts.tests.ops.symbolic_graphs import SizedGraph, check_sizes, sized_graphs
from hypothesis import given, settings

N = (Dim("n", 1, 7),)
BOTH = (Dim("n", 1, 7), Dim("m", 1, 5))
X = {"x": ("n", 8)}


def _attributes(**values: Any) -> Any:
    return lambda _: values


#: Nodes by name, each on x[n, 8].
ONE_STEP = {
    "elements": ("relu", _attributes()),
    "mean over the dim": ("reduce_mean", _attributes(axes=[0])),
    "total mean": ("reduce_mean", _attributes()),
    "softmax over the dim": ("softmax", _attributes(axis=0)),
    "greatest": ("reduce_max", _attributes(axes=[0])),
    "place of the greatest": ("argmax", _attributes(axis=0)),
    "last place of the greatest": ("argmax", _attributes(axis=0, select_last_index=True)),
    "running sum": ("cumsum", _attributes(axis=0)),
    "running sum from the end": ("cumsum", _attributes(axis=0, reverse=True)),
    "last row": ("slice", lambda s: {"starts": [s["n"] - 1], "ends": [s["n"]], "axes": [0]}),
    "reversed": ("slice", _attributes(starts=[-1], ends=[-(1 << 20)], axes=[0], steps=[-1])),
    "padded by zeros": ("pad", _attributes(pads=[1, 0, 2, 0], value=3.0)),
    "padded by the edge": ("pad", _attributes(pads=[1, 0, 2, 0], mode="edge")),
    "normalised": ("reduce_l2", _attributes(axes=[0])),
}


def _sizes(dims: tuple[Dim, ...]) -> list[dict[str, int]]:
    if len(dims) == 1:
        return [{dims[0].name: n} for n in range(dims[0].low, dims[0].high + 1)]
    return [{"n": n, "m": m} for n, m in [(1, 1), (1, 5), (7, 1), (7, 5), (5, 3), (2, 4), (6, 5), (7, 4), (3, 2)]]


@pytest.mark.parametrize("name", list(ONE_STEP))
def test_each_size_of_an_operation_is_right(name: str) -> None:
    op, attributes = ONE_STEP[name]
    check_sizes(SizedGraph(X, [(op, ("x",), attributes)], ("v0",)), N, _sizes(N))


def test_products_over_a_dim() -> None:
    graph = SizedGraph({"x": (3, "n"), "w": ("n", 4)}, [("matmul", ("x", "w"), _attributes())], ("v0",))
    check_sizes(graph, N, _sizes(N))


def test_negative_indices_count_from_the_size() -> None:
    nodes = [
        ("argmax", ("x",), _attributes(axis=1, keepdims=False)),
        ("sub", ("v0", "v0"), _attributes()),
        ("sign", ("z",), _attributes()),
        ("cast", ("v2",), _attributes(to="i64")),
        ("neg", ("v3",), _attributes()),
        ("gather", ("x", "v4"), _attributes(axis=0)),
    ]
    check_sizes(SizedGraph({**X, "z": (4,)}, nodes, ("v5",)), N, _sizes(N)[1:])


@pytest.mark.parametrize("op", ["reduce_min", "reduce_max", "argmin"])
def test_extremes_of_long_integers(op: str) -> None:
    nodes = [("cast", ("x",), _attributes(to="i64")), (op, ("v0",), _attributes(**_axes_of(op)))]
    check_sizes(SizedGraph(X, nodes, ("v1",)), N, _sizes(N))


def _axes_of(op: str) -> dict[str, Any]:
    return {"axis": 0} if op.startswith("arg") else {"axes": [0]}


def _places_in_merged_dims(inner: int | str, op: str) -> SizedGraph:
    nodes = [("reshape", ("x",), _attributes(shape=[-1])), (op, ("v0",), _attributes(axis=0))]
    return SizedGraph({"x": ("n", inner)}, nodes, ("v1",))


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_only_the_outermost_of_merged_dims_is_counted(op: str) -> None:
    check_sizes(_places_in_merged_dims(3, op), N, _sizes(N))
    with pytest.raises(GraphError, match="position of an extreme over several axes counts elements by a size"):
        _places_in_merged_dims("m", op).graph_of_range(BOTH)


def test_concatenations_along_a_dim() -> None:
    nodes = [("concat", ("x", "z", "x"), _attributes(axis=0)), ("softmax", ("v0",), _attributes(axis=0))]
    check_sizes(SizedGraph({**X, "z": (3, 8)}, nodes, ("v0", "v1")), N, _sizes(N))


def test_convolutions_pad_after_the_last_row() -> None:
    nodes = [
        ("conv", ("x", "w"), _attributes(pads=[1, 1, 1, 1])),
        ("conv", ("v0", "u"), _attributes(pads=[0, 1, 2, 1])),
        ("global_average_pool", ("v1",), _attributes()),
    ]
    check_sizes(
        SizedGraph({"x": (1, 2, "n", 6), "w": (3, 2, 3, 3), "u": (2, 3, 3, 3)}, nodes, ("v1", "v2")), N, _sizes(N)
    )


def test_dims_that_a_reshape_merges_are_divided_again() -> None:
    nodes = [
        ("reshape", ("x",), _attributes(shape=[-1, 8])),
        ("matmul", ("v0", "w"), _attributes()),
        ("reduce_mean", ("v1",), _attributes(axes=[0])),
        ("reshape", ("v1",), lambda s: {"shape": [s["n"], s["m"], 5]}),
        ("softmax", ("v3",), _attributes(axis=1)),
    ]
    check_sizes(SizedGraph({"x": ("n", "m", 8), "w": (8, 5)}, nodes, ("v0", "v1", "v2", "v4")), BOTH, _sizes(BOTH))


@settings(max_examples=examples(30, 600))
@given(graph=sized_graphs(["n"]))
def test_random_graphs_of_one_dim(graph: SizedGraph) -> None:
    check_sizes(graph, N, _sizes(N))


@settings(max_examples=examples(30, 600))
@given(graph=sized_graphs(["n", "m"]))
def test_random_graphs_of_two_dims(graph: SizedGraph) -> None:
    check_sizes(graph, BOTH, _sizes(BOTH))


def test_nodes_without_sizes_stay() -> None:
    nodes = [("matmul", ("x", "w"), _attributes()), ("softmax", ("v0",), _attributes(axis=1))]
    graph = SizedGraph({**X, "w": (8, 5)}, nodes, ("v1",))
    bounded = graph.graph_of_range(N)
    assert bounded.graph.nodes == graph.at({"n": 7}).nodes
    assert not bounded.sizes


def test_a_strided_convolution_takes_multiples_of_its_stride() -> None:
    nodes = [
        ("conv", ("x", "w"), _attributes(strides=[2, 2], pads=[1, 1, 1, 1])),
        ("conv", ("v0", "u"), _attributes(strides=[2, 2], pads=[1, 1, 1, 1])),
        ("reduce_mean", ("v1",), _attributes(axes=[2, 3])),
    ]
    graph = SizedGraph({"x": (1, 2, "4*n", 8), "w": (3, 2, 3, 3), "u": (2, 3, 3, 3)}, nodes, ("v1", "v2"))
    check_sizes(graph, N, _sizes(N))


def test_a_stride_over_any_size_is_one_error() -> None:
    nodes = [("conv", ("x", "w"), _attributes(strides=[2, 2]))]
    graph = SizedGraph({"x": (1, 2, "n", 6), "w": (3, 2, 3, 3)}, nodes, ("v0",))
    with pytest.raises(GraphError, match=r"node 'n0' \(conv\) cannot be compiled for n in 1..7: .* other sizes"):
        graph.graph_of_range((Dim("n", 1, 7),))


#: Nodes on x[n, 8] with another form at n = 1: the error for n from 1, and whether n from 3 is right.
SHORT_SIZE_CASES = {
    "a slice has fewer rows": (
        "slice", _attributes(starts=[0], ends=[3], axes=[0]), r"'v0' at n=1: expected \[3, 8\], .*, found \[1, 8\]"
    ),
    "rows are added": (
        "pad", lambda s: {"pads": [0, 0, 2 - s["n"], 0]}, r"'n0' \(pad\): number of conditions at n=1: expected 0"
    ),
    "a number differs": (
        "leaky_relu", lambda s: {"alpha": 0.1 if s["n"] > 2 else 0.2}, "'n0': attribute 'alpha' at n=1: expected 0.1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT_SIZE_CASES)
def test_short_sizes_of_another_form_are_refused(name: str) -> None:
    """The samples are near the greatest size, 40."""
    op, attributes, message = SHORT_SIZE_CASES[name]
    graph = SizedGraph(X, [(op, ("x",), attributes)], ("v0",))
    with pytest.raises(GraphError, match=message):
        graph.graph_of_range((Dim("n", 1, 40),))
    check_sizes(graph, (Dim("n", 3, 40),), [{"n": n} for n in (3, 4, 17, 40)])


def test_sizes_that_shrink_are_refused() -> None:
    """Memory is for the greatest size of n."""
    graph = SizedGraph({"x": (1, 1, 12), "w": (1, 1, "n")}, [("conv", ("x", "w"), _attributes())], ("v0",))
    with pytest.raises(GraphError, match=r"'v0': expected at most 6 of a dim, .* which is up to 12 for n in 1..7"):
        graph.graph_of_range(N)


def test_samples_fit_affine_extents_only() -> None:
    samples = size_samples(BOTH, {"n": 1, "m": 1})
    assert samples.fit(tuple(2 * s["n"] - s["m"] + 3 for s in samples.samples)) == SymbolicExtent(
        3, (("m", -1), ("n", 2))
    )
    assert samples.fit(tuple(s["n"] * s["m"] for s in samples.samples)) is None
