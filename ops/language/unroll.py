"""Unrolling of recurrences to programs without steps.

The tensors that hold all iterations of a loop become one for each iteration where nothing reads them as a whole, so
that passes treat the program like statements written one by one. It serves passes that support no loops, and
comparisons with loops.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attrs import evolve

from ...ir import (
    GraphError,
    Index,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    at_step,
    runs,
    touched_rows,
    with_rows,
)
from .canonical import unused_name

#: Most statements of an unrolled loop.
MAX_UNROLLED_STATEMENTS = 1 << 13


def unroll_loops(program: Program, purpose: str = "", max_statements: int = MAX_UNROLLED_STATEMENTS) -> Program:
    """Unroll the loops of a program.

    Raises `GraphError` where these have more than `most` iterations, or too many statements; `purpose` names the
    requester.
    """
    loops = [(step, run) for step, run in runs(program.statements) if step is not None]
    if not loops:
        return program
    count = sum(step.extent * len(run) for step, run in loops)
    turns = max(step.extent for step, _ in loops)
    if count > MAX_UNROLLED_STATEMENTS or turns > max_statements:
        raise GraphError(
            f"{purpose or 'this'} needs the {turns} steps of a recurrence written out, with {count} statements: "
            f"expected at most {max_statements} steps and {MAX_UNROLLED_STATEMENTS} statements",
            hint="use a shorter sequence",
        )
    statements = [s for step, run in runs(program.statements) for s in (run if step is None else _turns(run))]
    tensors = dict(program.tensors)
    made = {s.target for _, run in loops for s in run} - set(program.outputs)
    rows = separate_rows(statements, made, tensors)
    return evolve(program, statements=tuple(rows), tensors=tensors)


def separate_rows(
    statements: Sequence[Statement], wholes: Collection[str], tensors: dict[str, TensorType]
) -> list[Statement]:
    """Write each row of some tensors to a separate tensor.

    New tensors are entered in `tensors`; a statement that reads several rows reads a tensor that they are copied to.
    """
    touched = [(t, row) for s in statements for t, row, _ in touched_rows(s) if t in wholes]
    names: dict[tuple[str, int], str] = {}
    for whole, row in dict.fromkeys(touched):
        if row is not None:
            names[whole, row] = name = unused_name(f"{whole}_{row}", tensors)
            tensors[name] = TensorType(tensors[whole].dtype, tensors[whole].shape[1:])
    joined = {whole for whole, row in touched if row is None}
    for whole in set(wholes) - joined:
        del tensors[whole]
    found: list[Statement] = []
    for statement in statements:
        needed = {t for t, row, _ in touched_rows(statement) if t in joined and row is None}
        for whole in sorted(needed):
            joined.discard(whole)
            found += [copy_of_row(whole, row, name, tensors) for (t, row), name in names.items() if t == whole]
        found.append(with_rows(statement, names))
    return found


def copy_of_row(whole: str, row: int, name: str, tensors: Mapping[str, TensorType]) -> Statement:
    """Return the statement that copies a tensor to a row of another."""
    axes = tuple(Var(f"i{n}", extent) for n, extent in enumerate(tensors[name].shape))
    place = tuple(map(as_index, axes))
    return Statement(whole, tuple(a for a in axes if a.extent > 1), (Index(row), *place), Read(name, place))


def _turns(run: Sequence[Statement]) -> list[Statement]:
    step = run[0].step
    assert step is not None, "a loop has a step"
    return [at_step(s, turn) for turn in range(step.extent) for s in run]
