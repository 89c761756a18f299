"""Tolerances of comparisons: the errors that rounding explains.

The tolerance is derived, not chosen. Rounding errors of a sum of `n` terms of random sign grow like the square root of
`n`, and so do those of `n` consecutive operations that each round once more (N. J. Higham, "Accuracy and
Stability of Numerical Algorithms", section 2.8: the rule of thumb that replaces a bound by its square root).
"""

from __future__ import annotations

import math
from math import prod

from ..ir import MATH_MODES, Call, Cast, DType, Expr, FusedGroup, walk

#: Accepted multiple of the expected rounding error.
_MARGIN = 8.0


def epsilon(dtype: DType) -> float:
    """Return the distance from 1 to the next number.

    0 for types that do not round.
    """
    return dtype.element.epsilon


def tolerance(
    dtype: DType, terms: int, operations: int = 1, narrowest: DType | None = None, products: float = 0.0
) -> float:
    """Return the relative error that rounding explains.

    The computation accumulates `terms` terms and passes through `operations` operations. Half precision is accumulated
    in single, and rounded once per operation where values are stored; `narrowest` is the type that intermediate values
    are stored in, where it is another one, `products` the distance from 1 to the next number that products distinguish,
    where they are computed with fewer digits. Integers are exact.
    """
    if not dtype.is_float:
        return 0.0
    stored = max(epsilon(dtype), epsilon(narrowest or dtype), products)
    return _MARGIN * (epsilon(dtype.accumulator) * math.sqrt(max(terms, 1)) + stored * math.sqrt(max(operations, 1)))


def group_tolerance(form: FusedGroup, tensor: str) -> float:
    """Return the relative error that rounding explains in an output."""
    terms = sum(prod(v.extent for v in r.reduce) for s in form.segments for r in s.reductions)
    operations = sum(_calls(body) for s in form.segments for body in s.expressions)
    dtype = form.tensors[tensor].dtype
    stored = [form.tensors[t].dtype for t in form.shared]
    stored += [n.dtype for s in form.segments for body in s.expressions for n in walk(body) if isinstance(n, Cast)]
    narrow = max((kind for kind in stored if kind.is_float), key=epsilon, default=dtype)
    modes = [MATH_MODES[r.math].epsilon for s in form.segments for r in s.reductions if r.math]
    return tolerance(dtype, terms, operations, narrow, max(modes, default=0.0))


def _calls(expr: Expr) -> int:
    return 1 + sum(_calls(a) for a in expr.args) if isinstance(expr, Call) else 1
