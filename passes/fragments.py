"""Fragments: small graphs on their own, cut into groups by the model, where need be in another process.

To compare the algorithms of a node, each of them is cut into groups like any graph. Its transforms are long
expressions, which take a while to bring into normal form; a fragment holds all that this needs, so that a tuner's
workers can do it side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from attrs import frozen

from ..ir import CutsError, FusedGroup, Graph, Mode, Target
from ..ops.language import Registry
from .evaluators import Modelled
from .fusion import (
    Partitioner,
    Policy,
    Remembered,
    Splitting,
    Workshop,
    build_programs,
    centre_means,
    find_views,
    fold_units,
    partition,
)
from .layout import choose_layouts

#: The kernels of a fragment with the seconds that the model gives each; nothing where it cannot be cut.
Priced: TypeAlias = tuple[tuple[FusedGroup, float], ...] | None


@frozen
class Fragment:
    """A small graph, the declarations of its operations, and what its kernels are for; `math` is the math mode of its
    sums of products.
    """

    graph: Graph
    registry: Registry
    target: Target
    mode: Mode
    math: str = ""


class Planner(Protocol):
    """Cuts fragments into kernels."""

    def __call__(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of each fragment."""
        ...


def fragment_of(graph: Graph, registry: Registry, target: Target, mode: Mode, math: str = "") -> Fragment:
    """Return a fragment that carries no more of the vocabulary than it needs."""
    return Fragment(graph, Registry({n.op: registry.of(n) for n in graph.nodes}), target, mode, math)


def cut_fragment(fragment: Fragment) -> Priced:
    """Return the kernels of the partition that is best by the model, before any of them is split."""
    modelled = Remembered(Modelled(fragment.target))
    try:
        programs = centre_means(fold_units(build_programs(fragment.graph, fragment.registry)))
        views = find_views(choose_layouts(programs, fragment.target, fragment.math))
        workshop = Workshop(views, Policy(shared_bytes=fragment.target.MAX_shared, math=fragment.math))
        groups = partition(Partitioner(workshop, Splitting(modelled, modelled, fragment.target)), fragment.mode)
    except CutsError:
        return None
    return tuple((group.form, modelled.cost(group.form)) for group in groups)


def cut_fragments(fragments: Sequence[Fragment]) -> Sequence[Priced]:
    """Return the kernels of each fragment, one after the other in this process."""
    return [cut_fragment(fragment) for fragment in fragments]
