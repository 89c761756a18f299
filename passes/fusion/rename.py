"""Renaming of tensors and axes inside statements, so that equal groups become equal objects."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from ...ir import Statement, Var, rename_expr, rename_index, substitute, substitute_expr


def rename_statement(statement: Statement, names: Mapping[str, str]) -> Statement:
    """Replace the names of all tensors of a statement."""
    return evolve(
        statement,
        target=names.get(statement.target, statement.target),
        write=tuple(rename_index(w, names) for w in statement.write) if statement.into else statement.write,
        body=rename_expr(statement.body, names),
    )


def rename_axes(statement: Statement, prefix: str) -> Statement:
    """Give all axes fresh names that start with `prefix`, numbered in order."""
    old = (*statement.axes, *statement.reduce)
    new = {axis: Var(f"{prefix}{n}", axis.extent) for n, axis in enumerate(old)}
    write = tuple(substitute(w, new) for w in statement.write)
    axes, reduce = (tuple(new[a] for a in group) for group in (statement.axes, statement.reduce))
    along = statement.along and new[statement.along]
    body = substitute_expr(statement.body, new)
    return evolve(statement, axes=axes, write=write, body=body, reduce=reduce, along=along)
