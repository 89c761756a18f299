"""Candidate subgraphs: small graphs that the cost model partitions, in any process.

To compare the algorithms of a node, each of them is partitioned like any graph. Its transforms are long expressions
whose normal forms take long to compute; a candidate subgraph contains all that this needs, so that the workers of a
tuner can do it in parallel.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np
from attrs import evolve, field, frozen

from ...ir import CutsError, FusedGroup, Graph, InternalError, Mode, Target, naming_faults
from ...ops.language import Registry, Vocabulary
from ..fusion import (
    CachedEvaluator,
    Folding,
    GroupBuilder,
    Order,
    Partitioner,
    Policy,
    build_programs,
    canonical_names,
    collect_foldings,
    find_views,
    fold_units,
    form_key,
    loop_iterations,
    partition,
    shift_means,
)
from ..layout import choose_layouts, pack_constants
from ..schedule import Point, first_points
from ..split import Splitting
from .analytic_cost import AnalyticCost
from .executor import ModelQuery

_LOG = logging.getLogger("cuts.passes")


@frozen
class CostedKernels:
    """Kernels of a candidate subgraph, each with its modelled seconds.

    The seconds are those of the best of a few candidate schedules; `searched` are those of all kernels where each is
    searched by the model, and split where that is faster. `foldings` are the foldings on the way, for other partitions
    with the same kernels. `features` has the launches of each kernel, more than one in a loop. `points` are the best
    candidate schedules of each searched kernel, over canonical names, from which a measured search begins.
    """

    costs: tuple[tuple[FusedGroup, float], ...]
    searched: float
    foldings: Sequence[Folding] = field(default=(), eq=False, repr=False)
    counts: tuple[int, ...] = ()
    points: Sequence[tuple[FusedGroup, tuple[Point, ...]]] = field(default=(), eq=False, repr=False)

    def total(self, seconds: Sequence[float]) -> float:
        """Return the time of all launches, given the seconds of each kernel."""
        return sum(count * each for count, each in zip(self.counts or repeat(1), seconds, strict=False))


#: Kernels of a candidate subgraph; None where it cannot be partitioned.
SubgraphKernels: TypeAlias = CostedKernels | None


@frozen
class CandidateSubgraph(ModelQuery[CostedKernels]):
    """Candidate subgraph, with the declarations of its operations and its target.

    `math` is the math mode of its sums of products. Its `known` inputs are constants of the whole graph; the dims of
    its inputs and outputs are stored in `orders`.
    """

    graph: Graph
    registry: Registry
    target: Target
    mode: Mode
    math: str = ""
    known: frozenset[str] = frozenset()
    orders: Mapping[str, Order] = field(factory=dict)

    def answer_here(self) -> SubgraphKernels:
        """Return the kernels, computed in this process."""
        return partition_subgraph(self)


def needed_operations(registry: Vocabulary, graph: Graph) -> Registry:
    """Return the part of a vocabulary that a graph needs."""
    return Registry({n.op: registry.of(n) for n in graph.nodes})


def partition_subgraph(fragment: CandidateSubgraph) -> SubgraphKernels:
    """Return the kernels of the best partition by the model, without split-K."""
    with collect_foldings() as foldings:
        found = _cut(fragment)
    return None if found is None else evolve(found, foldings=tuple(foldings))


def _cut(fragment: CandidateSubgraph) -> SubgraphKernels:
    modelled = CachedEvaluator(AnalyticCost(fragment.target))
    names = ", ".join(node.name for node in fragment.graph.nodes)
    try:
        with naming_faults(f"candidate kernels of nodes {names}"):
            return _cut_kernels(fragment, modelled)
    except CutsError as error:
        _LOG.log(
            logging.WARNING if isinstance(error, InternalError) else logging.INFO,
            "cuts: nodes %s are no candidate kernels: %s", names, error,
        )  # fmt: skip
        return None


def _cut_kernels(fragment: CandidateSubgraph, modelled: CachedEvaluator) -> CostedKernels:
    """Return the kernels of a fragment by the cost model.

    Raises `CutsError` where it cannot be partitioned.
    """
    written = build_programs(_with_constants(fragment), fragment.registry, target=fragment.target)
    programs = shift_means(fold_units(written))
    ordered = choose_layouts(programs, fragment.target, fragment.math, fragment.orders)
    views = find_views(pack_constants(ordered, fragment.target, fragment.math))
    builder = GroupBuilder(views, Policy.of(fragment.target, fragment.math))
    splitting = Splitting(modelled, modelled, fragment.target)
    groups = partition(Partitioner(builder, splitting), fragment.mode)
    points: dict[Hashable, tuple[FusedGroup, tuple[Point, ...]]] = {}
    searched = [_search_seconds(group.form, splitting, points) for group in groups]
    priced, times = tuple((group.form, modelled.cost(group.form)) for group in groups), loop_iterations(views)
    counts = tuple(times[group.repeat] for group in groups)
    found = CostedKernels(priced, 0.0, counts=counts, points=tuple(points.values()))
    return evolve(found, searched=found.total(searched))


def _search_seconds(
    form: FusedGroup, splitting: Splitting, points: dict[Hashable, tuple[FusedGroup, tuple[Point, ...]]]
) -> float:
    """Return the seconds of a kernel, or of those that replace it, by a search with the cost model; record the best
    candidates.

    The best of a few candidates of a sum may be twice as slow as that; without sums it is about as fast.
    """
    if not any(segment.reductions for segment in form.segments):
        return splitting.cost(form)
    ways = [[canonical_names(form)[0]], splitting.halves(form), splitting.aligned_kernels(form)]
    for each in (each for way in ways for each in way):
        points[form_key(each)] = each, first_points(each, splitting.target)
    return min(sum(points[form_key(each)][1][0].score for each in way) for way in ways if way)


def _with_constants(fragment: CandidateSubgraph) -> Graph:
    """Return the graph of a fragment with zero constants for its known inputs."""
    graph, known = fragment.graph, [v for v in fragment.graph.inputs if v in fragment.known]
    arrays = {v: np.zeros(graph.types[v].shape, graph.types[v].dtype.numpy) for v in known}
    inputs = tuple(v for v in graph.inputs if v not in fragment.known)
    return evolve(graph, inputs=inputs, constants={**graph.constants, **arrays})
