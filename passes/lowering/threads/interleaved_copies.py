"""Interleaved copies: asynchronous copies spread between the steps of products.

Many copies at once fill the queues of the memory units, and threads wait until there is room. Between two barriers
copies may begin anywhere before the commit of their group: nothing there reads their destinations.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ....ir import Barrier, Commit, Index, Item, Kernel, Loop, MmaAccumulate, Phase
from ..fetch import TRIP
from ..substitute_phase import substitute_phase


def spread_copies(kernel: Kernel) -> Kernel:
    """Return an extracted kernel whose loops interleave copies and products.

    Each step of products is preceded by a share of the copies.
    """
    return evolve(kernel, items=tuple(_item(item) for item in kernel.items))


def _item(item: Item) -> Item:
    return evolve(item, body=tuple(_interleave(item.body))) if isinstance(item, Loop) else item


def _interleave(body: Sequence[Item]) -> list[Item]:
    """Return the items of a loop, the copies before its commit divided among the steps before it."""
    end = next((n for n, item in enumerate(body) if isinstance(item, Commit)), 0)
    copies = [trip for item in body[:end] if _is_copy(item) for trip in _trips(item)]
    rest = [item for item in body[:end] if not _is_copy(item)]
    steps = sum(map(_is_product, rest))
    if steps < 2 or any(isinstance(item, Barrier) for item in rest):
        return list(body)
    found: list[Item] = []
    ends = iter(range(1, steps + 1))
    placed = 0
    for item in rest:
        if _is_product(item):
            upto = len(copies) * next(ends) // steps
            found += copies[placed:upto]
            placed = upto
        found.append(item)
    return [*found, *body[end:]]


def _is_copy(item: Item) -> bool:
    return isinstance(item, Phase) and item.asynchronous


def _is_product(item: Item) -> bool:
    return isinstance(item, Phase) and any(isinstance(root, MmaAccumulate) for root in item.roots)


def _trips(item: Item) -> list[Item]:
    """Return the trips of a fetch, each as a phase of its own."""
    assert isinstance(item, Phase)
    trip = next((v for v in item.unrolled if v.name == TRIP), None)
    if trip is None:
        return [item]
    rest = tuple(v for v in item.unrolled if v != trip)
    return [evolve(substitute_phase(item, {trip: Index(n)}), unrolled=rest) for n in range(trip.extent)]
