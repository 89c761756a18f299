"""Windows: blocks of rows take the parts between two bounds.

    z[i, j] = s[i, j] if -window < j - i <= offset else -inf

The iterations of each block are counted, kernels compute the reference, and the cost model counts the same parts.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from cuts.ir import Call, Cast, Expr, FusedGroup, InRange, index_value
from cuts.ir.affine import Var
from cuts.ir.kernel import Kernel, loops
from cuts.ir.schedule import Schedule
from cuts.passes.geometry import geometry_of, mask_bounds, tile_chain
from cuts.passes.lowering.lower import lower
from cuts.passes.model.mask_savings import mask_savings

from ..needs import needs_opencl
from .test_attention_chains import GPU, group_of
from .test_register_chains import TARGETS, WARPGROUP_TARGET, chain_points, compute, halves
from .test_tile_chains import compute as compute_chain
from .test_tile_chains import gradient, groups_of, points_of

#: Queries, keys, offset and window.
SIZES = {
    "square": (256, 256, 0, 70),
    "odd": (150, 203, 3, 40),
    "behind others": (70, 300, 200, 90),
    "rows of nothing": (260, 130, 0, 60),
    "keys before all windows": (64, 400, 390, 100),
}


def window_chain(name: str) -> FusedGroup:
    """Return causal attention whose rows see a window."""
    queries, keys, offset, window = SIZES[name]
    return with_window(group_of(halves(1, 2, 1, queries, keys, 16, 16, causal=True, offset=offset)), window)


def with_window(group: FusedGroup, window: int) -> FusedGroup:
    """Return a causal chain whose rows see a window."""
    first, *others = group.segments
    outputs = tuple(evolve(o, body=_bound_below(o.body, 1 - window)) for o in first.outputs)
    return evolve(group, segments=(evolve(first, outputs=outputs), *others))


def _bound_below(expr: Expr, low: int) -> Expr:
    """Return an expression whose condition on a key and a row has a least difference."""
    if isinstance(expr, InRange):
        return evolve(expr, guards=tuple(evolve(g, low=low) for g in expr.guards))
    if isinstance(expr, Call | Cast):
        return expr.with_children(tuple(_bound_below(c, low) for c in expr.children))
    return expr


def parts_of_blocks(kernel: Kernel) -> list[tuple[int, int]]:
    """Return each block's first part and number of iterations."""
    (end,) = {loop.until for loop in loops(kernel.items) if loop.until is not None}
    found, values = list[tuple[int, int]](), dict[Any, int]()
    for block in range(kernel.blocks):
        values |= {Var("blk", kernel.blocks): block, Var("tid", kernel.threads): 0}
        for define in kernel.defines:
            values[define.var] = int(index_value(define.value, values.__getitem__))
        first = next((n for var, n in values.items() if var.name == "begin"), 0)
        found.append((first, values[end]))
    return found


def first_parts(name: str, schedule: Schedule, least: int) -> list[tuple[int, int]]:
    """Return the first parts that blocks have to take, and how many."""
    queries, keys, offset, window = SIZES[name]
    length, block = schedule.segments[1].reductions[0].dims[0].block_k, schedule.segments[2].dims[1].block
    found = []
    for row in range(0, queries, block):
        first = min(max(row + offset - window + 1, 0), length * -(-keys // length) - 1) // length
        end = -(-min(max(row + block - 1 + offset + 1, 0), length * -(-keys // length)) // length)
        found.append((first, max(end - first, least)))
    return found


@needs_opencl
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", SIZES)
def test_blocks_take_the_parts_of_their_windows(name: str, kind: str) -> None:
    group, target = window_chain(name), TARGETS[kind]
    assert {bound.begins for bound in mask_bounds(group)} == {False, True}
    points = [p for p in chain_points(group, target, 40, kind=kind) if p.segments[1].reductions[0].dims[0].trips > 1]
    assert points
    for schedule in points[:: max(1, len(points) // 2)]:
        taken, before = parts_of_blocks(lower(group, schedule, {}, target)), int(kind == "m64")
        assert sorted({(first, count + before) for first, count in taken}) == sorted(
            {*first_parts(name, schedule, before)}
        )
        compute(group, schedule, target)


@needs_opencl
def test_gradients_take_the_parts_of_windows() -> None:
    """Keys and queries bound each other's parts on both sides."""
    for plain in groups_of(gradient(300, 300, causal=True)):
        group = with_window(plain, 60)
        if tile_chain(group) is None:
            continue
        schedule = next(p for p in points_of(group, 9) if p.segments[0].dims[2].blocks > 1)
        kernel = lower(group, schedule, {}, WARPGROUP_TARGET)
        taken = parts_of_blocks(kernel)
        assert max(first for first, _ in taken) > 0
        assert max(count for _, count in taken) < schedule.segments[0].dims[2].blocks
        compute_chain(group, schedule)


@pytest.mark.parametrize("name", ["square", "odd", "behind others"])
def test_the_model_counts_the_parts_of_windows(name: str) -> None:
    group = window_chain(name)
    for schedule in chain_points(group, TARGETS["m16"], 2, kind="m16"):
        if schedule.segments[1].reductions[0].dims[0].trips == 1:
            continue
        taken = [count for _, count in parts_of_blocks(lower(group, schedule, {}, GPU))]
        found = mask_savings(group, geometry_of(group, schedule), len(taken), GPU)
        assert found is not None
        trips = schedule.segments[1].reductions[0].dims[0].trips
        assert float(found.average) == pytest.approx(sum(taken) / len(taken) / trips)
