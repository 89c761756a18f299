"""Reduction CSE: sums that several units compute are computed once.

The gradient of a norm begins with the statistics of its data, which the norm computes, too:

    m[c] = sum_r x[r, c] / n;   y = (x - m) * s         m[c] = sum_r x[r, c] / n;   y = (x - m) * s
    k[c] = sum_r x[r, c] / n;   ds = sum (x - k) * dy   ->   ds = sum (x - m) * dy

The stored sum is small beside its operands, so that reading it is cheaper than recomputing it. Elementwise results of
such sums alone are shared with them.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import prod

from attrs import evolve

from ....ir import Expr, Guard, InRange, Read, Statement, rebuild, rename_axes, rename_statement
from ...statements import DefUse, Programs, apply, rewritten

#: Fewest terms of a shared sum: its result is so much smaller than its operands.
MIN_TERMS = 64


def eliminate_common_reductions(programs: Programs) -> Programs:
    """Return programs without later duplicates of statements."""
    index = DefUse.of_programs(programs)
    looped = {t for unit in programs.units if unit.repeat for t in (*unit.reads, *unit.writes)}
    known: dict[Hashable, list[Statement]] = {}
    shared: set[str] = set()
    names: dict[str, str] = {}
    edit: dict[Statement, list[Statement]] = {}
    for statement in [s for unit in index.units for s in unit.statements]:
        new = rename_statement(statement, names)
        if new != statement:
            edit[statement] = [new]
        if new.target in looped or not _may_be_shared(new, shared, index):
            continue
        before = _first_equal(new, known.setdefault(_outline(new), [])).target
        shared.add(before)
        same_type = index.types[before] == index.types[new.target]
        if before != new.target and new.target not in programs.graph.outputs and same_type:
            names[new.target], edit[statement] = before, []
    if not names:
        return programs
    apply(index, edit)
    return rewritten(programs, index)


def _may_be_shared(statement: Statement, shared: set[str], index: DefUse) -> bool:
    """Return whether a statement writes a tensor of its own that is much smaller than its operands, or whose operands
    are such tensors.
    """
    if statement.into or statement.step or index.single_definition(statement.target) is None:
        return False
    if statement.combine is not None:
        return prod(v.extent for v in statement.reduce) >= MIN_TERMS
    made = [index.types[t].size for t in statement.tensors_read if t in shared]
    return bool(made) and index.types[statement.target].size <= max(made)


def _outline(statement: Statement) -> Hashable:
    """Return facts that statements with one canonical form have in common."""
    extents = (tuple(axis.extent for axis in axes) for axes in (statement.axes, statement.reduce))
    return statement.tensors_read, statement.combine, *extents


def _first_equal(statement: Statement, known: list[Statement]) -> Statement:
    """Return the first statement with the same canonical form; a new one joins the known ones."""
    found = (s for s in known if _canonical_form(s) == _canonical_form(statement))
    first = next(found, statement)
    if first is statement:
        known.append(statement)
    return first


@lru_cache(maxsize=1 << 10)
def _canonical_form(statement: Statement) -> Statement:
    """Return a statement over canonical axes, without its target."""
    plain = rename_axes(statement, "s")
    return evolve(plain, target="", body=rebuild(plain.body, _from_zero))


def _from_zero(node: Expr) -> Expr:
    """Return a node whose conditions have no constant within their indices: a mask by `0 <= j - i < n` is written in
    several ways.
    """
    if not isinstance(node, InRange | Read) or not node.guards:
        return node
    moved = ((g, g.index.const) for g in node.guards)
    return evolve(node, guards=tuple(Guard(g.index - by, g.low - by, g.high - by) for g, by in moved))
