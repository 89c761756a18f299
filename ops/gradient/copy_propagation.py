"""Copy propagation between the tensors of a recurrence.

A recurrence passes its state on by copies, and its gradient passes gradients on the same way:

    u[t, n] = ...                              c[t + 1, n] = ...
    c[t + 1, n] = u[t, n]               ->     h[t + 1, n] = tanh(c[t + 1, n])
    h[t + 1, n] = tanh(u[t, n])

Each copy would be a launch in every iteration, and the same numbers would lie in memory twice. The copied tensor is
removed, for the target may have rows that it lacks (a first state).
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ...ir import Expr, Index, Program, Read, Statement, as_index, indirects, rebuild, rename_axes


def propagate_copies(program: Program) -> Program:
    """Replace tensors that are copied row by row by their copies."""
    while (found := next(filter(None, (_remove_copy(program, copy) for copy in program.statements)), None)) is not None:
        program = found
    return program


def _remove_copy(program: Program, copy: Statement) -> Program | None:
    """Return the program without a copy and its source; None where the copy does not allow it."""
    read, statements = copy.body, program.statements
    if not isinstance(read, Read) or read.guards or copy.combine or copy.into or not read.indices:
        return None
    source, target = read.tensor, copy.target
    writers = [s for s in statements if s.target == source]
    if source == target or len(writers) != 1 or source in (*program.inputs, *program.outputs):
        return None
    if writers[0].into or writers[0].step != copy.step or _names_places(statements, source):
        return None
    shift = _shift(writers[0], copy, read)
    if shift is None or program.tensors[source].dtype is not program.tensors[target].dtype:
        return None
    if shift == 0 and len(program.tensors[source].shape) != len(program.tensors[target].shape):
        return None
    moved = [_shift_rows(s, source, target, shift) for s in statements if s is not copy]
    tensors = {name: type_ for name, type_ in program.tensors.items() if name != source}
    return evolve(program, tensors=tensors, statements=tuple(moved))


def _names_places(statements: Sequence[Statement], tensor: str) -> bool:
    """Return whether a tensor's values are indices anywhere."""
    places = (
        i
        for s in statements
        for index in (*s.write, *(i for r in s.reads for i in r.indices))
        for i in indirects(index)
    )
    return any(place.tensor == tensor for place in places)


def _shift(writer: Statement, copy: Statement, read: Read) -> int | None:
    """Return by how many rows a copy shifts a statement's results; None where it does anything else."""
    if not copy.write or len(copy.write) != len(read.indices) or copy.write[1:] != read.indices[1:]:
        return None
    distance = copy.write[0] - read.indices[0]
    if not distance.is_const:
        return None
    made, used = rename_axes(evolve(writer, reduce=(), combine=None, body=read), "a"), rename_axes(copy, "a")
    assert isinstance(used.body, Read)
    return distance.const if made.axes == used.axes and made.write == used.body.indices else None


def _shift_rows(statement: Statement, source: str, target: str, shift: int) -> Statement:
    """Return a statement over the target's rows."""

    def place(indices: Sequence[Index]) -> tuple[Index, ...]:
        return (indices[0] + as_index(shift), *indices[1:])

    def leaf(node: Expr) -> Expr:
        named = isinstance(node, Read) and node.tensor == source
        return evolve(node, tensor=target, indices=place(node.indices)) if named and isinstance(node, Read) else node

    write, own = statement.write, statement.target == source
    return evolve(
        statement,
        target=target if own else statement.target,
        write=place(write) if own else write,
        body=rebuild(statement.body, leaf),
    )
