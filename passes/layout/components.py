"""Components: tensors that statements connect, so that they want one dim innermost.

Contractions that matrix instructions compute connect nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from math import fsum
from typing import TypeAlias, TypeVar

from attrs import evolve, frozen

from ...ir import Index, Mod, Primary, TensorType, Var, variables
from ..fusion import Order
from .accesses import Access, InstructionCosts, StatementAccesses

#: A dim of a tensor.
Dim: TypeAlias = tuple[str, int]
T = TypeVar("T", bound=Hashable)


@frozen
class Component:
    """Connected tensors, their statements, and sets of dims with a common axis."""

    tensors: frozenset[str]
    lines: tuple[StatementAccesses, ...]
    matching_dims: tuple[frozenset[Dim], ...]
    outermost: bool = False  #: whether each set may come outermost, too
    second: bool = False  #: whether each set may come after the first dim, too

    @cached_property
    def touching(self) -> Mapping[str, Sequence[StatementAccesses]]:
        """Its statements that access each tensor."""
        return touching_lines(self.lines)

    def saving(self, costs: InstructionCosts, before: Mapping[str, Order], orders: Mapping[str, Order]) -> float:
        """Return the instructions that further orders save."""
        after = {**before, **orders}
        lines = dict.fromkeys(line for t in orders for line in self.touching.get(t, ()))
        return fsum(costs.of(line, before) for line in lines) - fsum(costs.of(line, after) for line in lines)

    def least(self, costs: InstructionCosts) -> float:
        """Return the least instructions of its tensors."""
        return sum(costs.least(a) for line in self.lines for a in line.accesses if a.tensor in self.tensors)

    @property
    def has_windows(self) -> bool:
        """Return whether a statement reads a tensor through a window."""
        return any(window.tensor in self.tensors for line in self.lines for window in windows(line))

    def touches(self, tensors: frozenset[str]) -> bool:
        """Return whether a statement of it accesses one of some tensors."""
        return any(access.tensor in tensors for line in self.lines for access in line.accesses)

    def in_parallel(self, separate: frozenset[Dim] = frozenset()) -> Component:
        """Return the component with the sets of dims that may stay parallel.

        These run through all of its tensors, are not reduced, and none of their dims is `separate`.
        """
        reduced = {
            (access.tensor, d)
            for line in self.lines
            for access in line.accesses
            for d, index in enumerate(access.indices)
            if not set(line.statement.reduce).isdisjoint(variables(index))
        }
        through = (dims for dims in self.matching_dims if {tensor for tensor, _ in dims} == self.tensors)
        return evolve(self, matching_dims=tuple(dims for dims in through if dims.isdisjoint(reduced | separate)))

    def with_rows(self) -> Component:
        """Return the component without other dims after rows that are reduced."""
        rows = {a.tensor: len(a.indices) - 1 for line in self.lines if (a := _rows_of(line)) is not None}
        kept = (dims for dims in self.matching_dims if all(rows.get(t, d) == d for t, d in dims))
        return evolve(self, matching_dims=tuple(kept))

    def choices(self, types: Mapping[str, TensorType]) -> Iterator[dict[str, Order]]:
        """Yield orders with the dims of one set innermost, outermost, or second."""
        places = [_innermost, *[_second] * self.second, *[_outermost] * self.outermost]
        for dims in self.matching_dims:
            last = dict(sorted(dims))
            for place in places:
                found = {t: place(d, len(types[t].shape)) for t, d in last.items() if types[t].shape[d] > 1}
                if found := {t: order for t, order in found.items() if order != tuple(range(len(order)))}:
                    yield found


def touching_lines(lines: Iterable[StatementAccesses]) -> dict[str, list[StatementAccesses]]:
    """Return the statements that access each tensor, in order."""
    found: dict[str, dict[StatementAccesses, None]] = {}
    for line in lines:
        for access in line.accesses:
            found.setdefault(access.tensor, {})[line] = None
    return {tensor: [*each] for tensor, each in found.items()}


def windows(line: StatementAccesses) -> Iterator[Access]:
    """Yield the reads through windows.

    An index of a window is the sum of an axis and a reduced one.
    """
    axes, reduce = line.statement.axes, line.statement.reduce
    for access in line.accesses[:-1] if reduce else ():
        found = map(variables, access.indices)
        if any(not each.isdisjoint(reduce) and not each.isdisjoint(axes) for each in found):
            yield access


def _rows_of(line: StatementAccesses) -> Access | None:
    """Return the only read along a statement's one reduced axis, if that is its last dim."""
    reduce = line.statement.reduce
    found = [a for a in line.accesses[:-1] if any(not variables(i).isdisjoint(reduce) for i in a.indices)]
    return found[0] if len(found) == len(reduce) == 1 and running(found[0].indices[-1]) == reduce[0] else None


def _innermost(dim: int, rank: int) -> Order:
    return (*(d for d in range(rank) if d != dim), dim)


def _second(dim: int, rank: int) -> Order:
    return tuple(sorted(range(rank), key=lambda d: (d > 0 and d != dim, d)))


def _outermost(dim: int, rank: int) -> Order:
    return (dim, *(d for d in range(rank) if d != dim))


def components(
    lines: Iterable[StatementAccesses], types: Mapping[str, TensorType], fixed: frozenset[str]
) -> Iterator[Component]:
    """Yield the components of all tensors that are not fixed."""
    touching: dict[str, dict[StatementAccesses, None]] = {}
    together: list[Sequence[str]] = []
    same: list[Sequence[Dim]] = []
    for line in lines:
        free = [a for a in line.accesses if a.tensor not in fixed]
        for access in free:
            if access.tensor not in touching:
                same += [((access.tensor, d),) for d in range(len(access.indices))]
            touching.setdefault(access.tensor, {})[line] = None
        if not line.product:
            together.append([a.tensor for a in free])
            same += _axis_dims(free).values()
    matching: dict[str, list[frozenset[Dim]]] = {}
    for dims in merge_overlapping(same):
        matching.setdefault(dims[0][0], []).append(frozenset(dims))
    for tensors in merge_overlapping([*together, *((t,) for t in touching)]):
        every = dict.fromkeys(line for t in tensors for line in touching[t])
        yield Component(frozenset(tensors), tuple(every), tuple(d for t in tensors for d in matching.get(t, ())))


def _axis_dims(accesses: Iterable[Access]) -> dict[Var, list[Dim]]:
    """Return the dims that each axis runs along."""
    found: dict[Var, list[Dim]] = {}
    for access in accesses:
        for d, index in enumerate(access.indices):
            if (axis := running(index)) is not None:
                found.setdefault(axis, []).append((access.tensor, d))
    return found


def merge_overlapping(sets: Iterable[Sequence[T]]) -> list[list[T]]:
    """Return the unions of sets that have members in common.

    They are in the order of their first members.
    """
    home: dict[T, list[T]] = {}
    for members in sets:
        if len(members) == 1:
            home.setdefault(members[0], [*members])
            continue
        homes = {id(h): h for h in (home.setdefault(m, [m]) for m in members)}
        joined, *others = homes.values() if homes else ([],)
        for other in others:
            if len(other) > len(joined):  # the smaller set moves, so that long chains take no quadratic time
                other[:0], joined, other = joined, other, joined
            else:
                joined += other
            home.update(dict.fromkeys(other, joined))
    return list({id(h): h for h in home.values()}.values())


@lru_cache(maxsize=1 << 12)
def running(index: Index) -> Var | None:
    """Return the only variable that steps an index by one element.

    The index may stay the same from some element on.
    """
    found = [_moving(atom) for atom, factor in index.terms if factor == 1]
    return found[0] if len(found) == 1 and isinstance(found[0], Var) else None


def _moving(atom: Primary) -> Primary:
    inner = atom.num.terms if isinstance(atom, Mod) and not atom.num.const else ()
    return inner[0][0] if len(inner) == 1 and inner[0][1] == 1 else atom
