"""Updates in place: kernels over the slices that they write."""

from __future__ import annotations

from typing import Any, cast

import cuts
import numpy as np
import pytest
from cuts.ir import parse_graph
from cuts.runtime import Plan
from cuts.tests.needs import needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_update_in_place import run_in_place

#: Rows of a cache, and elements of a row.
LENGTH, WIDTH = 96, 5
NUMPY: dict[str, Any] = {
    "f32": np.float32, "f16": np.float16, "f64": np.float64, "i8": np.int8, "u8": np.uint8, "i32": np.int32,
    "i64": np.int64,
}  # fmt: skip


def cache_graph(updates: int, batch: int, kind: str, *, moved: bool, doubled: bool, integer: str = "i64") -> Any:
    """Return a graph that writes rows into a cache.

    A row's place is an integer, or two with a batch.
    """
    sizes = f"{batch}, {LENGTH}, {WIDTH}" if batch else f"{LENGTH}, {WIDTH}"
    dims = 2 if batch else 1
    place, new = ("%places", "%moved") if moved else ("%at", "%new")
    lines = [
        'graph "cache" {', f"input %cache: {kind}[{sizes}]", f"input %at: {integer}[{updates}, {dims}]",
        f"input %by: {integer}[1]", f"input %new: {kind}[{updates}, {WIDTH}]",
        *([f"%places: {integer}[{updates}, {dims}] = add(%at, %by) @n0",
           f"%moved: {kind}[{updates}, {WIDTH}] = mul(%new, %new) @n1"] if moved else []),
        f"%y: {kind}[{sizes}] = scatter_nd(%cache, {place}, {new}) @n2",
        *([f"%z: {kind}[{sizes}] = scatter_nd(%y, %at, %new) @n3"] if doubled else []),
        f"output %{'z' if doubled else 'y'}", f"update %cache to %{'z' if doubled else 'y'}", "}", "",
    ]  # fmt: skip
    return parse_graph("\n".join(lines))


def with_rows(cache: Any, at: Any, new: Any) -> Any:
    """Return a cache with rows written in order.

    Rows outside of it are left out.
    """
    found = cache.copy()
    for place, row in zip(at, new, strict=True):
        if all(-extent <= index < extent for index, extent in zip(place, cache.shape, strict=False)):
            found[tuple(place)] = row
    return found


@needs_opencl
@settings(max_examples=25)
@given(st.data())
def test_drawn_slices(data: st.DataObject) -> None:
    """Of updates at one place the last counts.

    Places may be negative or outside.
    """
    updates, batch = data.draw(st.sampled_from([1, 2, 3, 7, 40])), data.draw(st.sampled_from([0, 1, 4]))
    kind, moved = data.draw(st.sampled_from([*NUMPY])), data.draw(st.booleans())
    doubled = data.draw(st.booleans())
    integer = data.draw(st.sampled_from(["i64", "i32"]))
    graph = cache_graph(updates, batch, kind, moved=moved, doubled=doubled, integer=integer)
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    shape = (batch, LENGTH, WIDTH) if batch else (LENGTH, WIDTH)
    extents = [n for n in (batch, LENGTH) if n]
    at = np.stack([random.integers(-n, n, updates) for n in extents], 1)
    if data.draw(st.booleans()):
        at[:] = at[0]
    if data.draw(st.booleans()):
        at[-1, -1] = random.choice([LENGTH, -LENGTH - 1, 1 << 30])
    inputs = {
        "cache": random.integers(-9, 9, shape).astype(NUMPY[kind]), "at": at.astype(NUMPY[integer]),
        "by": np.zeros(1, NUMPY[integer]),
        "new": random.integers(-9, 9, (updates, WIDTH)).astype(NUMPY[kind]),
    }  # fmt: skip
    if kind.startswith("f"):
        inputs["new"][0, :3], inputs["cache"].flat[:2] = (np.nan, np.inf, -0.0), (np.nan, -np.inf)
    plan = cuts.build(graph, target="opencl").plan
    given_inputs = {name: inputs[name] for name in graph.inputs if name in plan.inputs}
    new = inputs["new"] * inputs["new"] if moved else inputs["new"]
    expected = with_rows(inputs["cache"], at, new)
    expected = with_rows(expected, at, inputs["new"]) if doubled else expected
    found, after = run_in_place(plan, given_inputs, ("cache",))
    (name,) = graph.outputs
    np.testing.assert_array_equal(found[name], expected)
    if "cache" in plan.in_place:
        np.testing.assert_array_equal(after["cache"], expected)


def axes_of_writer(plan: Plan) -> str:
    """Return the axes of the kernel that writes the cache."""
    (group,) = (group for group in plan.groups if "y" in cast(list[str], group["outputs"]))
    return cast(str, group["form"]).partition("group")[0]


@needs_opencl
@pytest.mark.parametrize("updates", [1, 3, 24])
@pytest.mark.parametrize("batch", [0, 4])
def test_only_updates_are_visited(updates: int, batch: int) -> None:
    """The writing kernel has no axis of the cache's length."""
    plan = cuts.build(cache_graph(updates, batch, "f32", moved=False, doubled=False), target="opencl").plan
    assert plan.in_place == {"cache": "y"}
    assert f"< {LENGTH}" not in axes_of_writer(plan)


@needs_opencl
def test_many_updates_visit_the_elements() -> None:
    """More updates than half of the elements save nothing."""
    plan = cuts.build(cache_graph(LENGTH, 0, "f32", moved=False, doubled=False), target="opencl").plan
    assert f"< {LENGTH}" in axes_of_writer(plan) and plan.in_place == {"cache": "y"}
