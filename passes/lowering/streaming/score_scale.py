"""Scale of scores, folded into the exponents of their weights.

    z = c * p;   w = exp(z - max z)   ->   m = max p;   w = exp2(p * k - m * k)    with k = c * log2(e)

A weight takes one multiply-add and one power of two. The maximum and the shift of a row are numbers of the row.
"""

from __future__ import annotations

from math import e, inf, log2

from attrs import evolve, frozen

from ....ir import Convert, DType, Literal, Op, RegisterRead, Value

#: Factor of an exponent of e as an exponent of two.
LOG2_E = log2(e)


def split_scale(value: Value) -> tuple[float, Value]:
    """Return a positive factor of a score, and the score without it.

    Masked scores remain -inf:

    select(mask, c * p, -inf) -> c, select(mask, p, -inf)
    """
    if isinstance(value, Convert) and value.dtype.is_float:
        factor, inner = split_scale(value.arg)
        return factor, evolve(value, arg=inner)
    if not isinstance(value, Op):
        return 1.0, value
    if value.fn == "mul":
        for literal, other in (value.args, value.args[::-1]):
            if isinstance(literal, Literal) and 0 < literal.value < inf:
                factor, inner = split_scale(other)
                return factor * literal.value, inner
    if value.fn == "select" and isinstance(value.args[2], Literal) and value.args[2].value == -inf:
        factor, inner = split_scale(value.args[1])
        return factor, evolve(value, args=(value.args[0], inner, value.args[2]))
    return 1.0, value


@frozen
class ScaledScores:
    """Scores of a part in registers: `held` times `factor`."""

    held: RegisterRead
    factor: float

    @property
    def value(self) -> Value:
        """The scores."""
        return _times(self.held, self.factor)

    def ratio(self, before: RegisterRead, shift: RegisterRead) -> Value:
        """Return the factor of sums whose shift was `before`."""
        difference = Op("sub", (before, shift), before.dtype)
        return Op("near_exp2", (_times(difference, self.factor * LOG2_E),), before.dtype)

    def weight(self, score: Value, factor: float, shift: RegisterRead, dtype: DType) -> Value:
        """Return the weight of a score, a value times its factor."""
        value, less = (v if v.dtype is dtype else Convert(v, dtype) for v in (score, shift))
        exponent = _times(value, factor * LOG2_E), _times(less, self.factor * LOG2_E)
        return Op("near_exp2", (Op("sub", exponent, dtype),), dtype)


def _times(value: Value, factor: float) -> Value:
    return value if factor == 1 else Op("mul", (value, Literal(factor, value.dtype)), value.dtype)
