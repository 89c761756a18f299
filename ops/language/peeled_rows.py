"""Joins peeled iterations to the rows of their loop.

An iteration that differs from the others is peeled. In the adjoint of a recurrence it is the first one, which reads a
row that does not exist. Where it equals the loop's body with zeros outside, it becomes one of its iterations again:

    d_3[n] = g[3, n] * c[n] + 0;   d[3, n] = d_3[n];   d[2 - t, n] = g[2 - t, n] * c[n] + a[3 - t, n] * d[3 - t, n]
      ->   d[3 - t, n] = g[3 - t, n] * c[n] + (a[4 - t, n] outside 0) * (d[4 - t, n] outside 0)
"""

from __future__ import annotations

from attrs import evolve

from ...ir import (
    Const,
    Expr,
    Guard,
    Program,
    Read,
    Statement,
    Var,
    as_index,
    reads,
    rebuild,
    substitute,
    substitute_expr,
)


def join_peeled_rows(program: Program, step: Var) -> Program:
    """Return an equal program with peeled rows in their loop.

    Rows outside of loops are joined, too. All statements of the loop take another iteration, or none.
    """
    program = _write_in_place(program)
    found: dict[Statement, tuple[Statement, Statement]] = {}
    for first in [s for s in program.statements if s.write and s.write[0].is_const]:
        rest = [s for s in program.statements if s.target == first.target and s is not first]
        if len(rest) == 1 and rest[0].step in (None, step) and first.is_pointwise and first.step is None:
            joined = _join(first, rest[0], program)
            early = joined is None or _reads_early(first, rest[0], program)
            found |= {rest[0]: (first, joined)} if joined is not None and not early else {}
    if any(s.step == step and s not in found for s in program.statements):
        found = {s: pair for s, pair in found.items() if s.step is None}
    firsts = {first for first, _ in found.values()}
    statements = tuple(found[s][1] if s in found else s for s in program.statements if s not in firsts)
    return evolve(program, statements=statements)


def _reads_early(first: Statement, rest: Statement, program: Program) -> bool:
    """Return whether a statement outside of the loop reads the peeled row before the loop."""
    before = program.statements[: program.statements.index(rest)]
    others = (s for s in before if s.step is None or s.step != rest.step)
    return any(n.tensor == first.target for s in others for n in reads(s.body))


def _write_in_place(program: Program) -> Program:
    """Return a program in which a row that is computed in a tensor of its own is computed where it is copied to."""
    statements, moved = [*program.statements], dict[str, Read]()
    for copy in program.statements:
        source = copy.body
        if not isinstance(source, Read) or source.guards or copy.combine or not copy.write[0].is_const:
            continue
        writers = [s for s in statements if s.target == source.tensor]
        place = tuple(source.indices)
        if len(writers) != 1 or copy.write[1:] != place or source.tensor in {*program.outputs, *program.inputs}:
            continue
        moved[source.tensor] = Read(copy.target, copy.write)
        where, (writer,) = statements.index(writers[0]), writers
        statements[where] = evolve(writer, target=copy.target, write=(copy.write[0], *writer.write))
        statements.remove(copy)
    if not moved:
        return program

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Read) or node.tensor not in moved:
            return node
        whole = moved[node.tensor]
        return evolve(node, tensor=whole.tensor, indices=(whole.indices[0], *node.indices))

    found = tuple(evolve(s, body=rebuild(s.body, leaf)) for s in statements)
    tensors = {name: kind for name, kind in program.tensors.items() if name not in moved}
    return evolve(program, statements=found, tensors=tensors)


def _join(first: Statement, rest: Statement, program: Program) -> Statement | None:
    """Return the statement of the rows of both, or None where they differ."""
    axis = next((a for a in rest.axes if rest.write[0].coefficient(a) in (1, -1)), None)
    if axis is None or rest.combine or rest.into or not _are_axes(first) or not _are_axes(rest):
        return None
    factor = rest.write[0].coefficient(axis)
    if rest.write[0] - as_index(axis) * factor + factor * -1 != first.write[0]:
        return None
    wide = Var(axis.name, axis.extent + 1)
    moved = {axis: as_index(wide) - 1}
    body = _with_guards(substitute_expr(rest.body, moved), program)
    names = dict(zip(first.write[1:], rest.write[1:], strict=True))
    own = {a: names[as_index(a)] for a in first.axes if as_index(a) in names}
    before = _drop_outside(substitute_expr(first.body, own), program)
    if before != _drop_outside(substitute_expr(body, {wide: as_index(0)}), program):
        return None
    axes = tuple(wide if a == axis else a for a in rest.axes)
    step = wide if rest.step == axis else rest.step
    return evolve(rest, axes=axes, write=tuple(substitute(w, moved) for w in rest.write), body=body, step=step)


def _are_axes(statement: Statement) -> bool:
    """Return whether each dim after the first is an axis, or constant."""
    axes = {as_index(a) for a in statement.axes}
    return all(w in axes or w.is_const for w in statement.write[1:])


def _with_guards(body: Expr, program: Program) -> Expr:
    """Return an expression whose reads are 0 outside of tensors."""

    def leaf(node: Expr) -> Expr:
        if not isinstance(node, Read):
            return node
        inside = (Guard(i, 0, e) for i, e in zip(node.indices, program.tensors[node.tensor].shape, strict=True))
        needed = tuple(guard for guard in inside if not guard.always and guard not in node.guards)
        return evolve(node, guards=(*node.guards, *needed)) if needed and node.fill == 0 else node

    return rebuild(body, leaf)


def _drop_outside(body: Expr, program: Program) -> Expr:
    """Return an expression with the fill values of reads that are outside of tensors."""

    def leaf(node: Expr) -> Expr:
        outside = isinstance(node, Read) and any(guard.never for guard in node.guards)
        return Const(node.fill, program.tensors[node.tensor].dtype) if outside and isinstance(node, Read) else node

    return rebuild(body, leaf)
