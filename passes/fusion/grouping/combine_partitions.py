"""Combination of two partitions: the faster groups at each place.

Two partitions agree on most units. The other units fall into *places*: sets of units, as small as possible, that groups
of the one cover and groups of the other cover, too. The time of a partition is the sum of its groups', so each place
may take the faster groups independently (`combine_partitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from attrs import evolve

from .groups import Group
from .partitioner import Partitioner

#: Whether the second of two covers of the same units is known to be faster than the first.
Better: TypeAlias = Callable[[Sequence[Group], Sequence[Group]], bool]


def combine_partitions(
    partitioner: Partitioner, first: Sequence[Group], found: Sequence[Group], better: Better
) -> list[Group]:
    """Return a partition with the better groups of two at each place.

    Groups of `found` replace those of `first` where they are better. The result is in execution order. Where groups
    would wait for each other in a circle, it is all of `found` or all of `first`.
    """
    chosen = set(first)
    for before, after in places(first, found):
        if better(before, after):
            chosen = chosen - set(before) | set(after)
    mixed = in_execution_order(partitioner, [group for group in dict.fromkeys((*first, *found)) if group in chosen])
    if mixed is None:
        return list(found if better(first, found) else first)
    return mixed


def places(first: Sequence[Group], found: Sequence[Group]) -> Iterator[tuple[list[Group], list[Group]]]:
    """Yield the groups of both partitions at each place where they differ."""
    both = set(first) & set(found)
    pending = {group: _units(group) for group in dict.fromkeys((*first, *found)) if group not in both}
    while pending:
        place, units = set[Group](), _units(next(iter(pending)))
        while joining := {group for group, own in pending.items() if own & units}:
            units = units.union(*(pending.pop(group) for group in joining))
            place |= joining
        yield [g for g in first if g in place], [g for g in found if g in place]


def _units(group: Group) -> frozenset[tuple[str | None, str]]:
    return frozenset((group.repeat, unit) for unit in group.units)


def in_execution_order(partitioner: Partitioner, groups: Sequence[Group]) -> list[Group] | None:
    """Return groups, those of loops too, in execution order.

    Nothing where they wait for each other in a circle.
    """
    vertices = partitioner.topological_order([group for group in groups if group.repeat is None])
    result: list[Group] = []
    for vertex in vertices or ():
        if isinstance(vertex, Group):
            result.append(vertex)
            continue
        turn = evolve(partitioner, builder=partitioner.builder.iteration_builder(vertex))
        turned = turn.topological_order([group for group in groups if group.repeat == vertex])
        if turned is None:
            return None
        result += [each for each in turned if isinstance(each, Group)]
    return result if vertices is not None else None
