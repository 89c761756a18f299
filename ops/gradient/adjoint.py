"""Adjoints of statements and programs, in index notation.

For a statement `y[w(i)] = sum over r of body(i, r)` that reads `x[f(i, r)]`, every element of x gets

    dx[j] += sum over { (i, r): f(i, r) = j } of dbody/dread * dy[w(i)]

The access map is inverted (`invert`), so that the sum runs over what is free in it: a broadcast becomes a sum, a sum a
broadcast, a strided window a sum over its taps, guards stay. A read at a place that an integer names becomes a scatter,
and a scatter a read. `max` and `min` pass the gradient to the first of equal elements (row-major over the reduced
axes), `prod` multiplies by the product of all others. A program is differentiated statement by statement in reverse;
what lies inside it and is needed is computed again from the operands and results, and what turns out not to matter is
left out (`invariance`: the maximum that softmax subtracts).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod

from attrs import define, evolve, field, frozen

from ...ir import (
    COMBINERS,
    Call,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_variables,
    indirects,
    linearise,
    rebuild,
    row_major,
    runs,
    substitute,
    substitute_expr,
    walk,
)
from ..language import live_statements, unrolled
from .conditions import attach, bounded, split
from .congruence import Summand, solve_congruences
from .derivatives import differentiate, literal, multiply
from .factors import name_factors
from .invariance import irrelevant
from .invert import Inverse, invert
from .pieces import Piece, pieces_of
from .sums import Sums, Term

#: More residue classes than this are computed by one statement that tests the residue.
_MOST_PHASES = 16
#: A read of more straight pieces is inverted whole.
_MOST_PIECES = 27


#: Most steps of a recurrence that is written out for its gradient.
LONGEST_WRITTEN_OUT = 64


class NoReverse(Exception):
    """A recurrence whose adjoint has no form as a recurrence."""


@frozen
class Adjoint:
    """The gradients of operands of a program, as a program.

    Its inputs are operands and results of the original program by their names, and gradients of results: `given` says
    of which. `found` says which of its outputs is the gradient of which operand.
    """

    program: Program
    given: Mapping[str, str]
    found: Mapping[str, str]


def adjoint(program: Program, operands: Sequence[str], results: Sequence[str]) -> Adjoint:
    """Return the gradients of operands, given those of some results;
    operands that no result depends on are left out.
    """
    try:
        return _Adjoint(name_factors(program), operands=tuple(operands), results=tuple(results)).run()
    except NoReverse:
        written_out = name_factors(unrolled(program, "the gradient", LONGEST_WRITTEN_OUT))
    return _Adjoint(written_out, operands=tuple(operands), results=tuple(results)).run()


@define
class _Adjoint(Sums):
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    seeds: dict[str, tuple[tuple[Var, ...], Expr]] = field(factory=dict)  # the gradient of a tensor at an element

    def run(self) -> Adjoint:
        self.tensors.update(self.program.tensors)
        gradients = {self.fresh(f"d_{result}"): result for result in self.results}
        for name, result in gradients.items():
            self.tensors[name] = self.tensors[result]
        varying = self._varying()
        skipped = irrelevant(self.program, self.results)
        parts: dict[str, list[Term]] = {r: [self._given(n, r)] for n, r in gradients.items() if r in varying}
        written: set[str] = set()
        for step, run in reversed(list(runs(self.program.statements))):
            if step is not None:
                self._reverse(step, [s for s in run if s.target in varying], varying, parts)
                written.update(s.target for s in run)
                continue
            for statement in reversed(run):
                if statement.target not in varying or statement.target in skipped:
                    continue
                if statement.target not in written and not self._settle(statement.target, parts):
                    continue
                written.add(statement.target)
                if statement.target in self.seeds:
                    for tensor, terms in self._pull(statement, varying).items():
                        parts.setdefault(tensor, []).extend(terms)
        found: dict[str, str] = {}
        for operand in self.operands:
            if parts.get(operand):
                found[self.fresh(f"d_{operand}")] = operand
                self.define(next(reversed(found)), operand, parts[operand])
        return self._finish(gradients, found)

    def _varying(self) -> set[str]:
        """Return the tensors through which the operands reach a result, as real numbers."""
        found = {o for o in self.operands if self.tensors[o].dtype.is_float}
        before = -1
        while len(found) > before:  # what a turn reads, a later statement may have written a turn before
            before = len(found)
            for statement in self.program.statements:
                if self.tensors[statement.target].dtype.is_float and any(r.tensor in found for r in statement.reads):
                    found.add(statement.target)
        return found

    # ---- recurrences

    def _reverse(self, step: Var, run: Sequence[Statement], varying: set[str], parts: dict[str, list[Term]]) -> None:
        """Emit the adjoint of a recurrence: a recurrence over the turns in reverse.

        What a turn's statement reads was written by that turn or an earlier one, so that going back, the gradient of an
        element is whole when the turn comes that wrote it.
        """
        read = {tensor for s in run for tensor in s.tensors_read}
        states = [t for t in dict.fromkeys(s.target for s in reversed(run)) if t in read]
        for tensor in dict.fromkeys(s.target for s in run):
            if tensor not in read:
                self._settle(tensor, parts)
        reached = self._reached(run, states, parts)
        names = {tensor: self.fresh(f"d_{tensor}") for tensor in states if tensor in reached}
        first = {tensor: self._first_row(tensor, step, run) for tensor in names}
        for tensor, name in names.items():
            self._seed_rows(name, tensor, first[tensor], self.tensors[tensor].shape[0] - first[tensor])
        for statement in reversed(run):
            if statement.target in self.seeds:
                for tensor, terms in self._pull(statement, varying).items():
                    parts.setdefault(tensor, []).extend(terms)
        back = Var(f".back{len(self.statements)}", step.extent)
        for tensor, name in names.items():
            behind = Var(f".behind{len(self.statements)}", self.tensors[name].shape[0] - step.extent)
            self._at_rows(name, tensor, parts[tensor], behind, as_index(behind) + step.extent, first[tensor])
        start = len(self.statements)
        for tensor, name in names.items():
            self._at_rows(name, tensor, parts[tensor], back, as_index(back) * -1 + (step.extent - 1), first[tensor])
        stepped = [evolve(s, step=back if back in s.axes else None) for s in self.statements[start:]]
        self.statements[start:] = sorted(stepped, key=lambda s: s.step is not None)
        for tensor in (tensor for tensor in names if first[tensor]):
            before = Var(f".before{len(self.statements)}", first[tensor])
            self._seed_rows(name := self.fresh(f"d_{tensor}_before"), tensor, 0, first[tensor])
            self._at_rows(name, tensor, parts[tensor], before, as_index(before), 0)

    def _seed_rows(self, name: str, tensor: str, first: int, count: int) -> None:
        """Let a new tensor hold the gradient of some rows of a tensor."""
        rows, *rest = self.axes_of(tensor)
        self.tensors[name] = TensorType(self.tensors[tensor].dtype, (count, *self.tensors[tensor].shape[1:]))
        self.seeds[tensor] = (rows, *rest), Read(name, (as_index(rows) - first, *map(as_index, rest)))

    def _reached(self, run: Sequence[Statement], states: Sequence[str], parts: Mapping[str, list[Term]]) -> set[str]:
        """Return the states that a gradient reaches, from outside of the loop or through other states."""
        found = {t for t in states if parts.get(t)} | {s.target for s in run if s.target in self.seeds}
        before = -1
        while len(found) > before:
            before = len(found)
            found |= {t for s in run if s.target in found for t in s.tensors_read if t in states}
        return found

    def _first_row(self, tensor: str, step: Var, run: Sequence[Statement]) -> int:
        """Return the row that the first turn writes.

        Raises `NoReverse` where turns do not write a row each, one after another.
        """
        found = {s.write[0] - as_index(step) for s in run if s.target == tensor}
        place = found.pop()
        if found or not place.is_const:
            raise NoReverse
        return place.const

    def _at_rows(self, name: str, tensor: str, terms: Sequence[Term], axis: Var, row: Index, first: int) -> None:
        """Emit row `row` of the gradient of all rows from `first` on, for all values of the axis that it depends on.

        Raises `NoReverse` where a term is not over all rows.
        """
        if not axis.extent:
            return
        all_rows, *rest = self.axes_of(tensor)
        element = (row, *map(as_index, rest))
        moved = []
        for term in terms:
            if not self.is_whole(tensor, term):
                raise NoReverse
            body = substitute_expr(term.body, {all_rows: row + first})
            moved.append(Term((axis, *rest), element, body, term.free))
        self.add_up(name, tensor, (axis, *rest), element, moved)

    def _given(self, name: str, result: str) -> Term:
        axes = self.axes_of(result)
        element = tuple(map(as_index, axes))
        return Term(axes, element, Read(name, element))

    def _settle(self, tensor: str, parts: Mapping[str, list[Term]]) -> bool:
        """Make the gradient of a tensor available where all its readers have been seen; say whether there is one."""
        terms = parts.get(tensor, [])
        if not terms:
            return False
        whole = self.is_whole(tensor, terms[0])
        if len(terms) == 1 and whole and not terms[0].free and _is_light(terms[0].body):
            self.seeds[tensor] = terms[0].axes, terms[0].body
        else:
            name = self.fresh(f"d_{tensor}")
            self.define(name, tensor, terms)
            self.seeds[tensor] = self.axes_of(tensor), Read(name, tuple(map(as_index, self.axes_of(tensor))))
        return True

    def _pull(self, statement: Statement, varying: set[str]) -> dict[str, list[Term]]:
        """Return what each tensor that a statement reads gets from it."""
        axes, seed = self.seeds[statement.target]
        seed = substitute_expr(seed, dict(zip(axes, statement.write, strict=True)))
        value = Read(statement.target, statement.write) if statement.is_pointwise else None
        if statement.combine in ("max", "min"):
            seed = self._first_only(statement, seed)
        elif statement.combine == "prod":
            seed = self._times_others(statement, seed)
        elif statement.into in ("max", "min"):
            seed = self._first_to_arrive(statement, seed)
        elif statement.into == "prod":
            seed = self._times_others(statement, seed)
        found: dict[str, list[Term]] = {}
        for read, gradient in differentiate(statement.body, seed, self.tensors, value).items():
            if read.tensor in varying:
                found.setdefault(read.tensor, []).extend(self._scatter(statement, read, gradient))
        return found

    def _first_only(self, statement: Statement, seed: Expr) -> Expr:
        """Let the gradient of an extremum reach the first position where it is attained."""
        place = self.temporary(
            f"{statement.target}_place", TensorType(DType.I64, tuple(a.extent for a in statement.axes))
        )
        element = tuple(map(as_index, statement.axes))
        self.statements.append(
            Statement(place, statement.axes, element, statement.body, statement.reduce, f"arg{statement.combine}")
        )
        position = linearise(
            [as_index(r) for r in statement.reduce], row_major(tuple(r.extent for r in statement.reduce))
        )
        here = Call("eq", (Read(place, element), IndexValue(position, DType.I64)))
        return Call("select", (here, seed, literal(0, self.dtype(seed))))

    def _first_to_arrive(self, statement: Statement, seed: Expr) -> Expr:
        """Let the gradient of an extremum reach the first that arrived with it."""
        shape = self.tensors[statement.target].shape
        position = linearise(list(map(as_index, statement.axes)), row_major(tuple(a.extent for a in statement.axes)))
        number = IndexValue(position, DType.I64)
        place = self.temporary(f"{statement.target}_place", TensorType(DType.I64, shape))
        there = Call("eq", (statement.body, Read(statement.target, statement.write)))
        last = Const(COMBINERS["min"].identity(DType.I64), DType.I64)
        first = evolve(statement, target=place, body=Call("select", (there, number, last)), into="min")
        self.statements.append(first)
        here = Call("eq", (Read(place, statement.write), number))
        return Call("select", (here, seed, literal(0, self.dtype(seed))))

    def _times_others(self, statement: Statement, seed: Expr) -> Expr:
        """Multiply by the product of all other factors, computed without dividing by this one; of what is scattered, of
        those that meet it.
        """
        dtype, shape = self.tensors[statement.target].dtype, self.tensors[statement.target].shape
        own = statement.own_dims(shape).values()
        factors = tuple(a for a in statement.axes if a not in own) if statement.into else statement.reduce
        if not factors:
            return seed  # there are no others
        others = tuple(Var(f"{r.name}_other", r.extent) for r in factors)
        values = dict(zip(factors, others, strict=True))
        renamed = substitute_expr(statement.body, values)
        if statement.into:
            apart = [index - substitute(index, values) for index in statement.write]
            meets = tuple(dict.fromkeys(g for g in (Guard(i, 0, 1) for i in apart) if not g.always))
            renamed = Call("select", (InRange(meets), renamed, literal(1, dtype))) if meets else renamed
        same = InRange(tuple(Guard(as_index(o) - r, 0, 1) for o, r in zip(others, factors, strict=True)))
        axes = tuple(dict.fromkeys((*statement.axes, *statement.reduce)))
        name = self.temporary(f"{statement.target}_others", TensorType(dtype, tuple(a.extent for a in axes)))
        element = tuple(map(as_index, axes))
        self.statements.append(
            Statement(name, axes, element, Call("select", (same, literal(1, dtype), renamed)), others, "prod")
        )
        return multiply(seed, Read(name, element))

    def _scatter(self, statement: Statement, read: Read, gradient: Expr) -> list[Term]:
        """Return the gradient of one read as terms over the elements of its tensor."""
        axes = self.axes_of(read.tensor)
        domain = (*statement.axes, *statement.reduce)
        if statement.step is None and self._is_lookup(read):  # a turn of a recurrence compares instead
            return [self._arriving(read, gradient, domain)]
        straight = [pieces_of(index) for index in read.indices]
        if any(straight) and prod(len(p) or 1 for p in straight) <= _MOST_PIECES:
            return self._piecewise(read, gradient, domain, straight)
        inverse = invert(read.indices, tuple(map(as_index, axes)), domain)
        whole = self._term(read, gradient, axes, tuple(map(as_index, axes)), inverse)
        counts = [inverse.phases.get(n, 1) for n in range(len(axes))]
        if whole is None or prod(counts) == 1 or prod(counts) > _MOST_PHASES or not self.is_dense(whole):
            return [] if whole is None else [whole]
        terms: list[Term] = []
        for residues in itertools.product(*map(range, counts)):
            turns = tuple(
                a if c == 1 else Var(f"{a.name}_t", -(-(a.extent - b) // c))
                for a, b, c in zip(axes, residues, counts, strict=True)
            )
            if any(t.extent <= 0 for t in turns):
                continue
            element = tuple(as_index(t) * c + b for t, b, c in zip(turns, residues, counts, strict=True))
            term = self._term(read, gradient, turns, element, invert(read.indices, element, domain))
            terms.append(term or Term(turns, element, literal(0, self.tensors[read.tensor].dtype)))
        return terms

    def _is_lookup(self, read: Read) -> bool:
        """Whether data says where a read goes, and nothing else has to be asked: what it looks up is then given back by
        a scatter.
        """
        places = [index for index in read.indices if indirects(index)]
        alone = all(len(i.terms) == 1 and i.terms[0][1] == 1 and not i.const for i in places)
        wraps = all(place.wraps for index in places for place in indirects(index))
        return bool(places) and alone and wraps and not read.guards

    def _arriving(self, read: Read, gradient: Expr, domain: tuple[Var, ...]) -> Term:
        """Return the gradient of a read at places that integers name, scattered there."""
        part = self.temporary(f"d_{read.tensor}_part", self.tensors[read.tensor])
        axes = tuple(v for v in domain if v.extent > 1)
        self.statements.append(Statement(part, axes, read.indices, gradient, into="sum"))
        own = self.axes_of(read.tensor)
        element = tuple(map(as_index, own))
        return Term(own, element, Read(part, element))

    def _piecewise(
        self, read: Read, gradient: Expr, domain: tuple[Var, ...], straight: Sequence[Sequence[Piece]]
    ) -> list[Term]:
        """Return the gradient of a read that is straight in pieces, one term for each of them."""
        axes = self.axes_of(read.tensor)
        found: list[Term] = []
        for chosen in itertools.product(*(p or (None,) for p in straight)):
            places = [_place(axis, index, piece) for axis, index, piece in zip(axes, read.indices, chosen, strict=True)]
            inverse = invert([p.access for p in places], [p.value for p in places], domain)
            inverse = evolve(inverse, free=(*inverse.free, *(v for p in places for v in p.free)))
            own, element = tuple(p.axis for p in places), tuple(p.element for p in places)
            term = self._term(read, gradient, own, element, inverse)
            if term is not None:
                found.append(term if element == tuple(map(as_index, axes)) else self._spread(read.tensor, places, term))
        return found

    def _spread(self, tensor: str, places: Sequence[_Place], term: Term) -> Term:
        """Return a term over a box of elements as one over all of them, 0 outside the box.

        A sum is computed for the box alone, into a tensor of its size.
        """
        axes = self.axes_of(tensor)
        inside = tuple(Guard(as_index(a), p.start, p.start + p.axis.extent) for a, p in zip(axes, places, strict=True))
        inside = tuple(g for g in inside if not g.always)
        moved = {p.axis: as_index(a) - p.start for a, p in zip(axes, places, strict=True)}
        if not term.free:
            body = substitute_expr(term.body, moved)
            test = InRange(inside)
            whole = Call("select", (test, bounded(body, self.tensors), literal(0, self.dtype(body))))
            return Term(axes, tuple(map(as_index, axes)), whole)
        part = self.temporary(
            f"d_{tensor}_part", TensorType(self.dtype(term.body), tuple(p.axis.extent for p in places))
        )
        self._emit(part, term.axes, tuple(as_index(p.axis) for p in places), term.body, term.free)
        return Term(axes, tuple(map(as_index, axes)), Read(part, tuple(moved[p.axis] for p in places), inside))

    def _term(
        self, read: Read, gradient: Expr, axes: tuple[Var, ...], element: tuple[Index, ...], inverse: Inverse
    ) -> Term | None:
        """Return the gradient of a read at the iterations found for an element; None where there are none."""
        here = Read(read.tensor, element)
        body = substitute_expr(rebuild(gradient, lambda node: here if node == read else node), inverse.values)
        conditions, core = split(body)
        asked = [
            *inverse.guards,
            *self._beyond_bounds(read, inverse),
            *(g for c in conditions if isinstance(c, InRange) for g in c.guards),
        ]
        pinned = {
            v: as_index(0) for v in inverse.free for g in asked if g.index == as_index(v) and (g.low, g.high) == (0, 1)
        }
        guards = [Guard(substitute(g.index, pinned), g.low, g.high) for g in asked]
        if inverse.empty or not all(map(_possible, guards)):
            return None
        tests: list[Expr] = [self._match(i, v, inverse.values) for i, v in inverse.matches]
        tests += [c for c in conditions if not isinstance(c, InRange)]
        core, *tests = (substitute_expr(e, pinned) for e in (core, *tests))
        free = tuple(v for v in inverse.free if v not in pinned)
        found = solve_congruences(Summand(core, tuple(tests), tuple(guards), free))
        core, *tests = (bounded(e, self.tensors) for e in (found.core, *found.tests))
        body = attach(tests, [g for g in found.guards if not g.always], core, self.dtype(core))
        return self._counted(Term(axes, element, body, found.free))

    def _beyond_bounds(self, read: Read, inverse: Inverse) -> list[Guard]:
        """Return the guards of a read that ask for more than an element of the tensor, which there is."""
        shape = self.tensors[read.tensor].shape
        own = {Guard(index, 0, extent) for index, extent in zip(read.indices, shape, strict=True)}
        return [Guard(substitute(g.index, inverse.values), g.low, g.high) for g in read.guards if g not in own]

    def _counted(self, term: Term) -> Term:
        """Replace the sum over variables that the body does not depend on by a factor."""
        used = expr_variables(term.body)
        times = prod(v.extent for v in term.free if v not in used)
        if times == 1:
            return term
        body = multiply(literal(times, self.dtype(term.body)), term.body)
        return evolve(term, body=body, free=tuple(v for v in term.free if v in used))

    def _match(self, indirect: Indirect, value: Index, values: Mapping[Var, Index]) -> Expr:
        """Return the condition that an element of an integer tensor names a place; negative ones count from the end."""
        dtype = self.tensors[indirect.tensor].dtype
        element = bounded(Read(indirect.tensor, tuple(substitute(i, values) for i in indirect.indices)), self.tensors)
        place = Call("eq", (element, IndexValue(substitute(value, values), dtype)))
        if not indirect.wraps:
            return place
        return Call(
            "or", (place, Call("eq", (element, IndexValue(substitute(value, values) - indirect.extent, dtype))))
        )

    def _finish(self, given: Mapping[str, str], found: Mapping[str, str]) -> Adjoint:
        """Keep what the gradients need, with statements of the original program for what lies inside it."""
        original = self.program
        everything = [*(s for s in original.statements if s.target not in original.outputs), *self.statements]
        kept = live_statements(everything, tuple(found))
        wanted = {*found, *(tensor for s in kept for tensor in s.tensors_read)}
        inputs = tuple(t for t in (*original.inputs, *original.outputs, *given) if t in wanted)
        tables = {t: v for t, v in original.constants.items() if t in wanted}
        made = {s.target for s in kept}
        tensors = {t: type_ for t, type_ in self.tensors.items() if t in made or t in inputs or t in tables}
        return Adjoint(
            Program(tensors, inputs, tuple(found), tuple(kept), tables),
            {n: r for n, r in given.items() if n in inputs},
            found,
        )


@frozen
class _Place:
    """What to solve along one axis of a read: `access = value` for the elements `element`, which start at `start`."""

    access: Index
    value: Index
    axis: Var
    element: Index
    start: int = 0
    free: tuple[Var, ...] = ()


def _place(axis: Var, index: Index, piece: Piece | None) -> _Place:
    if piece is None:
        return _Place(index, as_index(axis), axis, as_index(axis))
    own = axis if piece.length == axis.extent else Var(f"{axis.name}_b", piece.length)
    step = as_index(own) if own.extent > 1 else as_index(0)
    if piece.slope:
        turn = step if piece.slope > 0 else step * -1 + (piece.count - 1)
        return _Place(piece.argument, turn + piece.first, own, step + piece.lowest, piece.lowest)
    run = Var(f"{axis.name}_e", piece.count)
    value = (as_index(run) if run.extent > 1 else as_index(0)) + piece.first
    free = (run,) if run.extent > 1 else ()
    return _Place(piece.argument, value, own, as_index(piece.lowest), piece.lowest, free)


def _possible(guard: Guard) -> bool:
    low, high = guard.index.bounds()
    return high >= guard.low and low < guard.high


def _is_light(expr: Expr) -> bool:
    """Whether an expression is worth computing wherever it is read: an element, perhaps times a constant."""
    if isinstance(expr, (Read, Const)):
        return True
    return (
        isinstance(expr, Call)
        and expr.fn in ("neg", "mul", "div")
        and all(_is_light(a) for a in expr.args)
        and (sum(isinstance(a, Read) for a in walk(expr)) <= 1)
    )
