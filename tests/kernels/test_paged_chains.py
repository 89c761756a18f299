"""Chains whose keys and values lie in pages.

A table numbers the pages; a chain reads them in place, and copies of pages cost their bytes.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.segment import verify_group
from cuts.passes.costs.analytic_cost import AnalyticCost
from cuts.passes.fusion.grouping.convex_merge import convex_merge_candidates, merge_candidate
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.grouping.partitioner import Partitioner
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.sums.deferred_normalisation import defer_normalisation
from cuts.passes.fusion.views import find_views
from cuts.passes.geometry import register_chain
from cuts.passes.split.split_chain import chain_candidates, split_chain

from ..needs import needs_opencl
from .cases import arrays
from .test_attention_chains import GPU, REGISTRY
from .test_register_chains import TARGETS, chain_points, compute

CASES = {"groups of heads": (2, 4, 2, 64, 16), "one query of each head": (2, 2, 2, 64, 16)}


def paged_attention(batch: int, heads: int, groups: int, keys: int, width: int, page: int = 16) -> Graph:
    """Return attention of one query to pages that a table numbers."""
    pages, rows = batch * keys // page, (batch, keys, groups, width)
    shapes: dict[str, tuple[int, ...]] = {"q": (batch, heads, 1, width), "y": (batch, heads, 1, width)}
    nodes: list[Node] = []
    for name in "kv":
        shapes |= {name: (pages, page, groups, width), f"{name}0": (batch, keys // page, page, groups, width)}
        shapes |= {f"{name}1": rows, f"{name}2": (batch, groups, keys, width)}
        nodes += [
            Node(f"{name}a", "gather", (name, "t"), (f"{name}0",), {"axis": 0}),
            Node(f"{name}b", "reshape", (f"{name}0",), (f"{name}1",), {"shape": rows}),
            Node(f"{name}c", "transpose", (f"{name}1",), (f"{name}2",), {"perm": (0, 2, 1, 3)}),
        ]
    types = {name: TensorType(DType.BF16, shape) for name, shape in shapes.items()}
    types["t"] = TensorType(DType.I32, (batch, keys // page))
    nodes.append(Node("a", "attention", ("q", "k2", "v2"), ("y",), {}))
    return Graph("paged", ("q", "k", "v", "t"), ("y",), types, tuple(nodes))


def chain_of(graph: Graph) -> Group:
    """Return a graph's chain, with page copies in its products."""
    shop = GroupBuilder(find_views(defer_normalisation(build_programs(graph, REGISTRY))), Policy())
    parts = Partitioner(shop, AnalyticCost(GPU))
    groups = parts.singletons()
    copies, others = groups[:2], list(groups[2:])
    for copy in copies:
        place = next(n for n, g in enumerate(others) if any(parts.sources[u] & {*copy.units} for u in g.units))
        merged = parts.merge(copy, others[place], parts.owners([*copies, *others]))
        assert isinstance(merged, Group), merged
        others[place] = merged
    (candidate,) = convex_merge_candidates(parts, others, parts.owners(others))
    found = merge_candidate(shop, candidate)
    assert isinstance(found, Group), found
    verify_group(found.form)
    return found


@needs_opencl
@pytest.mark.parametrize("name", CASES)
def test_pages_are_read_in_place(name: str) -> None:
    group = chain_of(paged_attention(*CASES[name])).form
    points = chain_points(group, TARGETS["m16"], 1)
    assert points
    for schedule in points:
        compute(group, schedule, TARGETS["m16"])


def test_parts_of_pages_compute_their_chain() -> None:
    group = chain_of(paged_attention(*CASES["groups of heads"])).form
    inputs, halves = arrays(group, 1), split_chain(group, 2)
    assert halves is not None
    states = interpret(halves[0], {t: inputs[t] for t in halves[0].inputs})
    found = interpret(halves[1], {t: (inputs | states)[t] for t in halves[1].inputs})
    for output, expected in interpret(group, inputs).items():
        np.testing.assert_allclose(found[output].astype(float), expected.astype(float), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("groups", [8, 32])
def test_pages_cost_little_more_than_rows_do(groups: int) -> None:
    """A page is looked up once, not for each of its rows."""
    cost, group = AnalyticCost(GPU), chain_of(paged_attention(8, 32, groups, 4096, 128)).form
    assert register_chain(group) is not None
    parts = [split_chain(group, n) for n in chain_candidates(group, GPU)]
    least = min(sum(map(cost.cost, halves)) for halves in parts if halves is not None)
    assert least < 2 * (16 * groups * 4096 * 128 * 2) / 4e12
