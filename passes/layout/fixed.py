"""Tensors whose dims stay in the order of the graph."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir import Read, Statement, as_index, expr_indirects, indirects
from ..fusion import Order, Programs, Unit, copied
from .accesses import Aliases


def fixed_tensors(programs: Programs, aliases: Aliases) -> frozenset[str]:
    """Return what the caller gives and takes, what outputs are copied from, constants and tables, what loops touch, and
    what indices are read from; views of these too.
    """
    found = {*_given(programs), *_copied_to_outputs(programs)}
    return frozenset(found | {_root(t, aliases) for t in found})


def known_tensors(programs: Programs) -> frozenset[str]:
    """Return what is computed from no input, as filters that an algorithm has transformed."""
    moving = set(programs.graph.inputs)
    for unit in programs.units:
        if not moving.isdisjoint(unit.reads):
            moving.update(unit.writes)
    return frozenset({t for unit in programs.units for t in unit.writes} - moving)


def turned_outputs(programs: Programs, aliases: Aliases) -> Iterator[tuple[str, Order]]:
    """Yield the tensors that outputs are copies of with their dims in another order, and that order: where they lie so,
    they may lie in the outputs themselves.

    y[n, p, q, k] = c[n, k, p, q]      ->      c in order (0, 2, 3, 1)
    """
    given = _given(programs)
    for tensor, order in _copied_to_outputs(programs).items():
        if order is not None and order != tuple(sorted(order)) and not {tensor, _root(tensor, aliases)} & given:
            yield tensor, order


def _copied_to_outputs(programs: Programs) -> dict[str, Order | None]:
    """Return what outputs are copied from, with the order of its dims there if they are all that a copy changes."""
    found: dict[str, Order | None] = {}
    for statement in (s for unit in programs.units for s in unit.statements):
        read = copied(statement)
        if read is not None and statement.target in programs.graph.outputs:
            whole = programs.types[statement.target].size == programs.types[read.tensor].size
            found.setdefault(read.tensor, _turned(statement, read) if whole else None)
    return found


def _turned(statement: Statement, read: Read) -> Order | None:
    """Return which dim of what a copy reads each dim of its result is, None where it does more than change their order.

    Dims of one element are alike.
    """
    left, order = list(enumerate(read.indices)), []
    for index in statement.write:
        place = next((n for n, (_, other) in enumerate(left) if other == index), None)
        if place is None:
            return None
        order.append(left.pop(place)[0])
    moving = {index for index in read.indices if not index.is_const}
    return tuple(order) if moving == {as_index(axis) for axis in statement.axes} and not left else None


def _given(programs: Programs) -> set[str]:
    graph = programs.graph
    found = {*graph.inputs, *graph.outputs, *graph.constants, *programs.tables, *programs.slices, *programs.rotating}
    found |= {part.whole for part in programs.slices.values()}
    return found | {t for unit in programs.units for t in _in_place(unit)}


def _root(tensor: str, aliases: Aliases) -> str:
    while tensor in aliases.shown:
        tensor = aliases.shown[tensor][0]
    return tensor


def _in_place(unit: Unit) -> Iterator[str]:
    """Yield what a unit needs as it is: all of a loop, and what says where elements are."""
    if unit.repeat is not None:
        yield from (*unit.reads, *unit.writes, *(t for u in unit.repeat.units for t in u.tensors))
    for statement in unit.statements:
        yield from (found.tensor for found in expr_indirects(statement.body))
        yield from (found.tensor for index in statement.write for found in indirects(index))
