"""Adjoint of a recurrence: a recurrence over its iterations in reverse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, evolve

from ...ir import (
    Index,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    substitute_expr,
)
from .terms import StatementTerms, Term


class NoReverse(Exception):
    """A recurrence whose adjoint has no form as a recurrence."""


@define
class Recurrences(StatementTerms):
    """Recurrences in reverse."""

    def reverse(self, step: Var, run: Sequence[Statement], varying: set[str], parts: dict[str, list[Term]]) -> None:
        """Emit the adjoint of a recurrence.

        It is a recurrence over the iterations in reverse. An iteration's statement reads values of that iteration or of
        earlier ones, so that in reverse the gradient of an element is complete at the iteration that wrote it.
        """
        read = {tensor for s in run for tensor in s.tensors_read}
        states = [t for t in dict.fromkeys(s.target for s in reversed(run)) if t in read]
        for tensor in dict.fromkeys(s.target for s in run):
            if tensor not in read:
                self.settle(tensor, parts)
        reached = self._reached_states(run, states, parts)
        names = {tensor: self.fresh(f"d_{tensor}") for tensor in states if tensor in reached}
        first = {tensor: self._first_row(tensor, step, run) for tensor in names}
        for tensor, name in names.items():
            self._seed_rows(name, tensor, first[tensor], self.tensors[tensor].shape[0] - first[tensor])
        for statement in reversed(run):
            if statement.target in self.seeds:
                for tensor, terms in self.pull(statement, varying).items():
                    parts.setdefault(tensor, []).extend(terms)
        back = Var(f".back{len(self.statements)}", step.extent)
        for tensor, name in names.items():
            later_rows = Var(f".behind{len(self.statements)}", self.tensors[name].shape[0] - step.extent)
            self._at_rows(name, tensor, parts[tensor], later_rows, as_index(later_rows) + step.extent, first[tensor])
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
        """Store the gradient of some rows of a tensor in a new tensor."""
        rows, *rest = self.axes_of(tensor)
        self.tensors[name] = TensorType(self.tensors[tensor].dtype, (count, *self.tensors[tensor].shape[1:]))
        self.seeds[tensor] = (rows, *rest), Read(name, (as_index(rows) - first, *map(as_index, rest)))

    def _reached_states(
        self, run: Sequence[Statement], states: Sequence[str], parts: Mapping[str, list[Term]]
    ) -> set[str]:
        """Return the states that a gradient reaches, from outside of the loop or through other states."""
        found = {t for t in states if parts.get(t)} | {s.target for s in run if s.target in self.seeds}
        before = -1
        while len(found) > before:
            before = len(found)
            found |= {t for s in run if s.target in found for t in s.tensors_read if t in states}
        return found

    def _first_row(self, tensor: str, step: Var, run: Sequence[Statement]) -> int:
        """Return the row that the first iteration writes.

        Raises `NoReverse` where iterations do not write a row each, one after another.
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
