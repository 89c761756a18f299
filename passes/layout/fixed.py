"""Tensors whose dims stay in the order of the graph."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir import expr_indirects, indirects
from ..fusion import Programs, Unit, copied
from .accesses import Aliases


def fixed_tensors(programs: Programs, aliases: Aliases) -> frozenset[str]:
    """Return what the caller gives and takes, what outputs are copied from, constants and tables, what loops touch, and
    what indices are read from; views of these too.
    """
    graph = programs.graph
    found = {*graph.inputs, *graph.outputs, *graph.constants, *programs.tables, *programs.slices, *programs.rotating}
    found |= {part.whole for part in programs.slices.values()}
    found |= {t for unit in programs.units for t in _in_place(unit, frozenset(graph.outputs))}
    return frozenset(found | {_root(t, aliases) for t in found})


def _root(tensor: str, aliases: Aliases) -> str:
    while tensor in aliases.shown:
        tensor = aliases.shown[tensor][0]
    return tensor


def _in_place(unit: Unit, outputs: frozenset[str]) -> Iterator[str]:
    """Yield what a unit needs as it is: all of a loop, what an output may hold, what says where elements are."""
    if unit.repeat is not None:
        yield from (*unit.reads, *unit.writes, *(t for u in unit.repeat.units for t in u.tensors))
    for statement in unit.statements:
        read = copied(statement)
        if read is not None and statement.target in outputs:
            yield read.tensor
        yield from (found.tensor for found in expr_indirects(statement.body))
        yield from (found.tensor for index in statement.write for found in indirects(index))
