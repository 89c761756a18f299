"""Tensors whose dims stay in the order of the graph."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir import Read, Statement, as_index, expr_indirects, indirects
from ..fusion import Order, Programs, Unit, copy_source
from .accesses import Aliases


def fixed_tensors(programs: Programs, aliases: Aliases) -> frozenset[str]:
    """Return the tensors whose dims stay, and views of them.

    These are inputs and outputs of the graph, sources of outputs, constants and tables, tensors of loops, and tensors
    that indices are read from.
    """
    found = {*_given_tensors(programs), *_copied_to_outputs(programs)}
    return frozenset(found | {root_tensor(t, aliases) for t in found})


def input_independent_tensors(programs: Programs) -> frozenset[str]:
    """Return the tensors that depend on no input, as transformed filters."""
    moving = set(programs.graph.inputs)
    for unit in programs.units:
        if not moving.isdisjoint(unit.reads):
            moving.update(unit.writes)
    return frozenset({t for unit in programs.units for t in unit.writes} - moving)


def transposed_outputs(programs: Programs, aliases: Aliases) -> Iterator[tuple[str, Order]]:
    """Yield the sources of transposed outputs, with the order of the output.

    Tensors in that order may lie in the outputs themselves.

        y[n, p, q, k] = c[n, k, p, q]      ->      c in order (0, 2, 3, 1)
    """
    given = _given_tensors(programs)
    for tensor, order in _copied_to_outputs(programs).items():
        if order is not None and order != tuple(sorted(order)) and not {tensor, root_tensor(tensor, aliases)} & given:
            yield tensor, order


def _copied_to_outputs(programs: Programs) -> dict[str, Order | None]:
    """Return the sources of outputs, with the order of their dims there if a copy changes nothing else."""
    found: dict[str, Order | None] = {}
    for statement in (s for unit in programs.units for s in unit.statements):
        read = copy_source(statement)
        if read is not None and statement.target in programs.graph.outputs:
            whole = programs.types[statement.target].size == programs.types[read.tensor].size
            found.setdefault(read.tensor, _permutation(statement, read) if whole else None)
    return found


def _permutation(statement: Statement, read: Read) -> Order | None:
    """Return, for each dim of a copy's result, the dim of its source; None where it does more than change their order.

    Dims of one element are interchangeable.
    """
    left, order = list(enumerate(read.indices)), []
    for index in statement.write:
        place = next((n for n, (_, other) in enumerate(left) if other == index), None)
        if place is None:
            return None
        order.append(left.pop(place)[0])
    moving = {index for index in read.indices if not index.is_const}
    return tuple(order) if moving == {as_index(axis) for axis in statement.axes} and not left else None


def _given_tensors(programs: Programs) -> set[str]:
    graph = programs.graph
    found = {*graph.inputs, *graph.outputs, *graph.constants, *programs.tables, *programs.slices, *programs.rotating}
    found |= {part.whole for part in programs.slices.values()}
    return found | {t for unit in programs.units for t in _in_place(unit)}


def root_tensor(tensor: str, aliases: Aliases) -> str:
    """Return the tensor whose memory a view shows, else the tensor."""
    while tensor in aliases.shown:
        tensor = aliases.shown[tensor][0]
    return tensor


def _in_place(unit: Unit) -> Iterator[str]:
    """Yield the tensors that a unit needs in the order of the graph: all of a loop, and those that hold indices."""
    if unit.repeat is not None:
        yield from (*unit.reads, *unit.writes, *(t for u in unit.repeat.units for t in u.tensors))
    for statement in unit.statements:
        yield from (found.tensor for found in expr_indirects(statement.body))
        yield from (found.tensor for index in statement.write for found in indirects(index))
