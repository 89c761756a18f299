"""Units of a graph: runs of statements, and loops over units."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from attrs import evolve, field, frozen

from ...ir import Graph, Slice, Statement, TensorType, Var


@frozen
class Unit:
    """Statements of one node that stay together.

    `reads` are the tensors it needs from elsewhere, `writes` those it may leave in memory, both in order. `free`
    units need no kernel: their result is a view of, or a place inside, a buffer that exists anyway. The values of a
    `hoisted` unit are computed once, by a kernel of its own. A loop has no statements, but units that are repeated.
    """

    name: str
    node: str
    op: str
    statements: tuple[Statement, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    free: bool = False
    hoisted: bool = False
    repeat: Repeat | None = None

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Tensors of its statements in order of first occurrence, numbered by patterns."""
        found: dict[str, None] = {}
        for statement in self.statements:
            found.update(dict.fromkeys((*statement.tensors_read, statement.target)))
        return tuple(found)


@frozen
class Repeat:
    """Units that are computed for each value of `step`, in order.

    `kept` are the slices that they leave for others.
    """

    step: Var
    units: tuple[Unit, ...]
    kept: tuple[str, ...]


@frozen
class Programs:
    """A graph as units in topological order.

    `types` and `tables` also cover tensors that exist only between units.

    Units of loops are over `slices`, parts of tensors that move with the step; of tensors in `rotating` only so many
    rows are kept (see `loops`). Tensors in `orders` are stored, typed, written and read with their dims in that order
    (see `reorder`).
    """

    graph: Graph
    units: tuple[Unit, ...]
    types: Mapping[str, TensorType]
    tables: Mapping[str, tuple[float, ...]] = field(factory=dict)
    slices: Mapping[str, Slice] = field(factory=dict)
    rotating: Mapping[str, int] = field(factory=dict)
    orders: Mapping[str, tuple[int, ...]] = field(factory=dict)

    @property
    def every_unit(self) -> tuple[Unit, ...]:
        """The units, each loop followed by those it repeats."""
        return tuple(u for unit in self.units for u in (unit, *(unit.repeat.units if unit.repeat else ())))

    def iteration(self, repeat: Repeat) -> Programs:
        """Return one turn of a loop, as units in topological order."""
        return evolve(self, units=repeat.units, graph=evolve(self.graph, outputs=repeat.kept))

    def producers(self) -> dict[str, list[Unit]]:
        """Map each computed tensor to the units that write parts of it."""
        found: dict[str, list[Unit]] = {}
        for unit in self.units:
            for tensor in unit.writes:
                found.setdefault(tensor, []).append(unit)
        return found

    def consumers(self) -> dict[str, list[Unit]]:
        """Map each tensor to the units that read it."""
        found: dict[str, list[Unit]] = {}
        for unit in self.units:
            for tensor in unit.reads:
                found.setdefault(tensor, []).append(unit)
        return found
