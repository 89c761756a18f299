"""Renaming of tensors and axes inside statements, so that equal groups become equal objects."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import (
    Clamp,
    Expr,
    FloorDiv,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Mod,
    Read,
    Statement,
    Var,
    as_index,
    clamp,
    distinct,
    floordiv,
    indirects,
    modulo,
    rebuild,
    substitute,
    substitute_expr,
)


def rename_index(index: Index, names: Mapping[str, str]) -> Index:
    """Replace the names of tensors that the index reads."""
    if not indirects(index):
        return index
    result = Index(index.const)
    for atom, factor in index.terms:
        if isinstance(atom, FloorDiv):
            part = floordiv(rename_index(atom.num, names), atom.den)
        elif isinstance(atom, Mod):
            part = modulo(rename_index(atom.num, names), atom.den)
        elif isinstance(atom, Clamp):
            part = clamp(rename_index(atom.arg, names), atom.low, atom.high)
        elif isinstance(atom, Indirect):
            inner = tuple(rename_index(i, names) for i in atom.indices)
            part = Index(0, ((Indirect(names.get(atom.tensor, atom.tensor), inner, atom.extent, atom.wraps), 1),))
        else:
            part = as_index(atom)
        result = result + part * factor
    return result


def _rename_guards(guards: tuple[Guard, ...], names: Mapping[str, str]) -> tuple[Guard, ...]:
    return tuple(Guard(rename_index(g.index, names), g.low, g.high) for g in guards)


def rename_expr(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Replace the names of tensors that the expression reads."""

    def leaf(node: Expr) -> Expr:
        if isinstance(node, Read):
            indices = tuple(rename_index(i, names) for i in node.indices)
            return Read(names.get(node.tensor, node.tensor), indices, _rename_guards(node.guards, names), node.fill)
        if isinstance(node, IndexValue):
            return IndexValue(rename_index(node.index, names), node.dtype)
        if isinstance(node, InRange):
            return InRange(_rename_guards(node.guards, names))
        return node

    return rebuild(expr, leaf)


def rename_statement(statement: Statement, names: Mapping[str, str]) -> Statement:
    """Replace the names of all tensors of a statement."""
    target = names.get(statement.target, statement.target)
    return Statement(
        target, statement.axes, statement.write, rename_expr(statement.body, names), statement.reduce, statement.combine
    )


def rename_axes(statement: Statement, prefix: str) -> Statement:
    """Give all axes fresh names that start with `prefix`, numbered in order."""
    old = (*statement.axes, *statement.reduce)
    new = {axis: Var(f"{prefix}{n}", axis.extent) for n, axis in enumerate(old)}
    write = tuple(substitute(w, new) for w in statement.write)
    axes, reduce = (tuple(new[a] for a in group) for group in (statement.axes, statement.reduce))
    return Statement(statement.target, axes, write, substitute_expr(statement.body, new), reduce, statement.combine)


def indirect_tensors(expr: Expr) -> frozenset[str]:
    """Return the integer tensors that the expression's indices read."""
    found: set[str] = set()
    for node in distinct(expr):
        indices: tuple[Index, ...] = ()
        if isinstance(node, Read):
            indices = (*node.indices, *(g.index for g in node.guards))
        elif isinstance(node, IndexValue):
            indices = (node.index,)
        elif isinstance(node, InRange):
            indices = tuple(g.index for g in node.guards)
        found.update(i.tensor for index in indices for i in indirects(index))
    return frozenset(found)
