"""Lookups of positions stay within tensors.

Tiles that reach beyond a tensor are included.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuts.backends.devices import find_target
from cuts.ir import dfg, indirects
from cuts.ir.affine import Guard, Indirect, proven
from cuts.ir.dfg import DfgNode, IndexNode, Load, Op, post_order
from cuts.ir.graph import Graph
from cuts.ir.kernel import Kernel, phases
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.space import make_space
from cuts.tests.operations import DIFFERENTIABLE, FLAT, Use
from cuts.tests.operations_graph import bench_of

from ..fuzz.checking import Bench
from ..needs import needs_opencl
from .cases import builder, legal_points

GPU = find_target("cuda:sm_90")
#: Structures of a group, and points of each.
STRUCTURES, POINTS = 6, 4
#: A use of each operation that looks up places, or takes them as an operand.
USES = {u.op: u for u in (*DIFFERENTIABLE, *FLAT) if any(t is not None and t.dtype.is_int for t in u.types)}


def groups_of(use: Use) -> Iterator[FusedGroup]:
    """Yield the normal forms of a use, a kernel per unit."""
    bench = bench_of([use])
    shop = GroupBuilder(find_views(build_programs(bench.graph, bench.spec.registry)), Policy())
    names = (n for n, unit in shop.units.items() if unit.repeat is None and not unit.free and shop.is_used(n))
    yield from (shop.single(name).form for name in names)


def lookups(kernel: Kernel) -> Iterator[tuple[Indirect, tuple[Guard, ...]]]:
    """Yield every lookup of a kernel, with the conditions to its left."""
    for phase in phases(kernel.items):
        nodes = post_order(phase.roots)
        chosen = {n.args[1]: n.args[0].guards for n in nodes if isinstance(n, Op) and isinstance(n.args[0], dfg.Test)}
        for node in nodes:
            yield from _of_node(node, (*phase.when, *chosen.get(node, ())))  # type: ignore[call-overload]


def _of_node(node: DfgNode, outer: tuple[Guard, ...]) -> Iterator[tuple[Indirect, tuple[Guard, ...]]]:
    guards = getattr(node, "guards", ())
    for number, guard in enumerate(guards):
        yield from ((place, (*outer, *guards[:number])) for place in indirects(guard.index))
    if isinstance(node, (Load, IndexNode)):
        index = node.address if isinstance(node, Load) else node.index
        yield from ((place, (*outer, *guards)) for place in indirects(index))


@pytest.mark.parametrize("op", USES)
def test_what_is_looked_up_exists(op: str) -> None:
    for group in groups_of(USES[op]):
        space = make_space(group, GPU)
        for structure in space.templates[:STRUCTURES]:
            for schedule in legal_points(space, structure, 1, POINTS):
                for place, guards in lookups(lower(group, schedule, {}, GPU)):
                    if place.tensor in group.tensors and not place.held:
                        (flat,) = place.indices
                        assert proven(flat, group.tensors[place.tensor].size, guards), f"{place} if {guards}"


@needs_opencl
def test_table_is_read_at_looked_up_positions() -> None:
    """An integer tensor names the read elements of a transform's table."""
    make = builder()
    results = make.node("winograd_output", make.input(6, 6, 2, 8, 1, 2), sizes=(2, 8))
    chosen = make.node("gather_nd", results, make.input(3, 5, 4, dtype=DType.I32))
    graph = Graph("table", tuple(make.inputs), (chosen,), dict(make.types), tuple(make.nodes))
    assert [outcome.wrong for outcome in Bench("opencl").check(graph, 1, ("fused", "unfused"))] == [(), ()]
