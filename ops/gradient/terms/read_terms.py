"""Gradient of one read, as terms over the elements of its tensor.

The access map is inverted (`invert`), so that the sum runs over its free variables: a broadcast becomes a sum, a sum a
broadcast, a strided window a sum over its taps, guards stay. A read at an integer tensor's value becomes a scatter.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod

from attrs import define, evolve, frozen

from ....ir import (
    Call,
    Expr,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Inverse,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_variables,
    indirects,
    invert,
    rebuild,
    substitute,
    substitute_expr,
)
from ..derivatives import literal, multiply
from .conditions import add_bounds_guards, attach, split
from .pieces import Piece, pieces_of
from .stride_residues import Summand, solve_congruences
from .sums import Sums
from .terms import Term

#: Most residue classes with a statement each; beyond it one statement tests the residue.
_MOST_PHASES = 16
#: Most straight pieces of a read that are inverted separately.
_MOST_PIECES = 27


@define
class ReadTerms(Sums):
    """Contributions of a reading statement to the gradient of a tensor."""

    def scatter(self, statement: Statement, read: Read, gradient: Expr) -> list[Term]:
        """Return the gradient of one read as terms over its tensor's elements."""
        axes = self.axes_of(read.tensor)
        domain = (*statement.axes, *statement.reduce)
        if statement.step is None and self._is_lookup(read):  # an iteration of a recurrence compares instead
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
        """Return whether data alone determines the place of a read: a scatter is then its adjoint."""
        places = [index for index in read.indices if indirects(index)]
        alone = all(len(i.terms) == 1 and i.terms[0][1] == 1 and not i.const for i in places)
        wraps = all(place.wraps for index in places for place in indirects(index))
        return bool(places) and alone and wraps and not read.guards

    def _arriving(self, read: Read, gradient: Expr, domain: tuple[Var, ...]) -> Term:
        """Return the gradient of a read at places given by integers, scattered there."""
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
                found.append(term if element == tuple(map(as_index, axes)) else self._embed(read.tensor, places, term))
        return found

    def _embed(self, tensor: str, places: Sequence[_Place], term: Term) -> Term:
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
            whole = Call("select", (test, add_bounds_guards(body, self.tensors), literal(0, self.dtype(body))))
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
        core, *tests = (add_bounds_guards(e, self.tensors) for e in (found.core, *found.tests))
        body = attach(tests, [g for g in found.guards if not g.always], core, self.dtype(core))
        return self._count_constant_sums(Term(axes, element, body, found.free))

    def _beyond_bounds(self, read: Read, inverse: Inverse) -> list[Guard]:
        """Return the guards of a read beyond the bounds of its tensor, which the element satisfies."""
        shape = self.tensors[read.tensor].shape
        own = {Guard(index, 0, extent) for index, extent in zip(read.indices, shape, strict=True)}
        return [Guard(substitute(g.index, inverse.values), g.low, g.high) for g in read.guards if g not in own]

    def _count_constant_sums(self, term: Term) -> Term:
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
        element = add_bounds_guards(
            Read(indirect.tensor, tuple(substitute(i, values) for i in indirect.indices)), self.tensors
        )
        value = substitute(value, values)
        place = Call("eq", (element, IndexValue(value, dtype)))
        if not indirect.wraps:
            return place
        place = Call("or", (place, Call("eq", (element, IndexValue(value - indirect.extent, dtype)))))
        inside = Guard(value, 0, indirect.extent)
        return place if inside.always else Call("and", (InRange((inside,)), place))


@frozen
class _Place:
    """Equation along one axis of a read: `access = value` for the elements `element`, which start at `start`."""

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
