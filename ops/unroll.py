"""Recurrences written out: a program without steps that computes the same, turn after turn.

The tensors that hold all turns of a loop become one for each turn where nothing reads them as a whole, so that what is
made of the program is what it would be for statements that somebody wrote one by one. For what has no form for loops
yet, and to compare loops with.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, evolve, field

from ..ir import (
    GraphError,
    Index,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    at_turn,
    rows_touched,
    runs,
    with_rows,
)

#: Most statements that a loop may be written out to.
LONGEST = 1 << 13


def unrolled(program: Program, purpose: str = "") -> Program:
    """Return a program with its loops written out.

    Raises `GraphError` where that is too much; `purpose` says what needed it.
    """
    loops = [(step, run) for step, run in runs(program.statements) if step is not None]
    if not loops:
        return program
    count = sum(step.extent * len(run) for step, run in loops)
    if count > LONGEST:
        turns = max(step.extent for step, _ in loops)
        raise GraphError(
            f"{purpose or 'this'} needs the {turns} steps of a recurrence written out: {count} statements, expected at "
            f"most {LONGEST}",
            hint="use a shorter sequence",
        )
    return _Unrolling(program, frozenset(s.target for _, run in loops for s in run) - set(program.outputs)).run()


@define
class _Unrolling:
    """What a loop writes is a tensor for each row; what reads them as a whole gets a tensor that they are copied to."""

    program: Program
    made: frozenset[str]
    types: dict[str, TensorType] = field(factory=dict)
    names: dict[tuple[str, int], str] = field(factory=dict)
    joined: set[str] = field(factory=set)

    def run(self) -> Program:
        self.types.update(self.program.tensors)
        statements: list[Statement] = []
        for _, run in runs(self.program.statements):
            for statement in run if run[0].step is None else _turns(run):
                wholes = [t for t, row, written in rows_touched(statement) if t in self.made and row is None]
                statements += [s for whole in dict.fromkeys(wholes) for s in self._join(whole)]
                statements.append(with_rows(statement, self.made - self.joined, self._name))
        types = {t: type_ for t, type_ in self.types.items() if t not in self.made or t in self.joined}
        return evolve(self.program, statements=tuple(statements), tensors=types)

    def _name(self, whole: str, row: int) -> str:
        if (whole, row) not in self.names:
            found = f"{whole}_{row}"
            while found in self.types:
                found += "_"
            self.names[whole, row] = found
            self.types[found] = TensorType(self.types[whole].dtype, self.types[whole].shape[1:])
        return self.names[whole, row]

    def _join(self, whole: str) -> list[Statement]:
        """Return the copies of all rows into one tensor, the first time that it is read as such."""
        if whole in self.joined:
            return []
        self.joined.add(whole)
        axes = tuple(Var(f"i{n}", extent) for n, extent in enumerate(self.types[whole].shape[1:]))
        kept, place = tuple(a for a in axes if a.extent > 1), tuple(map(as_index, axes))
        rows = range(self.types[whole].shape[0])
        return [Statement(whole, kept, (Index(row), *place), Read(self._name(whole, row), place)) for row in rows]


def _turns(run: Sequence[Statement]) -> list[Statement]:
    step = run[0].step
    assert step is not None, "a loop has a step"
    return [at_turn(s, turn) for turn in range(step.extent) for s in run]
