"""Repetitions as loops: the statements of one iteration over a loop index.

A repetition is a loop where every iteration does the same to parts of tensors that move with it. Statements that depend
on the iteration in another way, but on no state, are hoisted and computed for all iterations before the loop, and so
are reductions that need no state. Statements that no iteration needs come after the loop:

    each t < S { h[t + 1][n] = h[t][n] * f32(t) + (sum[f < F] w[n, f] * x[t, f])   v[t][n] = h[t + 1][n] * 2 }
      ->   a[t] = f32(t);  s[t, n] = sum over f of w[n, f] * x[t, f]
           h[t + 1, n] = h[t, n] * a[t] + s[t, n]  step t
           v[t, n] = h[t + 1, n] * 2

Where iterations share no state, the step is an axis like any other.
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
    rebuild,
    row_slice,
    runs,
    split_step,
    tensors_read,
    touched_rows,
    unslice,
    with_rows,
)
from .canonical import unused_name
from .evaluation import TensorList
from .unroll import copy_of_row

#: Assignments of all iterations together up to which a repetition is unrolled: as many statements as one kernel may
#: have (`passes.fusion.programs.MAX_UNIT_STATEMENTS`), so that a loop of several launches gains nothing over them.
MAX_UNROLLED_ASSIGNMENTS = 24


class NotALoop(Exception):
    """Repetition whose iterations differ beyond moving parts of tensors.

    The text names the difference.
    """


def as_loop(
    statements: Sequence[Statement],
    step: Var,
    tensors: dict[str, TensorType],
    fresh: Callable[[str], str],
    declared: Collection[str],
) -> list[Statement]:
    """Return the loop, given the statements of one iteration over `step`.

    New tensors are entered in `tensors`; `declared` are those that an iteration may write but not read.

    Raises `NotALoop` where the loop would differ from all iterations one after another.
    """
    invariant = [s for s in statements if s.step is None]
    looped = [s for s in statements if s.step is not None]
    written = {s.target for s in looped}
    for statement in statements:
        for tensor in statement.tensors_read:
            if tensor in written and (statement.step is None or tensor in declared):
                raise NotALoop(f"'{tensor}' is written by every turn and read as a whole")
    ahead = _hoistable(looped)
    front = [evolve(s, step=None) for s in looped if s in ahead]
    looped = [s for s in looped if s not in ahead]
    sunk = _sinkable(looped)
    after = [evolve(s, step=None) for s in looped if s in sunk]
    looped = [s for s in looped if s not in sunk]
    loop = _Loop(step, tensors, fresh, {s.target for s in looped})
    looped = [loop.statement(statement) for statement in looped]
    if not _has_state(loop.parts()):
        looped = [evolve(s, step=None) for s in looped]
    return [*invariant, *front, *loop.hoisted, *looped, *after]


def _hoistable(looped: Sequence[Statement]) -> list[Statement]:
    """Return the reductions and copies that need no state, and their dependencies in the loop, in order."""
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


def _sinkable(looped: Sequence[Statement]) -> list[Statement]:
    """Return the statements that no iteration needs and that read a single tensor per iteration, so that no more
    tensors must be kept.
    """
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
    """Statements of an iteration, rewritten over parts that move with the step; `hoisted` has the others that depend on
    it.
    """

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
        """Return a statement with the step only at tensor parts' starts.

        Other uses of the step are hoisted.
        """
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
            return self._hoistable(node, statement)
        return node

    def _hoistable(self, node: Expr, statement: Statement) -> Read:
        """Return the element of a tensor with the values of a node for every iteration."""
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
                if any(part.overlaps(other) for other in found.setdefault(part.whole, [])):
                    raise NotALoop(f"a turn touches parts of '{part.whole}' that overlap")
                found[part.whole].append(part)
        return found


def _has_state(parts: Mapping[str, Sequence[Slice]]) -> bool:
    """Return whether an iteration touches more of the loop's tensors than the part that it writes."""
    return any(len(found) > 1 for found in parts.values())


# ---- lists of tensors


def as_rows(
    statements: Sequence[Statement], items: Mapping[str, tuple[str, int]], lists: Mapping[str, TensorList]
) -> list[Statement]:
    """Replace tensors of some lists by rows of one tensor.

    `items` maps the tensors to list name and number.
    """
    parts = {name: row_slice(whole, number, lists[whole].whole) for name, (whole, number) in items.items()}
    return [unslice(statement, parts) for statement in statements]


def check_rows(statements: Sequence[Statement], lists: Mapping[str, TensorList]) -> None:
    """Check that rows of lists of tensors are written before reads.

    Each row is written completely.

    Raises `NotALoop` where one is not.
    """
    last = {name: np.full(one.count, -1, np.int64) for name, one in lists.items()}
    for when, statement in _with_times(statements):
        if statement.target in lists:
            for rows, times in _rows(statement.write[0], statement.step, when):
                np.maximum.at(last[statement.target], rows, times)
    for when, statement in _with_times(statements):
        for element in addressed_elements(statement.body):
            if element.tensor not in lists:
                continue
            for rows, times in _rows(element.indices[0], statement.step, when):
                written = last[element.tensor]
                inside = (rows >= 0) & (rows < len(written))  # guards exclude reads outside
                found, when_read = written[rows[inside]], np.broadcast_to(times, rows.shape)[inside]
                if (found < 0).any() or (found >= when_read).any():
                    raise NotALoop(f"'{element.tensor}' is read before a statement writes it")


def with_own_rows(
    statements: Sequence[Statement], lists: Collection[str], tensors: dict[str, TensorType]
) -> list[Statement]:
    """Give a tensor to rows of statements that read their own target.

    A statement may read its target only at an earlier iteration; such a row, computed or read by one iteration, is a
    tensor too, and copied.
    """
    plain = [s for s in statements if s.step is None]
    touched = [(s, t, row, written) for s in plain for t, row, written in touched_rows(s) if t in lists]
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


def _with_times(statements: Sequence[Statement]) -> Iterator[tuple[Times, Statement]]:
    """Yield each statement with the times of its iterations; a single time for a statement without step."""
    clock = 0
    for step, run in runs(statements):
        turns = 1 if step is None else step.extent
        for position, statement in enumerate(run):
            between = 1 if step is None else len(run)
            yield clock + position + between * np.arange(turns, dtype=np.int64), statement
        clock += turns * len(run)


def _rows(row: Index, step: Var | None, when: Times) -> Iterator[tuple[Times, Times]]:
    """Yield the rows that an index names, with their times."""
    factor, rest = (0, row) if step is None else split_step(row, step)
    low, high = rest.bounds()
    if not factor:
        yield np.arange(low, high + 1), when[:1]
        return
    for start in range(low, high + 1):
        yield start + factor * np.arange(len(when), dtype=np.int64), when
