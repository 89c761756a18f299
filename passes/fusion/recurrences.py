"""Recurrences as loops: programs of iterations and storage of their tensors.

The statements of an iteration are written over slices that move with the step (`ir.recurrence`), so they are a program
like any other, and one set of kernels serves all iterations. Of the tensors that the loop writes

* some live within an iteration: nothing else reads them, so each is as large as one iteration's part; * some carry a
state from one iteration to later ones and are read elsewhere by row number alone, ahead of the loop their first rows,
after it their last: as many rows as an iteration touches are kept, and used in rotation; * all others are stored as a
whole.

    h[0, n] = 0;      m[t, n] = r * h[t, n], h[t + 1, n] = tanh(m[t, n]) step t < 400;     y[n] = h[400, n]
      ->   %h[0][n] = 0
           400 times: %m[t][n] = r * %h[t][n]; %h[t + 1][n] = tanh(%m[t][n])     %h of 2 rows, %m of 1
           y[n] = %h[400][n]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import define, evolve, field, frozen

from ...ir import (
    Index,
    Program,
    Slice,
    Slicer,
    Statement,
    TensorType,
    Var,
    as_index,
    rename_statement,
    row_slice,
    runs,
    substitute,
    substitute_expr,
    touched_rows,
    with_rows,
)
from ...ops.language import unused_name


@frozen
class Iteration:
    """One iteration of a loop: a program over slices.

    Its outputs are the slices that later iterations or others read; `reads` and `writes` are the tensors around the
    loop that it needs and leaves.
    """

    step: Var
    program: Program
    reads: tuple[str, ...]
    writes: tuple[str, ...]


#: Most statements of one unit: declarations rarely have as many, unrolled iterations may.
MAX_UNIT_STATEMENTS = 24

Item: TypeAlias = tuple[Statement, ...] | Iteration


@frozen
class Sliced:
    """A program as runs of statements and loops, in order.

    `tensors` has the slices too, `slices` the tensor and part of each, and `rotating` the number of stored rows of
    tensors that need only some of them at a time.
    """

    items: tuple[Item, ...]
    tensors: Mapping[str, TensorType]
    slices: Mapping[str, Slice] = field(factory=dict)
    rotating: Mapping[str, int] = field(factory=dict)


def slice_loops(program: Program) -> Sliced:
    """Return a program with its recurrences as loops.

    One without any is a single run.
    """
    if all(s.step is None for s in program.statements):
        return Sliced((program.statements,), program.tensors)
    return _Slicing(unroll_recurrences(program)).run()


def unroll_recurrences(program: Program) -> Program:
    """Return a program with its loops without reductions unrolled.

    One kernel may then compute several iterations.

        h[t + 1] = f(h[t]) step t < 6    ->    h[2*u + 1] = f(h[2*u]), h[2*u + 2] = f(h[2*u + 1]) step u < 3
    """
    statements = [s for step, run in runs(program.statements) for s in _merge_steps(step, run)]
    return evolve(program, statements=tuple(statements))


def _merge_steps(step: Var | None, run: Sequence[Statement]) -> Sequence[Statement]:
    if step is None or any(s.combine for s in run):
        return run
    width = _width(step.extent, MAX_UNIT_STATEMENTS // len(run))
    if width < 2:
        return run
    taken = {v.name for s in run for v in s.axes}
    wide = Var(unused_name(f"{step.name}_", taken), step.extent // width)
    rest = Var(unused_name(f"{step.name}__", taken), step.extent % width)
    turns = [_at_step(s, wide, as_index(wide) * width + turn) for turn in range(width) for s in run]
    return turns + [_at_step(s, rest, as_index(rest) + wide.extent * width) for s in run if rest.extent]


def _width(turns: int, most: int) -> int:
    """Return the unroll factor: one without remainder if that costs little, and no remainder of one iteration."""
    widths = [n for n in range(min(most, turns // 2), 1, -1) if turns % n != 1]
    even = [n for n in widths if turns % n == 0 and 2 * n >= most]
    return next(iter((*even, *widths)), 1)


def _at_step(statement: Statement, step: Var, index: Index) -> Statement:
    """Return a statement whose step is an index of another one."""
    assert statement.step is not None, "only statements of a recurrence have turns"
    values = {statement.step: index}
    return evolve(
        statement,
        axes=tuple(step if axis == statement.step else axis for axis in statement.axes),
        write=tuple(substitute(w, values) for w in statement.write),
        body=substitute_expr(statement.body, values),
        step=step,
    )


@define
class _Loop:
    """A recurrence of the program: its place among the runs, its statements over slices, and these slices."""

    place: int
    step: Var
    statements: tuple[Statement, ...]
    slices: dict[str, Slice]

    @property
    def written(self) -> dict[str, None]:
        """The slices that an iteration writes."""
        return dict.fromkeys(s.target for s in self.statements)

    @property
    def read(self) -> dict[str, None]:
        """The slices that an iteration reads."""
        return dict.fromkeys(t for s in self.statements for t in s.tensors_read)

    def parts(self, whole: str) -> list[Slice]:
        """Return the slices of a tensor that an iteration touches."""
        return [part for part in self.slices.values() if part.whole == whole]


@frozen
class _Touch:
    """An access outside of loops: its run, its row (None for several), and whether it writes."""

    place: int
    row: int | None
    written: bool


@define
class _Slicing:
    program: Program
    runs: list[tuple[Statement, ...]] = field(init=False)
    loops: list[_Loop] = field(init=False)
    touched: dict[str, list[_Touch]] = field(init=False)  # outside of loops
    slices: dict[str, Slice] = field(factory=dict)
    tensors: dict[str, TensorType] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tensors = dict(self.program.tensors)
        found = list(runs(self.program.statements))
        self.runs = [run for _, run in found]
        self.loops = [self._loop(n, step, run) for n, (step, run) in enumerate(found) if step is not None]
        self.touched = {}
        for place, (step, run) in enumerate(found):
            for statement in run if step is None else ():
                for tensor, row, written in touched_rows(statement):
                    self.touched.setdefault(tensor, []).append(_Touch(place, row, written))

    def _loop(self, place: int, step: Var, run: Sequence[Statement]) -> _Loop:
        slicer = Slicer(step, self.program.tensors)
        statements = tuple(slicer.statement(s) for s in run)
        names = {name: self._unique(name) for name in slicer.names.values()}
        slices = {names[name]: part for part, name in slicer.names.items()}
        self._enter(slices)
        return _Loop(place, step, tuple(rename_statement(s, names) for s in statements), slices)

    def _unique(self, name: str) -> str:
        while name in self.tensors:
            name += "'"
        return name

    def _enter(self, slices: Mapping[str, Slice]) -> None:
        self.slices.update(slices)
        self.tensors.update({name: part.type(self.program.tensors[part.whole]) for name, part in slices.items()})

    def run(self) -> Sliced:
        rotating = {whole: rows for loop in self.loops for whole, rows in self._rotating(loop)}
        touched = [(t, one.row) for t in rotating for one in self.touched.get(t, ())]
        rows = {(t, row): self._row(t, row) for t, row in touched if row is not None}
        runs_ = [tuple(with_rows(s, rows) if s.step is None else s for s in run) for run in self.runs]
        turns = {loop.place: self._turn(loop, rotating) for loop in self.loops}
        items = tuple(turns.get(place) or run for place, run in enumerate(runs_))
        return Sliced(items, self.tensors, self.slices, rotating)

    def _row(self, whole: str, row: int) -> str:
        name = f"{whole}[{row}]"
        if name not in self.slices:
            self._enter({name: row_slice(whole, row, self.program.tensors[whole])})
        return name

    # ---- storage of tensors

    def _is_shared(self, whole: str, loop: _Loop) -> bool:
        """Return whether another loop touches a tensor."""
        return any(part.whole == whole for other in self.loops if other is not loop for part in other.slices.values())

    def _outliving_slices(self, loop: _Loop) -> tuple[str, ...]:
        """Return the slices that an iteration writes and that another iteration or a statement outside reads."""
        return tuple(name for name in loop.written if self._outlives(loop, name))

    def _outlives(self, loop: _Loop, name: str) -> bool:
        if name not in loop.slices:
            return True
        whole = loop.slices[name].whole
        still = any(whole in s.tensors_read for other in self.loops for s in other.statements)
        reads = (one.row for one in self.touched.get(whole, ()) if not one.written)
        read = any(row is None or _may_be(loop.slices[name], row) for row in reads)
        used = still or read or whole in self.program.outputs or self._is_shared(whole, loop)
        return used or any(_crosses(loop.slices[name], loop.slices[t]) for t in loop.read if t in loop.slices)

    def _rotating(self, loop: _Loop) -> Iterator[tuple[str, int]]:
        """Yield the tensors that carry a state and that are read elsewhere by row number, with the rows that an
        iteration touches.
        """
        for whole in dict.fromkeys(
            loop.slices[name].whole for name in self._outliving_slices(loop) if name in loop.slices
        ):
            rows = _rows(loop.parts(whole), self.program.tensors[whole])
            pace = rows[2] if rows else 1
            still = any(whole in s.tensors_read for other in self.loops for s in other.statements)
            if whole in self.program.outputs or self._is_shared(whole, loop) or rows is None or still:
                continue
            low, count, _ = rows
            last = low + (loop.step.extent - 1) * pace + count
            # The loop must not overwrite rows that are read ahead of it, whenever their reader runs.
            fits = (
                one.row is not None and (low <= one.row < low + count and one.written)
                if one.place < loop.place
                else one.row is not None and last - count <= one.row < last and not one.written
                for one in self.touched.get(whole, ())
            )
            kept = -(-count // pace) * pace
            if all(fits) and kept < self.program.tensors[whole].shape[0]:
                yield whole, kept

    # ---- iterations

    def _turn(self, loop: _Loop, rotating: Mapping[str, int]) -> Iteration:
        read = dict.fromkeys(t for s in loop.statements for t in s.tensors_read)
        tables = {t: rows for t, rows in self.program.constants.items() if t in read}
        inputs = tuple(t for t in read if t not in loop.written and t not in tables)
        kept = self._outliving_slices(loop)
        types = {t: self.tensors[t] for t in (*read, *loop.written)}
        program = Program(types, inputs, kept, loop.statements, tables)
        earlier = {s.target for run in self.runs[: loop.place] for s in run}
        own = {loop.slices[name].whole for name in loop.written if name in loop.slices} - earlier
        reads = dict.fromkeys(
            t for name in inputs for t in self._surrounding_tensors(name, loop, rotating, before=True)
        )
        writes = dict.fromkeys(
            t for name in kept for t in self._surrounding_tensors(name, loop, rotating, before=False)
        )
        return Iteration(loop.step, program, tuple(t for t in reads if t not in own), tuple(writes))

    def _surrounding_tensors(
        self, name: str, loop: _Loop, rotating: Mapping[str, int], before: bool
    ) -> tuple[str, ...]:
        """Return the tensors around the loop that a slice belongs to, ahead of the loop or after it."""
        if name not in loop.slices:
            return (name,)
        whole = loop.slices[name].whole
        if whole not in rotating:
            return (whole,)
        found = [one.row for one in self.touched.get(whole, ()) if (one.place < loop.place) == before]
        return tuple(dict.fromkeys(self._row(whole, row) for row in found if row is not None))


def _crosses(written: Slice, read: Slice) -> bool:
    """Return whether one iteration may write an element that another one reads."""
    if written.whole != read.whole or written == read:
        return False
    pairs = list(zip(written.starts, read.starts, written.extents, read.extents, strict=True))
    for start, other, *extents in pairs:
        distance = other - start
        single = extents == [None, None] and distance.is_const and len(start.terms) == 1
        if single and distance.const % start.terms[0][1]:
            return False
    return True


def _may_be(part: Slice, row: int) -> bool:
    """Return whether a row is in a part at some iteration."""
    start = part.starts[0]
    return len(start.terms) != 1 or part.extents[0] is not None or (row - start.const) % start.terms[0][1] == 0


def _rows(parts: Sequence[Slice], type_: TensorType) -> tuple[int, int, int] | None:
    """Return the first row that the first iteration touches, the rows of each iteration, and the step between
    iterations, where these take whole rows; else None.
    """
    paces = {factor for part in parts for _, factor in part.starts[0].terms}
    for part in parts:
        moving, *rest = part.starts
        whole = all(n == extent for n, extent in zip(part.extents[1:], type_.shape[1:], strict=True))
        if not whole or any(not s.is_const or s.const for s in rest) or len(moving.terms) != 1:
            return None
    low = min(part.starts[0].const for part in parts)
    high = max(part.starts[0].const + (part.extents[0] or 1) for part in parts)
    return (low, high - low, min(paces)) if len(paces) == 1 and min(paces) > 0 else None
