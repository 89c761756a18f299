"""Contributions of a statement to the gradients of its operands.

`max` and `min` pass the gradient to the first of equal elements (row-major over the reduced axes), `prod` multiplies by
the product of all others, `logsumexp` by a term's share of the sum of exponentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from attrs import define, evolve, field

from ....ir import (
    COMBINERS,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Guard,
    IndexValue,
    InRange,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    linearise,
    row_major,
    substitute,
    substitute_expr,
    walk,
)
from ..derivatives import differentiate, literal, multiply
from .read_terms import ReadTerms
from .terms import Term

#: Element types for the position of an extremum among its terms: the narrowest that has a number for each.
POSITION_TYPES = (DType.U8, DType.I32, DType.I64)


@define
class StatementTerms(ReadTerms):
    """Gradients of tensors found so far, and the contributions of statements."""

    seeds: dict[str, tuple[tuple[Var, ...], Expr]] = field(factory=dict)  # the gradient of a tensor at an element

    def result_gradient(self, name: str, result: str) -> Term:
        axes = self.axes_of(result)
        element = tuple(map(as_index, axes))
        return Term(axes, element, Read(name, element))

    def settle(self, tensor: str, parts: Mapping[str, list[Term]]) -> bool:
        """Finish the gradient of a tensor; return whether there is one.

        All readers of the tensor have been processed.
        """
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

    def pull(self, statement: Statement, varying: set[str]) -> dict[str, list[Term]]:
        """Return the contributions of a statement by tensor."""
        axes, seed = self.seeds[statement.target]
        seed = substitute_expr(seed, dict(zip(axes, statement.write, strict=True)))
        value = Read(statement.target, statement.write) if statement.is_pointwise else None
        if statement.combine in ("max", "min"):
            seed = self._select_first(statement, seed)
        elif statement.combine == "prod":
            seed = self._times_others(statement, seed)
        elif statement.combine == "logsumexp":
            seed = self._by_share(statement, seed)
        elif statement.into in ("max", "min"):
            seed = self._first_to_arrive(statement, seed)
        elif statement.into == "prod":
            seed = self._times_others(statement, seed)
        elif arriving := statement.arrival_guards(self.tensors[statement.target].shape):
            seed = Call("select", (InRange(arriving), seed, literal(0, self.dtype(seed))))
        found: dict[str, list[Term]] = {}
        for read, gradient in differentiate(statement.body, seed, self.tensors, value).items():
            if read.tensor in varying:
                found.setdefault(read.tensor, []).extend(self.scatter(statement, read, gradient))
        return found

    def _select_first(self, statement: Statement, seed: Expr) -> Expr:
        """Let the gradient of an extremum reach the first position where it is attained."""
        shape, extents = (tuple(a.extent for a in axes) for axes in (statement.axes, statement.reduce))
        position = self.temporary(f"{statement.target}_position", TensorType(DType.I64, shape))
        element = tuple(map(as_index, statement.axes))
        self.statements.append(
            Statement(position, statement.axes, element, statement.body, statement.reduce, f"arg{statement.combine}")
        )
        kept = next(d for d in POSITION_TYPES if prod(extents) - 1 <= d.element.highest)
        place = self.temporary(f"{statement.target}_place", TensorType(kept, shape))
        self.statements.append(Statement(place, statement.axes, element, Cast(kept, Read(position, element))))
        own = IndexValue(linearise([as_index(r) for r in statement.reduce], row_major(extents)), kept)
        return Call("select", (Call("eq", (Read(place, element), own)), seed, literal(0, self.dtype(seed))))

    def _by_share(self, statement: Statement, seed: Expr) -> Expr:
        """Let the gradient of a logarithm of a sum of exponentials reach each term by its share of that sum; a term
        that adds nothing gets none.
        """
        dtype = self.dtype(seed)
        whole = Read(statement.target, statement.write)
        nothing = Call("eq", (statement.body, literal(COMBINERS["max"].identity(dtype), dtype)))
        share = Call("exp", (Call("sub", (statement.body, whole)),))
        return Call("select", (nothing, literal(0, dtype), multiply(seed, share)))

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
        """Multiply by the product of all other factors, computed without dividing by this one; of a scatter, by those
        that arrive at the same element.
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
            offsets = [index - substitute(index, values) for index in statement.write]
            meets = tuple(dict.fromkeys(g for g in (Guard(i, 0, 1) for i in offsets) if not g.always))
            renamed = Call("select", (InRange(meets), renamed, literal(1, dtype))) if meets else renamed
        same = InRange(tuple(Guard(as_index(o) - r, 0, 1) for o, r in zip(others, factors, strict=True)))
        axes = tuple(dict.fromkeys((*statement.axes, *statement.reduce)))
        name = self.temporary(f"{statement.target}_others", TensorType(dtype, tuple(a.extent for a in axes)))
        element = tuple(map(as_index, axes))
        self.statements.append(
            Statement(name, axes, element, Call("select", (same, literal(1, dtype), renamed)), others, "prod")
        )
        return multiply(seed, Read(name, element))


def _is_light(expr: Expr) -> bool:
    """Return whether an expression is worth recomputing at each reader: an element, perhaps times a constant."""
    if isinstance(expr, (Read, Const)):
        return True
    return (
        isinstance(expr, Call)
        and expr.fn in ("neg", "mul", "div")
        and all(_is_light(a) for a in expr.args)
        and (sum(isinstance(a, Read) for a in walk(expr)) <= 1)
    )
