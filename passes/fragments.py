"""Fragments: small graphs on their own, cut into groups by the model, where need be in another process.

To compare the algorithms of a node, each of them is cut into groups like any graph. Its transforms are long
expressions, which take a while to bring into normal form; a fragment holds all that this needs, so that a tuner's
workers can do it side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from itertools import repeat
from typing import Protocol, TypeAlias

import numpy as np
from attrs import evolve, field, frozen

from ..ir import CutsError, FusedGroup, Graph, InternalError, Mode, Target, naming_faults
from ..ops.language import Registry, Vocabulary
from .assemble import turns
from .evaluators import Modelled
from .fusion import (
    Folding,
    Order,
    Partitioner,
    Policy,
    Remembered,
    Workshop,
    build_programs,
    canonical_names,
    centre_means,
    find_views,
    fold_units,
    form_key,
    noted_foldings,
    partition,
)
from .layout import choose_layouts, pack_constants
from .schedule import Point, first_points
from .split import Splitting

_LOG = logging.getLogger("cuts.passes")


@frozen
class PricedKernels:
    """The kernels that a fragment is cut into, each with the seconds of the best of a few of its points by the model;
    `searched` are seconds of all of them where each is searched by the model, and split where that is faster.
    `foldings` are what was folded on the way, for whoever cuts the same kernels; `counts` says how often each is
    launched, where one is part of a loop. `points` are the best of each that was searched, over canonical names, for
    whoever begins to measure with them.
    """

    priced: tuple[tuple[FusedGroup, float], ...]
    searched: float
    foldings: Sequence[Folding] = field(default=(), eq=False, repr=False)
    counts: tuple[int, ...] = ()
    points: Sequence[tuple[FusedGroup, tuple[Point, ...]]] = field(default=(), eq=False, repr=False)

    def total(self, seconds: Sequence[float]) -> float:
        """Return what all launches take together, where each kernel takes so many seconds."""
        return sum(count * each for count, each in zip(self.counts or repeat(1), seconds, strict=False))


#: The kernels of a fragment; nothing where it cannot be cut.
Priced: TypeAlias = PricedKernels | None


@frozen
class Fragment:
    """A small graph, the declarations of its operations, and what its kernels are for; `math` is the math mode of its
    sums of products. Of its inputs, `known` ones are constants of the whole graph, where the dims of inputs and
    outputs lie in some `orders`.
    """

    graph: Graph
    registry: Registry
    target: Target
    mode: Mode
    math: str = ""
    known: frozenset[str] = frozenset()
    orders: Mapping[str, Order] = field(factory=dict)


class Planner(Protocol):
    """Cuts fragments into kernels."""

    def __call__(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of each fragment."""
        ...


def needed(registry: Vocabulary, graph: Graph) -> Registry:
    """Return no more of a vocabulary than a graph needs, as it goes to another process."""
    return Registry({n.op: registry.of(n) for n in graph.nodes})


def cut_fragment(fragment: Fragment) -> Priced:
    """Return the kernels of the partition that is best by the model, before any of them is split."""
    with noted_foldings() as foldings:
        found = _cut(fragment)
    return None if found is None else evolve(found, foldings=tuple(foldings))


def _cut(fragment: Fragment) -> Priced:
    modelled = Remembered(Modelled(fragment.target))
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


def _cut_kernels(fragment: Fragment, modelled: Remembered) -> PricedKernels:
    """Return the kernels of a fragment as the model has them; raise `CutsError` where it cannot be cut."""
    programs = centre_means(fold_units(build_programs(_with_constants(fragment), fragment.registry)))
    ordered = choose_layouts(programs, fragment.target, fragment.math, fragment.orders)
    views = find_views(pack_constants(ordered, fragment.target, fragment.math))
    target = fragment.target
    policy = Policy(shared_bytes=target.MAX_shared, math=fragment.math, chains=target.lockstep)
    workshop = Workshop(views, policy)
    splitting = Splitting(modelled, modelled, fragment.target)
    groups = partition(Partitioner(workshop, splitting), fragment.mode)
    points: dict[Hashable, tuple[FusedGroup, tuple[Point, ...]]] = {}
    searched = [_searched(group.form, splitting, points) for group in groups]
    priced, times = tuple((group.form, modelled.cost(group.form)) for group in groups), turns(views)
    counts = tuple(times[group.repeat] for group in groups)
    found = PricedKernels(priced, 0.0, counts=counts, points=tuple(points.values()))
    return evolve(found, searched=found.total(searched))


def _searched(
    form: FusedGroup, splitting: Splitting, points: dict[Hashable, tuple[FusedGroup, tuple[Point, ...]]]
) -> float:
    """Return the seconds of a kernel, or of the two that may take its place, by the points that a search by the model
    ends with, and note these.

    The best of a few points of a sum may be twice as slow as that; without sums it is about as fast.
    """
    if not any(segment.reductions for segment in form.segments):
        return splitting.cost(form)
    ways = [[canonical_names(form)[0]], splitting.halves(form)]
    for each in (each for way in ways for each in way):
        points[form_key(each)] = each, first_points(each, splitting.target)
    return min(sum(points[form_key(each)][1][0].score for each in way) for way in ways if way)


def _with_constants(fragment: Fragment) -> Graph:
    """Return the graph of a fragment with constants in the places of what is known; their numbers say nothing."""
    graph, known = fragment.graph, [v for v in fragment.graph.inputs if v in fragment.known]
    arrays = {v: np.zeros(graph.types[v].shape, graph.types[v].dtype.numpy) for v in known}
    inputs = tuple(v for v in graph.inputs if v not in fragment.known)
    return evolve(graph, inputs=inputs, constants={**graph.constants, **arrays})


def cut_fragments(fragments: Sequence[Fragment]) -> Sequence[Priced]:
    """Return the kernels of each fragment, one after the other in this process."""
    return [cut_fragment(fragment) for fragment in fragments]
