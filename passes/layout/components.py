"""Components: tensors that statements other than products of atoms connect, so that they want one dim innermost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import networkx as nx
from attrs import frozen

from ...ir import Index, TensorType, Var
from ..fusion import Order
from .accesses import Costs, Line

#: A dim of a tensor.
Dim: TypeAlias = tuple[str, int]


@frozen
class Component:
    """Connected tensors, the statements that touch one of them, and the sets of their dims that one axis runs along."""

    tensors: frozenset[str]
    lines: tuple[Line, ...]
    alike: tuple[frozenset[Dim], ...]

    def cost(self, costs: Costs, orders: Mapping[str, Order]) -> float:
        """Return the instructions of its statements."""
        return sum(costs.of(line, orders) for line in self.lines)

    def choices(self, types: Mapping[str, TensorType]) -> Iterator[dict[str, Order]]:
        """Yield the orders with the dims of one such set innermost, for each set."""
        for dims in self.alike:
            last = dict(sorted(dims))
            found = {t: _innermost(d, len(types[t].shape)) for t, d in last.items() if types[t].shape[d] > 1}
            if found := {t: order for t, order in found.items() if order != tuple(range(len(order)))}:
                yield found


def _innermost(dim: int, rank: int) -> Order:
    return (*(d for d in range(rank) if d != dim), dim)


def components(lines: Iterable[Line], types: Mapping[str, TensorType], fixed: frozenset[str]) -> Iterator[Component]:
    """Yield the components of all tensors that are not fixed."""
    lines = tuple(lines)
    tensors: nx.Graph[str] = nx.Graph()
    dims: nx.Graph[Dim] = nx.Graph()
    touching: dict[str, dict[Line, None]] = {}
    for line in lines:
        free = [a for a in line.accesses if a.tensor not in fixed]
        tensors.add_nodes_from(a.tensor for a in free)
        for access in free:
            touching.setdefault(access.tensor, {})[line] = None
        if not line.product:
            nx.add_path(tensors, [a.tensor for a in free])
        along: dict[Var | Dim, list[Dim]] = {}
        for access in free:
            for d, index in enumerate(access.indices):
                dims.add_node((access.tensor, d))
                if (axis := running(index)) is not None and not line.product:
                    along.setdefault(axis, []).append((access.tensor, d))
        for same in along.values():
            nx.add_path(dims, same)
    alike: dict[str, list[frozenset[Dim]]] = {}
    for found in nx.connected_components(dims):
        alike.setdefault(min(found)[0], []).append(frozenset(found))
    for members in nx.connected_components(tensors):
        own = sorted((d for t in members for d in alike.get(t, ())), key=sorted)
        every = dict.fromkeys(line for t in sorted(members) for line in touching[t])
        yield Component(frozenset(members), tuple(every), tuple(own))


def running(index: Index) -> Var | None:
    """Return the only variable that an index moves along by itself, one element a step."""
    found = [atom for atom, factor in index.terms if factor == 1]
    return found[0] if len(found) == 1 and isinstance(found[0], Var) else None
