"""Reduction CSE: sums that several units compute are computed once.

The gradient of a norm begins with the statistics of its data, which the norm computes, too:

    m[c] = sum_r x[r, c] / n;   y = (x - m) * s         m[c] = sum_r x[r, c] / n;   y = (x - m) * s
    k[c] = sum_r x[r, c] / n;   ds = sum (x - k) * dy   ->   ds = sum (x - m) * dy

The stored sum is small beside its operands, so that reading it is cheaper than recomputing it. Elementwise results of
such sums alone are shared with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from attrs import define, evolve, field

from ....ir import Expr, Guard, InRange, Read, Statement, rebuild, rename_axes, rename_statement
from ..normalise import Illegal, normalise
from ..programs import Programs, Unit

#: Fewest terms of a shared sum: its result is so much smaller than its operands.
MIN_TERMS = 64


def eliminate_common_reductions(programs: Programs) -> Programs:
    """Return programs without later duplicates of statements."""
    found = _Sharing(programs).run()
    kept = {id(unit) for unit in programs.units}  # comparing all pairs takes seconds for thousands of units
    return found if all(_has_form(unit, found) for unit in found.units if id(unit) not in kept) else programs


def _has_form(unit: Unit, programs: Programs) -> bool:
    return unit.repeat is not None or not isinstance(
        normalise(unit.statements, programs.types, unit.writes, programs.tables), Illegal
    )


@define
class _Sharing:
    """Statements of the units so far that may be shared, by canonical form, and the names that replace others."""

    programs: Programs
    known: dict[Statement, str] = field(factory=dict)
    shared: set[str] = field(factory=set)
    names: dict[str, str] = field(factory=dict)
    writers: Counter[str] = field(init=False)
    looped: set[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.writers = Counter(s.target for unit in self.programs.every_unit for s in unit.statements)
        self.looped = {t for unit in self.programs.units if unit.repeat for t in (*unit.reads, *unit.writes)}

    def run(self) -> Programs:
        units = [self._unit(unit) for unit in self.programs.units]
        if not self.names:
            return self.programs
        read = {t for unit in units for t in unit.reads if t in self.names.values()}
        kept = (_with_writes(unit, read) for unit in units if unit.statements or unit.repeat is not None)
        return evolve(self.programs, units=tuple(kept))

    def _unit(self, unit: Unit) -> Unit:
        """Return a unit without duplicates."""
        if unit.repeat is not None:
            return unit
        left = []
        for statement in unit.statements:
            statement = rename_statement(statement, self.names)
            if not self._is_duplicate(statement):
                left.append(statement)
        if len(left) == len(unit.statements) and not self.names.keys() & set(unit.reads):
            return unit
        own = {s.target for s in left}
        read = dict.fromkeys(t for s in left for t in s.tensors_read if t not in own and t not in self.programs.tables)
        extra = tuple(t for t in unit.reads if t in own)  # targets of scatters
        writes = tuple(t for t in unit.writes if t in own)
        return evolve(unit, statements=tuple(left), reads=(*read, *extra), writes=writes)

    def _is_duplicate(self, statement: Statement) -> bool:
        """Return whether an earlier statement is equal; else remember this one if later ones may be left out."""
        target = statement.target
        if not self._may_be_shared(statement):
            return False
        plain = rename_axes(statement, "s")
        form = evolve(plain, target="", body=rebuild(plain.body, _from_zero))
        before = self.known.setdefault(form, target)
        self.shared.add(before)
        if before == target or target in self.programs.graph.outputs:
            return False
        if self.programs.types[before] != self.programs.types[target]:
            return False
        self.names[target] = before
        return True

    def _may_be_shared(self, statement: Statement) -> bool:
        """Return whether a statement writes a tensor of its own that is much smaller than its operands, or whose
        operands are such tensors.
        """
        types, plain = self.programs.types, statement.into is None and statement.step is None
        if not plain or self.writers[statement.target] != 1 or statement.target in self.looped:
            return False
        if statement.combine is not None:
            return prod(v.extent for v in statement.reduce) >= MIN_TERMS
        made = [types[t].size for t in statement.tensors_read if t in self.shared]
        return bool(made) and types[statement.target].size <= max(made)


def _from_zero(node: Expr) -> Expr:
    """Return a node whose conditions have no constant within their indices: a mask by `0 <= j - i < n` is written in
    several ways.
    """
    if not isinstance(node, InRange | Read) or not node.guards:
        return node
    moved = ((g, g.index.const) for g in node.guards)
    return evolve(node, guards=tuple(Guard(g.index - by, g.low - by, g.high - by) for g, by in moved))


def _with_writes(unit: Unit, read: set[str]) -> Unit:
    """Return a unit that also writes the tensors in `read`."""
    targets: Sequence[str] = tuple(dict.fromkeys(s.target for s in unit.statements))
    writes = (*unit.writes, *(t for t in targets if t in read and t not in unit.writes))
    return unit if writes == unit.writes else evolve(unit, writes=writes)
