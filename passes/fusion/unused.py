"""Units that nothing needs are left out.

A node is kept whole where one of its results is read. What it computes besides may be many units, which would ask for
what they read to be written in memory.
"""

from __future__ import annotations

from attrs import evolve

from .programs import Programs, Unit


def drop_unused(programs: Programs) -> Programs:
    """Return programs without units of which nobody reads a result; loops, and what parts of are read, stay."""
    needed = {*programs.graph.outputs, *(part.whole for part in programs.slices.values())}
    kept: list[Unit] = []
    for unit in reversed(programs.units):
        if unit.repeat is not None or not needed.isdisjoint(unit.writes):
            needed.update(unit.reads)
            kept.append(unit)
    return programs if len(kept) == len(programs.units) else evolve(programs, units=tuple(reversed(kept)))
