"""Cuts a program into kernel units, each as long as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod

from ...ir import Program, Read, Segment, Statement, TensorType, indirects, is_contraction, reads, variables
from ..statements import issue_slots
from .normalise import Illegal, normalise
from .recurrences import MAX_UNIT_STATEMENTS

#: Most results and least terms of a narrow reduction: it fills no machine unless it is split.
MAX_NARROW_RESULTS, MIN_NARROW_TERMS = 64, 1 << 14
#: Most elements of a row that a block keeps for several statements: each statement reads longer ones again.
MAX_KEPT_ROW = 1 << 16
#: Least issue slots of an element of a table, and least elements that are computed from one of its own. A table is a
#: value that depends on no operand: it is a constant where it is a unit.
MIN_TABLE_SLOTS, MIN_TABLE_READS = 16, 8


def cut_units(program: Program, elsewhere: Collection[str] = (), invariant: bool = False) -> tuple[int, ...]:
    """Return the ends of the program's units.

    Each unit is as long as it has a normal form; one statement always has one. Parts of tensors `elsewhere` are
    written by other statements too. Expensive values that depend on no operand, as the angles of a transform, are units
    of their own, if others read each of them often; always if their bits must not depend on a batch (`invariant`).
    """
    statements = program.statements
    last_reads = last_reads_of(statements)
    fixed = _operand_free_tensors(program)
    tables = frozenset(_tables(program, fixed, 0 if invariant else MIN_TABLE_READS))
    ends: list[int] = []
    while (start := ends[-1] if ends else 0) < len(statements):
        last = max(min(len(statements), start + MAX_UNIT_STATEMENTS), _join_end(statements, start))
        longest = (
            e
            for e in range(last, start, -1)
            if e == start + 1
            or (
                not _mixes_tables(statements[start:e], tables, fixed)
                and _fits(program, start, e, last_reads, elsewhere)
            )
        )
        ends.append(next(longest))
    return tuple(ends)


def _operand_free_tensors(program: Program) -> frozenset[str]:
    """Return the tensors that depend on no operand."""
    moving = set(program.inputs)
    for statement in program.statements:
        if not moving.isdisjoint(statement.tensors_read) or statement.step is not None or statement.into is not None:
            moving.add(statement.target)
    return frozenset({s.target for s in program.statements} - moving)


def _tables(program: Program, fixed: Collection[str], least: int) -> Iterator[str]:
    """Yield the tensors worth a table, whose elements are read `least` times."""
    most = max((prod(a.extent for a in s.axes) for s in program.statements if s.target not in fixed), default=0)
    for s in program.statements:
        few = program.tensors[s.target].size * least <= most and s.target not in program.outputs
        if s.target in fixed and few and issue_slots(s.body) >= MIN_TABLE_SLOTS:
            yield s.target


def _mixes_tables(run: Sequence[Statement], tables: Collection[str], fixed: Collection[str]) -> bool:
    """Return whether a run computes tables beside values of operands."""
    return any(s.target in tables for s in run) and any(s.target not in fixed for s in run)


def _join_end(statements: Sequence[Statement], start: int) -> int:
    """Return the end of the copies into the tensor that the first statement writes: a concatenation of any length is
    one unit.
    """
    end = start
    while end < len(statements) and copy_source(statements[end]) and statements[end].target == statements[start].target:
        end += 1
    return end


def _fits(program: Program, start: int, end: int, last_reads: Mapping[str, int], elsewhere: Collection[str]) -> bool:
    """Return whether a run of statements is one kernel and contains all writes of its tensors. Copies stay separate,
    they may be views.
    """
    run = program.statements[start:end]
    if len(run) > 1 and (any(s.combines_in_memory for s in run) or _is_narrow(run) or _sums_states(run, program)):
        return False
    if not _is_connected(run):
        return False
    targets = {s.target for s in run}
    writes = tensors_left_by(run, end, last_reads, program.outputs)
    # Copies of values that threads hold along a row are no views.
    passed = targets - {*writes} if any(s.along is not None for s in run) else set()
    copies = [(s, read.tensor) for s in run if (read := copy_source(s))]
    if len(targets) > 1 and any(
        (s.target in writes and source not in passed) or _is_part(s, program.tensors) for s, source in copies
    ):
        return False
    others = (*program.statements[:start], *program.statements[end:])
    if any(s.target in targets for s in others) or not targets.isdisjoint(elsewhere):
        return False
    found = normalise(run, program.tensors, writes, program.constants)
    # Tables that do not fold into a run as a whole may fold into its parts: a transform by rows, then by columns.
    if isinstance(found, Illegal) or (found.constants and len(run) > 1):
        return False
    return len(run) == 1 or not any(map(_spreads, found.segments))


def _is_connected(run: Sequence[Statement]) -> bool:
    """Return whether tensors lead from each statement of a run to each other one."""
    parts: list[set[str]] = []
    for statement in run:
        own = {statement.target, *statement.tensors_read}
        joined = [part for part in parts if not own.isdisjoint(part)]
        parts = [part for part in parts if part not in joined] + [own.union(*joined)]
    return len(parts) <= 1


def _spreads(segment: Segment) -> bool:
    """Return whether a contraction's results are written several times, or among zeros: lanes that share it would write
    them as a row, where threads that stage operands compute it several times as fast.
    """
    own = {r.name for r in segment.reductions}
    wide = [o for o in segment.outputs if o.extra]
    read = [r for o in wide for r in reads(o.body) if r.tensor not in own]
    alone = not any(set(o.extra) & variables(i) for o in wide for r in read for i in r.indices)
    return bool(wide) and alone and any(is_contraction(r, own) for r in segment.reductions)


def _is_narrow(run: Sequence[Statement]) -> bool:
    """Return whether a run fuses a long reduction with another statement of similar work, although few instances hold
    it or their rows are too long to keep. Separate reductions can be split, and other statements have as many threads
    as elements. The ranks of a sort are not computed.
    """
    ranks = {t for s in run if s.along is not None for t in s.tensors_read}
    run = [s for s in run if s.along is None and s.target not in ranks]
    work = [(prod(v.extent for v in s.axes), prod(v.extent for v in s.reduce)) for s in run]
    if sum(places * terms >= MIN_NARROW_TERMS for places, terms in work) < 2:
        return False
    readers = Counter(tensor for s in run for tensor in s.tensors_read)
    shared = [sum(readers[t] > 1 for t in _rows(s)) for s in run]
    few = any(
        s.combine and places <= MAX_NARROW_RESULTS and terms >= MIN_NARROW_TERMS
        for s, (places, terms) in zip(run, work, strict=True)
    )
    return few or any(terms * rows > MAX_KEPT_ROW for (_, terms), rows in zip(work, shared, strict=True))


def _sums_states(run: Sequence[Statement], program: Program) -> bool:
    """Return whether a sum over elements of a recurrence's states is beside later statements: the kernel that walks
    these states may compute sums, one by one.
    """
    elements = {prod(v.extent for v in s.axes) for s in program.statements if s.is_recurrence}
    return any(s.combine and prod(v.extent for v in (*s.axes, *s.reduce)) in elements for s in run[:-1])


def _rows(statement: Statement) -> set[str]:
    """Return the tensors that a reduction reads at other elements for each of its terms."""
    reduced = set(statement.reduce)
    return {r.tensor for r in statement.reads if any(reduced & variables(i) for i in r.indices)}


def _is_part(copy: Statement, tensors: Mapping[str, TensorType]) -> bool:
    """Return whether a copy takes a part of a tensor, or repeats it."""
    return any(tensors[r.tensor].size != tensors[copy.target].size for r in copy.reads)


def tensors_left_by(
    run: Sequence[Statement], end: int, last_reads: Mapping[str, int], outputs: Sequence[str]
) -> tuple[str, ...]:
    """Return the tensors that a run of statements leaves in memory.

    The run ends ahead of statement `end`. The tensors are outputs, or later statements read them.
    """
    return tuple(t for t in dict.fromkeys(s.target for s in run) if t in outputs or last_reads.get(t, 0) >= end)


def last_reads_of(statements: Sequence[Statement]) -> dict[str, int]:
    """Map each tensor to the last statement that reads it."""
    return {tensor: number for number, statement in enumerate(statements) for tensor in tensors_read_by([statement])}


def tensors_read_by(statements: Iterable[Statement]) -> dict[str, None]:
    """Return the tensors that statements read, in order."""
    return dict.fromkeys(tensor for statement in statements for tensor in statement.tensors_read)


def copy_source(statement: Statement) -> Read | None:
    """Return the read of a pure copy, None for any other statement."""
    body = statement.body
    if (
        not statement.is_pointwise
        or not isinstance(body, Read)
        or body.guards
        or any(indirects(i) for i in body.indices)
    ):
        return None
    return body
