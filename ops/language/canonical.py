"""Canonical form of a statement, with split axes.

Where an axis is read through `k // d` or `k % d`, with `d` dividing its extent, it splits into an outer and an inner
axis: `k = d * outer + inner`. Grouped convolutions and pixel shuffles become affine this way, in any operation.

    y[k] = x[k // 4]   ->   y[4*k_o + k_i] = x[k_o]
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence

from attrs import evolve

from ...ir import FloorDiv, Index, Mod, Statement, Var, as_index, indices, primaries, runs, substitute, substitute_expr


def canonicalise(statement: Statement) -> Statement:
    """Split axes until no read divides one by its extent's divisor."""
    while (found := _divided_axis(statement)) is not None:
        statement = split_axis(statement, *found)
    return statement


def live_statements(statements: Sequence[Statement], outputs: Collection[str]) -> tuple[Statement, ...]:
    """Return the statements that the outputs depend on.

    A declaration may compute intermediates that only some of its uses need.
    """
    wanted = set(outputs)
    kept: list[Statement] = []
    for step, run in reversed(list(runs(statements))):
        live: list[Statement] = []
        while len(found := _live(run, wanted)) > len(
            live
        ):  # an iteration may need a tensor that a later statement wrote earlier
            live = found
            wanted.update(tensor for statement in live for tensor in statement.tensors_read)
            if step is None:
                break
        kept.extend(live)
    return tuple(reversed(kept))


def _live(run: Sequence[Statement], outputs: Collection[str]) -> list[Statement]:
    """Return the statements that outputs depend on within one iteration, the last first."""
    wanted = set(outputs)
    kept: list[Statement] = []
    for statement in reversed(run):
        if statement.target in wanted:
            kept.append(statement)
            wanted.update(statement.tensors_read)
    return kept


def split_axis(statement: Statement, axis: Var, inner_extent: int) -> Statement:
    """Split an axis into an outer and an inner one.

    The inner one has `inner_extent` consecutive values.
    """
    taken = {v.name for v in (*statement.axes, *statement.reduce)}
    outer = Var(unused_name(axis.name + "_o", taken), axis.extent // inner_extent)
    inner = Var(unused_name(axis.name + "_i", taken), inner_extent)
    values = {axis: as_index(outer) * inner_extent + as_index(inner)}
    parts = tuple(v for v in (outer, inner) if v.extent != 1)

    def split(axes: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(part for v in axes for part in (parts if v == axis else (v,)))

    return evolve(
        statement,
        axes=split(statement.axes),
        write=tuple(substitute(w, values) for w in statement.write),
        body=substitute_expr(statement.body, values),
        reduce=split(statement.reduce),
    )


def unused_name(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken, with underscores appended if needed."""
    while name in taken:
        name += "_"
    return name


def _divided_axis(statement: Statement) -> tuple[Var, int] | None:
    axes = {*statement.axes, *statement.reduce}
    for index in indices(statement.body):
        for primary in _quotients(index):
            terms = primary.num.terms
            if len(terms) != 1 or terms[0][1] != 1 or primary.num.const:
                continue
            var = terms[0][0]
            if isinstance(var, Var) and var in axes and var.extent % primary.den == 0:
                return var, primary.den
    return None


def _quotients(index: Index) -> Iterator[FloorDiv | Mod]:
    return (primary for primary in primaries(index) if isinstance(primary, (FloorDiv, Mod)))
