"""Gradients as sums of terms.

Terms are collected from all readers of a tensor, joined where that saves work, and written as statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold

from attrs import define, evolve, field

from ....ir import (
    DType,
    Expr,
    Index,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    dtype_of,
    expr_variables,
    substitute_expr,
)
from ...language import AxisClass, canonicalise, classify_axes, is_complex, unused_name
from ..derivatives import add
from .conditions import hoist
from .deviations import is_sum_of_deviations
from .terms import Term, split_ranges


@define
class Sums:
    """A program being extended by statements that add terms up."""

    program: Program
    tensors: dict[str, TensorType] = field(factory=dict)
    statements: list[Statement] = field(factory=list)

    def axes_of(self, tensor: str) -> tuple[Var, ...]:
        """Return variables for the dims of a tensor.

        No declaration can give their names.
        """
        return tuple(Var(f".{n}", extent) for n, extent in enumerate(self.tensors[tensor].shape))

    def is_whole(self, tensor: str, term: Term) -> bool:
        return term.element == tuple(map(as_index, self.axes_of(tensor)))

    def define(self, name: str, tensor: str, terms: Sequence[Term]) -> None:
        """Emit statements that add terms up."""
        axes = self.axes_of(tensor)
        self.tensors[name] = self.tensors[tensor]
        element = tuple(map(as_index, axes))
        if all(t.element == element for t in terms) and (parts := split_ranges(terms, self.contracts)):
            self._emit_pieces(name, parts)
        else:
            self.add_up(name, tensor, axes, element, terms)

    def add_up(
        self, name: str, tensor: str, axes: tuple[Var, ...], element: tuple[Index, ...], terms: Sequence[Term]
    ) -> None:
        """Emit statements that add terms up at an element, for all axes."""
        terms = [t for t in terms if not self._vanishes(t)] or terms[:1]
        pieces = [t for t in terms if t.element != element]
        whole = self._join_terms([t for t in terms if t.element == element])
        if not whole:
            self._emit_pieces(name, pieces)
            return
        values = [self._value(name, term, alone=not pieces and len(whole) == 1) for term in whole]
        if pieces:
            part = self.temporary(f"{name}_part", self.tensors[tensor])
            self._emit_pieces(part, pieces)
            values.append(Read(part, element))
        if len(whole) == 1 and not pieces and whole[0].free and values[0] is whole[0].body:
            self._emit(name, axes, element, whole[0].body, whole[0].free)
            return
        dtype = self.tensors[tensor].dtype
        self._emit(name, axes, element, fold(lambda a, b: add(a, b, dtype), values))

    def _vanishes(self, term: Term) -> bool:
        """Return whether a term is zero, as it adds up deviations from their mean."""
        return bool(term.free) and is_sum_of_deviations(
            hoist(term.body, frozenset(term.free))[0], term.free, self.program
        )

    def _join_terms(self, terms: Sequence[Term]) -> list[Term]:
        """Add up terms that are summed over equal ranges, except contractions, which stay separate kernels."""
        found: list[Term] = []
        for term in terms:
            for number, other in enumerate(found):
                same_extents = [v.extent for v in other.free] == [v.extent for v in term.free]
                if same_extents and not self.contracts(term) and not self.contracts(other):
                    renamed = substitute_expr(term.body, dict(zip(term.free, other.free, strict=True)))
                    dtype = self.dtype(term.body)
                    found[number] = evolve(other, body=add(other.body, renamed, dtype))
                    break
            else:
                found.append(term)
        return found

    def _value(self, name: str, term: Term, alone: bool) -> Expr:
        """Return a term as an expression; a sum becomes a temporary over the axes it depends on; fixed factors stay
        outside.
        """
        if not term.free:
            return term.body
        moving, fixed = hoist(term.body, frozenset(term.free))
        used = tuple(a for a in term.axes if a in expr_variables(moving) and a.extent > 1)
        if alone and fixed is None and len(used) == sum(a.extent > 1 for a in term.axes):
            return term.body
        element = tuple(map(as_index, used))
        part = self.temporary(f"{name}_sum", TensorType(self.dtype(moving), tuple(a.extent for a in used)))
        self._emit(part, used, element, moving, term.free)
        return Read(part, element) if fixed is None else fixed(Read(part, element))

    def _emit_pieces(self, name: str, pieces: Sequence[Term]) -> None:
        for piece in pieces:
            self._emit(name, piece.axes, piece.element, piece.body, piece.free)

    def _emit(
        self, name: str, axes: tuple[Var, ...], element: tuple[Index, ...], body: Expr, free: tuple[Var, ...] = ()
    ) -> None:
        axes = tuple(a for a in axes if a.extent > 1)
        self.statements.append(Statement(name, axes, element, body, free, "sum" if free else None))

    def contracts(self, term: Term) -> bool:
        return bool(term.free) and is_complex(
            Statement("", term.axes, term.element, term.body, term.free, "sum"), self.program.constants
        )

    def is_dense(self, term: Term) -> bool:
        """Return whether a term is a matrix product.

        Its work then outgrows its data in both directions.
        """
        statement = canonicalise(Statement("", term.axes, term.element, term.body, term.free, "sum"))
        return self.contracts(term) and {AxisClass.M, AxisClass.N} <= set(
            classify_axes(statement, self.program.constants).values()
        )

    def dtype(self, expr: Expr) -> DType:
        return dtype_of(expr, self.tensors)

    def fresh(self, name: str) -> str:
        return unused_name(name, self.tensors)

    def temporary(self, name: str, type_: TensorType) -> str:
        name = self.fresh(name)
        self.tensors[name] = type_
        return name
