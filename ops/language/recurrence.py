"""Repetitions as loops: which statements of one turn, over an index in the place of the turn's number, mean all turns.

A repetition is a loop where every turn does the same to parts of tensors that move along with it. What depends on the
turn in another way, but on no state, is computed for all turns in front of the loop, and so are reductions that need no
state. What no turn needs comes behind the loop:

    each t < S { h[t + 1][n] = h[t][n] * f32(t) + (sum[f < F] w[n, f] * x[t, f])   v[t][n] = h[t + 1][n] * 2 }
      ->   a[t] = f32(t);  s[t, n] = sum over f of w[n, f] * x[t, f]
           h[t + 1, n] = h[t, n] * a[t] + s[t, n]  step t
           v[t, n] = h[t + 1, n] * 2

Where turns share no state, the step is an axis like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from ...ir import (
    Expr,
    Index,
    InRange,
    Read,
    Slice,
    Slicer,
    Statement,
    TensorType,
    Unsliceable,
    Var,
    addressed_elements,
    as_index,
    dtype_of,
    expr_variables,
    pace,
    rebuild,
    row_slice,
    rows_touched,
    runs,
    tensors_read,
    unsliced,
    with_rows,
)
from .canonical import unused_name
from .unroll import copy_of_row
from .values import TensorList

#: Assignments of all turns together up to which a repetition is written out: as many statements as one kernel may have
#: (`passes.fusion.programs.LONGEST_RUN`), so that a loop of several launches gains nothing over them.
SHORT = 24


class NotALoop(Exception):
    """A repetition whose turns differ in more than the parts of tensors that they touch; the text says in what."""


def as_loop(
    statements: Sequence[Statement],
    step: Var,
    tensors: dict[str, TensorType],
    fresh: Callable[[str], str],
    declared: Collection[str],
) -> list[Statement]:
    """Return the statements of all turns, given those of one over the index `step`; new tensors are entered in
    `tensors`, `declared` are those that a turn may write but not read.

    Raises `NotALoop` where they mean something else than all turns one after another.
    """
    invariant = [s for s in statements if s.step is None]
    looped = [s for s in statements if s.step is not None]
    written = {s.target for s in looped}
    for statement in statements:
        for tensor in statement.tensors_read:
            if tensor in written and (statement.step is None or tensor in declared):
                raise NotALoop(f"'{tensor}' is written by every turn and read as a whole")
    ahead = _ahead(looped)
    front = [evolve(s, step=None) for s in looped if s in ahead]
    looped = [s for s in looped if s not in ahead]
    behind = _behind(looped)
    after = [evolve(s, step=None) for s in looped if s in behind]
    looped = [s for s in looped if s not in behind]
    loop = _Loop(step, tensors, fresh, {s.target for s in looped})
    looped = [loop.statement(statement) for statement in looped]
    if not _has_state(loop.parts()):
        looped = [evolve(s, step=None) for s in looped]
    return [*invariant, *front, *loop.hoisted, *looped, *after]


def _ahead(looped: Sequence[Statement]) -> list[Statement]:
    """Return the reductions and copies that need no state, and what they read of the loop, in order."""
    stateful: set[str] = set()
    free: list[Statement] = []
    written = {s.target for s in looped}
    seen: set[str] = set()
    for statement in looped:
        if any(t in stateful or (t in written and t not in seen) for t in statement.tensors_read):
            stateful.add(statement.target)
        elif statement.target not in stateful:
            free.append(statement)
        seen.add(statement.target)
    free = [s for s in free if s.target not in stateful]
    wanted: set[str] = set()
    kept: list[Statement] = []
    for statement in reversed(free):
        if statement.combine or isinstance(statement.body, Read) or statement.target in wanted:
            kept.append(statement)
            wanted.update(statement.tensors_read)
    moved = {s.target for s in kept}
    return [s for s in free if s.target in moved]


def _behind(looped: Sequence[Statement]) -> list[Statement]:
    """Return what no turn needs and what needs of each turn a single tensor, so that no more of them must be kept."""
    found: list[Statement] = []
    while True:
        rest = [s for s in looped if s not in found]
        read = {tensor for s in rest for tensor in s.tensors_read}
        own = {s.target for s in rest}
        more = [s for s in rest if s.target not in read and len(own.intersection(s.tensors_read)) == 1]
        if not more:
            return found
        found += more


@frozen
class _Loop:
    """Statements of a turn made over parts that move with the step; `hoisted` is what else depends on it."""

    step: Var
    tensors: dict[str, TensorType]
    fresh: Callable[[str], str]
    written: Collection[str]
    hoisted: list[Statement] = field(factory=list)
    slicer: Slicer = field(init=False)
    known: dict[Expr, Read] = field(factory=dict)

    @slicer.default
    def _slicer(self) -> Slicer:
        return Slicer(self.step, self.tensors)

    def statement(self, statement: Statement) -> Statement:
        """Return a statement in which the step stands only where parts of tensors begin."""
        found = evolve(statement, body=rebuild(statement.body, lambda node: self._leaf(node, statement)))
        try:
            self.slicer.statement(found)
        except Unsliceable as reason:
            raise NotALoop(str(reason)) from reason
        return found

    def _leaf(self, node: Expr, statement: Statement) -> Expr:
        try:
            self.slicer.expr(node)
        except Unsliceable as reason:
            if any(tensor in self.written for tensor in tensors_read(node)):
                raise NotALoop(str(reason)) from reason
            return self._ahead(node, statement)
        return node

    def _ahead(self, node: Expr, statement: Statement) -> Read:
        """Return the element of a tensor that holds the values of a node at all turns."""
        if node not in self.known:
            used = expr_variables(node)
            axes = tuple(v for v in (*statement.axes, *statement.reduce) if v in used)
            place = tuple(map(as_index, axes))
            name = self.fresh(f"{statement.target}_{'test' if isinstance(node, InRange) else 'ahead'}")
            self.tensors[name] = TensorType(dtype_of(node, self.tensors), tuple(v.extent for v in axes))
            self.hoisted.append(Statement(name, axes, place, node, span=statement.span))
            self.known[node] = Read(name, place)
        return self.known[node]

    def parts(self) -> dict[str, list[Slice]]:
        """Return the parts of each tensor that the loop writes.

        Raises `NotALoop` where two of them overlap and are not the same.
        """
        found: dict[str, list[Slice]] = {}
        for part in self.slicer.names:
            if part.whole in self.written:
                if any(part.meets(other) for other in found.setdefault(part.whole, [])):
                    raise NotALoop(f"a turn touches parts of '{part.whole}' that overlap")
                found[part.whole].append(part)
        return found


def _has_state(parts: Mapping[str, Sequence[Slice]]) -> bool:
    """Whether a turn touches, of what the loop writes, more than the part that it writes."""
    return any(len(found) > 1 for found in parts.values())


# ---- lists of tensors


def as_rows(
    statements: Sequence[Statement], items: Mapping[str, tuple[str, int]], lists: Mapping[str, TensorList]
) -> list[Statement]:
    """Return statements in which tensors of some lists, given by name and number, are rows of one tensor."""
    parts = {name: row_slice(whole, number, lists[whole].whole) for name, (whole, number) in items.items()}
    return [unsliced(statement, parts) for statement in statements]


def check_rows(statements: Sequence[Statement], lists: Mapping[str, TensorList]) -> None:
    """Hold lists of tensors to the order of turns: each row is written whole before it is read.

    Raises `NotALoop` where one is not.
    """
    last = {name: np.full(one.count, -1, np.int64) for name, one in lists.items()}
    for when, statement in _timed(statements):
        if statement.target in lists:
            for rows, times in _rows(statement.write[0], statement.step, when):
                np.maximum.at(last[statement.target], rows, times)
    for when, statement in _timed(statements):
        for element in addressed_elements(statement.body):
            if element.tensor not in lists:
                continue
            for rows, times in _rows(element.indices[0], statement.step, when):
                written = last[element.tensor]
                inside = (rows >= 0) & (rows < len(written))  # what lies outside is not read, a guard says so
                found, when_read = written[rows[inside]], np.broadcast_to(times, rows.shape)[inside]
                if (found < 0).any() or (found >= when_read).any():
                    raise NotALoop(f"'{element.tensor}' is read before a statement writes it")


def with_own_rows(
    statements: Sequence[Statement], lists: Collection[str], tensors: dict[str, TensorType]
) -> list[Statement]:
    """Return statements of which none reads a tensor that it writes, but at an earlier turn: a row that a turn of its
    own computes, or that one reads, is a tensor too, and copied.
    """
    plain = [s for s in statements if s.step is None]
    touched = [(s, t, row, written) for s in plain for t, row, written in rows_touched(s) if t in lists]
    read = {(t, row) for _, t, row, written in touched if not written}
    last = {
        (t, row): s
        for s, t, row, written in touched
        if written and row is not None and ((t, row) in read or t in s.tensors_read)
    }
    names: dict[tuple[str, int], str] = {}
    for whole, row in last:
        names[whole, row] = name = unused_name(f"{whole}_{row}", tensors)
        tensors[name] = TensorType(tensors[whole].dtype, tensors[whole].shape[1:])
    found: list[Statement] = []
    for statement in statements:
        found.append(statement if statement.step is not None else with_rows(statement, names))
        found += [copy_of_row(t, row, name, tensors) for (t, row), name in names.items() if last[t, row] is statement]
    return found


Times = npt.NDArray[np.int64]


def _timed(statements: Sequence[Statement]) -> Iterator[tuple[Times, Statement]]:
    """Yield each statement with the times at which its turns come; the one time of a statement without step."""
    clock = 0
    for step, run in runs(statements):
        turns = 1 if step is None else step.extent
        for position, statement in enumerate(run):
            between = 1 if step is None else len(run)
            yield clock + position + between * np.arange(turns, dtype=np.int64), statement
        clock += turns * len(run)


def _rows(row: Index, step: Var | None, when: Times) -> Iterator[tuple[Times, Times]]:
    """Yield rows that an index names, with the times at which it does."""
    factor, rest = (0, row) if step is None else pace(row, step)
    low, high = rest.bounds()
    if not factor:
        yield np.arange(low, high + 1), when[:1]
        return
    for start in range(low, high + 1):
        yield start + factor * np.arange(len(when), dtype=np.int64), when
