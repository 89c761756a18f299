"""Mixed-radix sums: decomposition of an index into digits, and back.

`7*a + b` with `b < 7` has the digits a and b, `(base // d) % m` is a digit of its base; reshapes, splits and strides
are made of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from attrs import frozen

from .guard import Guard
from .index import FloorDiv, Index, Mod, Primary, Var, as_index, floordiv, modulo


@frozen
class Digit:
    """Digit of a base: `(base // weight) % size` has a value.

    Without a size, it is all that is left of the base.
    """

    weight: int
    size: int
    value: Index

    def of(self, base: Index) -> Index:
        """Return the digit of a base."""
        quotient = floordiv(base, self.weight)
        return modulo(quotient, self.size) if self.size else quotient


def digit_of(primary: FloorDiv | Mod, value: Index) -> tuple[Index, Digit]:
    """Return the base and the digit that a primary denotes."""
    if isinstance(primary, FloorDiv):
        return primary.num, Digit(primary.den, 0, value)
    inner = primary.num
    if (
        len(inner.terms) == 1
        and inner.const == 0
        and inner.terms[0][1] == 1
        and isinstance(inner.terms[0][0], FloorDiv)
    ):
        quotient = inner.terms[0][0]
        return quotient.num, Digit(quotient.den, primary.den, value)
    return inner, Digit(1, primary.den, value)


def elimination_key(var: Var, terms: Mapping[Primary, int]) -> tuple[int, int, str]:
    """Return sort keys of solving a sum for one variable.

    They are the number of values of the other variables that remain, then the shortness of the variable.
    """
    others = [(v, f) for v, f in terms.items() if v != var and isinstance(v, Var)]
    step = max((abs(terms[var]) // gcd(terms[var], f) for _, f in others), default=1)
    return -(-prod(v.extent for v, _ in others) // step), -var.extent, var.name


def digits_of(left: Index, right: Index) -> tuple[list[tuple[Primary, Index]], list[Guard]] | None:
    """Solve a mixed-radix sum for its primaries; None for any other sum.

    Its value determines the primaries one by one.
    """
    rest = right - left.const
    terms: list[tuple[Primary, int, int, bool]] = []
    for primary, factor in left.terms:
        low, high = primary.bounds()
        if low != 0:
            return None
        # A negative factor runs the primary backwards: f*a = f*(s-1) + |f|*(s-1-a).
        rest = rest - (factor * high if factor < 0 else 0)
        terms.append((primary, abs(factor), high + 1, factor < 0))
    terms.sort(key=lambda term: -term[1])
    spans = [1]
    for _, factor, size, _ in reversed(terms):
        if factor < spans[0]:
            return None
        spans.insert(0, spans[0] + factor * (size - 1))
    guards = [Guard(rest, 0, spans[0])]
    parts: list[tuple[Primary, Index]] = []
    for (primary, factor, size, backwards), span in zip(terms, spans[1:], strict=True):
        digit = floordiv(rest, factor)
        rest = modulo(rest, factor)
        guards.append(Guard(rest, 0, span))
        parts.append((primary, (as_index(size - 1) - digit) if backwards else digit))
    return parts, guards
