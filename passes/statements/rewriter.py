"""Rewriter of statements: applies a rule to each match.

A rule is data: a pattern, a guard and a replacement. The replacement maps each replaced statement to new ones of its
unit; a `NewUnit` among them is a unit of its own, ahead of that unit where it comes first, else after it.

    rule       reduction("sum", element("x"))   ->   {root: [NewUnit("rows", (part,)), rest]}
    unit n0    t = sum_(i, r) x[i, r]           ->   unit n0.rows   part[i] = sum_r x[i, r]
                                                     unit n0        t = sum_i part[i]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from attrs import evolve, frozen

from ...ir import Program, Statement
from .def_use import DefUse
from .match import Match
from .patterns import Defined, Scattered
from .units import Programs, Unit

F = TypeVar("F")


@frozen
class NewUnit:
    """Statements of a new unit.

    It is named after the unit of the replaced statement and `suffix`.
    """

    suffix: str
    statements: tuple[Statement, ...]
    hoisted: bool = False


#: Replacement of statements.
Edit: TypeAlias = Mapping[Statement, Sequence[Statement | NewUnit]]


@frozen
class RewriteRule(Generic[F]):
    """Rewrite of the statements that match a pattern.

    `guard` returns facts for the replacement, None where the rule does not apply. Statements alone replace the
    matched one.
    """

    pattern: Defined | Scattered
    guard: Callable[[Match], F | None]
    replacement: Callable[[Match, F], Edit | Iterable[Statement]]

    def edit(self, statement: Statement, index: DefUse) -> Edit | None:
        """Return the replacement of a statement, if the rule applies."""
        match = self.pattern.match_statement(statement, index)
        facts = None if match is None else self.guard(match)
        if match is None or facts is None:
            return None
        new = self.replacement(match, facts)
        return new if isinstance(new, Mapping) else {statement: [*new]}


def rewrite(programs: Programs, rule: RewriteRule[F]) -> Programs:
    """Return programs with a rule applied outside of loops.

    They are the same object where it applies to no statement.
    """
    index = DefUse.of_programs(programs)
    edits = list(_edits(index, rule))
    return rewritten(programs, index) if edits else programs


def rewrite_program(program: Program, rule: RewriteRule[F]) -> Program:
    """Return one node's program with a rule applied to each statement."""
    index = DefUse.of_program(program)
    edits = list(_edits(index, rule))
    statements = index.units[0].statements if index.units else ()
    return evolve(program, tensors=index.types, statements=statements) if edits else program


def _edits(index: DefUse, rule: RewriteRule[F]) -> Iterator[Edit]:
    for statement in [s for unit in index.units for s in unit.statements]:
        if statement in index.definitions.get(statement.target, ()) and (edit := rule.edit(statement, index)):
            apply(index, edit)
            yield edit


def apply(index: DefUse, edit: Edit) -> None:
    """Replace statements in the units of an index."""
    changed = (unit for statement in edit if (unit := index.unit_of(statement)) is not None)
    for unit in list({id(unit): unit for unit in changed}.values()):
        before, own, after = list[Unit](), list[Statement](), list[Unit]()
        for statement in unit.statements:
            new = edit.get(statement, (statement,))
            for n, each in enumerate(new):
                if isinstance(each, NewUnit):
                    made = index.new_unit(unit, each.suffix, each.statements, each.hoisted)
                    (before if n == 0 or each.hoisted else after).append(made)
                else:
                    own.append(each)
        index.replace(unit, [*before, evolve(unit, statements=tuple(own)), *after])
    for old, new in edit.items():
        index.remove(old)
        for each in new:
            index.add(each.statements if isinstance(each, NewUnit) else (each,))


def rewritten(programs: Programs, index: DefUse, in_order: bool = False) -> Programs:
    """Return programs with the units of an index.

    Changed units get the reads and writes of their statements. New writes follow those of before, or all are
    `in_order` of the statements; kernels list their results in this order.
    """
    known = {unit.name: unit for unit in programs.units}
    readers: dict[str, set[str]] = {}
    for unit in index.units:
        for tensor in unit.reads if unit.repeat else (t for s in unit.statements for t in s.tensors_read):
            readers.setdefault(tensor, set()).add(unit.name)
    left = (unit for unit in index.units if unit.statements or unit.repeat or unit is known.get(unit.name))
    units = tuple(_with_uses(unit, known.get(unit.name), index, readers, in_order) for unit in left)
    return evolve(programs, types=index.types, units=units)


def _with_uses(unit: Unit, before: Unit | None, index: DefUse, readers: Mapping[str, set[str]], in_order: bool) -> Unit:
    """Return a unit with its reads, and the results that others read as its writes."""
    own = dict.fromkeys(s.target for s in unit.statements)
    needed = [t for t in own if t in index.pinned or readers.get(t, set()) - {unit.name}]
    same = before is not None and before.statements == unit.statements
    if unit.repeat is not None or (same and {*needed} <= {*unit.writes}):
        return unit
    known = () if in_order else [t for t in unit.writes if t in own]
    writes = (*known, *(t for t in needed if t not in known))
    return evolve(unit, reads=external_reads(unit, index), writes=writes)


def external_reads(unit: Unit, index: DefUse) -> tuple[str, ...]:
    """Return the tensors that a unit reads from elsewhere.

    The starts of its scatters follow.
    """
    own = {s.target for s in unit.statements}
    read = dict.fromkeys(t for s in unit.statements for t in s.tensors_read if t not in own and t not in index.tables)
    return (*read, *(t for t in unit.reads if t in own))
