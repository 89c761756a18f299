"""Patterns over expressions, matched through the definitions of reads.

A pattern is written as the expression that it matches. `pointwise` and `reduction` match a statement, and also a read
of an intermediate tensor, as its definition at the element that is read. Captures are over the axes of the first
statement; a repeated name matches equal expressions alone.

    x, n = element("x"), number("n")
    mean = pointwise(reduction("sum", x, "total") / n)

    t[j] = sum_r a[j, r];   m[i] = t[i] / 8      ->      x = a[i, r],   n = 8,   total = t[i] with its statement
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from attrs import frozen

from ...ir import (
    Call,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    InRange,
    Read,
    Statement,
    Var,
    as_index,
    factors,
    guarded_read,
    substitute_expr,
)
from .def_use import DefUse, axis_values
from .match import DefinedElement, Match


class Pattern:
    """Base of patterns."""

    def match(self, expr: Expr, known: Match) -> Match | None:
        """Return the match with captures of an expression, None without one."""
        raise NotImplementedError

    def may_match(self, expr: Expr) -> bool:
        """Return False where functions alone show that an expression differs."""
        return True

    def __add__(self, other: Pattern) -> Pattern:
        return fn("add", self, other)

    def __sub__(self, other: Pattern) -> Pattern:
        return fn("sub", self, other)

    def __mul__(self, other: Pattern) -> Pattern:
        return fn("mul", self, other)

    def __truediv__(self, other: Pattern) -> Pattern:
        return fn("div", self, other)


@frozen
class Capture(Pattern):
    """Any expression that is `accepted`."""

    name: str
    accepts: Callable[[Expr], bool]

    def match(self, expr: Expr, known: Match) -> Match | None:
        return known.bind(self.name, expr) if self.accepts(expr) else None


def anything(name: str = "") -> Pattern:
    """Return the pattern of any expression."""
    return Capture(name, lambda expr: True)


def element(name: str = "") -> Pattern:
    """Return the pattern of an unguarded read."""
    return Capture(name, lambda expr: isinstance(expr, Read) and not expr.guards)


def read_of(tensor: str) -> Pattern:
    """Return the pattern of any read of a tensor."""
    return Capture("", lambda expr: isinstance(expr, Read) and expr.tensor == tensor)


def number(name: str = "", value: float | None = None) -> Pattern:
    """Return the pattern of a constant, or of one value."""
    return Capture(name, lambda expr: isinstance(expr, Const) and value in (None, expr.value))


def position(name: str = "") -> Pattern:
    """Return the pattern of an index as a value."""
    return Capture(name, lambda expr: isinstance(expr, IndexValue))


def bounds(name: str = "") -> Pattern:
    """Return the pattern of a condition on indices."""
    return Capture(name, lambda expr: isinstance(expr, InRange))


@frozen
class CallPattern(Pattern):
    """A scalar function of operands."""

    fn: str
    args: tuple[Pattern, ...]

    def may_match(self, expr: Expr) -> bool:
        return (
            isinstance(expr, Call)
            and expr.fn == self.fn
            and all(p.may_match(a) for p, a in zip(self.args, expr.args, strict=True))
        )

    def match(self, expr: Expr, known: Match) -> Match | None:
        if not isinstance(expr, Call) or expr.fn != self.fn:
            return None
        found: Match | None = known
        for pattern, arg in zip(self.args, expr.args, strict=True):
            found = None if found is None else pattern.match(arg, found)
        return found


def fn(name: str, *args: Pattern) -> Pattern:
    """Return the pattern of a scalar function."""
    return CallPattern(name, args)


@frozen
class Either(Pattern):
    """The first of several patterns that matches."""

    options: tuple[Pattern, ...]

    def match(self, expr: Expr, known: Match) -> Match | None:
        return next((found for p in self.options if (found := p.match(expr, known)) is not None), None)


@frozen
class Factor(Pattern):
    """A product with a factor that matches and occurs once."""

    inner: Pattern

    def match(self, expr: Expr, known: Match) -> Match | None:
        parts = factors(expr)
        for part in parts if len(parts) > 1 else ():
            if parts.count(part) == 1 and (found := self.inner.match(part, known)) is not None:
                return found
        return None


@frozen
class Converted(Pattern):
    """A pattern in any number of conversions."""

    inner: Pattern

    def match(self, expr: Expr, known: Match) -> Match | None:
        while isinstance(expr, Cast):
            expr = expr.arg
        return self.inner.match(expr, known)


@frozen
class Guarded(Pattern):
    """A read that a constant replaces where it equals another constant.

    `name` captures the whole expression."""

    inner: Pattern
    name: str = ""

    def match(self, expr: Expr, known: Match) -> Match | None:
        read, found = guarded_read(expr), known.bind(self.name, expr)
        return None if read is None or found is None else self.inner.match(read, found)


@frozen
class Defined(Pattern):
    """A statement, or a read of its result.

    `combines` are possible reductions; None is that of pointwise statements."""

    combines: Collection[str | None]
    body: Pattern
    name: str = ""

    def match(self, expr: Expr, known: Match) -> Match | None:
        found = known.index.definition(expr)
        if found is None or found.combine not in self.combines or not isinstance(expr, Read):
            return None
        if not self.body.may_match(found.body):
            return None
        values = axis_values(found, expr.indices)
        bound = None if values is None else known.bind(self.name, DefinedElement(expr, found, values))
        if bound is None or values is None:
            return None
        return self.body.match(substitute_expr(found.body, {**values, **_same_rows(found, known.root)}), bound)

    def match_statement(self, statement: Statement, index: DefUse | None = None) -> Match | None:
        """Return the match of a statement, without an index through no reads."""
        if statement.combine not in self.combines or statement.into is not None or statement.step is not None:
            return None
        return self.body.match(statement.body, Match(statement, index or DefUse.of_nothing()))


@frozen
class Scattered:
    """A scatter with one of some combiners; without `atomic`, both forms match."""

    combines: Collection[str]
    atomic: bool | None = False

    def match_statement(self, statement: Statement, index: DefUse) -> Match | None:
        """Return the match of a statement."""
        form = self.atomic in (None, statement.atomic)
        return Match(statement, index) if statement.into in self.combines and form else None


def pointwise(body: Pattern, name: str = "") -> Defined:
    """Return the pattern of an elementwise statement, or of its result."""
    return Defined((None,), body, name)


def converted_element(name: str = "") -> Pattern:
    """Return the pattern of an unguarded read, or of its defining conversion."""
    conversion = Capture(name, lambda e: isinstance(e, Cast) and isinstance(e.arg, Read) and not e.arg.guards)
    return Either((pointwise(conversion), element(name)))


def reduction(combine: str | Collection[str], body: Pattern, name: str = "") -> Defined:
    """Return the pattern of a reduction, or of its result."""
    return Defined((combine,) if isinstance(combine, str) else combine, body, name)


def _same_rows(statement: Statement, root: Statement) -> Mapping[Var, Index]:
    """Return the reduced axes of a statement as those of another one that are as long."""
    pairs = list(zip(statement.reduce, root.reduce, strict=False))
    same = len(statement.reduce) == len(root.reduce) and all(a.extent == b.extent for a, b in pairs)
    return {a: as_index(b) for a, b in pairs} if same else {}
