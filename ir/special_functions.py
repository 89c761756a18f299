"""Special functions in NumPy: of gamma, Bessel and divisors.

Sources: Abramowitz and Stegun, Handbook of Mathematical Functions, 1964: 6.3.18 (digamma), 6.4.10 (polygamma as a zeta
function), 9.6.10 and 9.7.1 (Bessel); Johansson, Numerical Algorithms 69 (2015): the zeta function by Euler-Maclaurin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import frozen


@frozen
class SpecialSeries:
    """Coefficients of series, and arguments from which asymptotic ones are exact.

    `zeta` has B(2k) / (2k)! and `digamma` B(2k) / (2k) of Bernoulli numbers B, from k = 1 on. Functions of gamma get to
    `gamma_start` in steps of 1. Bessel functions have `power_terms` below `bessel_start`, and `inverse_terms` above.
    """

    zeta: tuple[float, ...] = (
        1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    )  # fmt: skip
    digamma: tuple[float, ...] = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
    gamma_start: float = 12.0
    bessel_start: float = 20.0
    power_terms: int = 64
    inverse_terms: int = 24


SERIES = SpecialSeries()


def _elementwise(function: Callable[..., float]) -> Callable[..., Any]:
    """Return a function of arrays, in the type of its last operand."""

    def apply(*operands: Any) -> Any:
        last = np.asarray(operands[-1])
        kind = last.dtype if last.dtype.kind == "f" else np.dtype(np.float64)
        return np.vectorize(function, otypes=[np.float64])(*operands).astype(kind)

    return apply


def _log_gamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _inverse_power(q: float, s: float) -> float:
    try:
        return math.pow(q, -s)
    except OverflowError:
        return math.inf


def _hurwitz(s: float, q: float) -> float:
    """Return the sum of `(q + k) ** -s` over all k, for a positive q."""
    total = 0.0
    while q < SERIES.gamma_start:
        total, q = total + _inverse_power(q, s), q + 1
    power = _inverse_power(q, s)
    total += q * power / (s - 1) + power / 2
    term, order = s * power / q, s
    for factor in SERIES.zeta:
        total += factor * term
        term, order = term * (order + 1) * (order + 2) / (q * q), order + 2
    return total


def _digamma(x: float) -> float:
    if x == 0 or math.isinf(x):
        return math.copysign(math.inf, -x) if x == 0 else x if x > 0 else math.nan
    found = 0.0
    if x < 0:
        if x == math.floor(x):
            return math.nan
        found, x = -math.pi / math.tan(math.pi * math.fmod(x, 1)), 1 - x
    while x < SERIES.gamma_start:
        found, x = found - 1 / x, x + 1
    square = 1 / (x * x)
    return found + math.log(x) - 0.5 / x - sum(f * square ** (k + 1) for k, f in enumerate(SERIES.digamma))


def _polygamma(n: float, x: float) -> float:
    if math.isnan(x) or n == 0:
        return math.nan if math.isnan(x) else _digamma(x)
    factor, s = math.gamma(n + 1) * (1 if n % 2 else -1), n + 1
    if math.isinf(x):
        return 0.0 if x > 0 else math.nan
    if x <= 0 and x == math.floor(x):
        return factor * math.inf
    if x > 0:
        return factor * _hurwitz(s, x)
    rest = -x - math.floor(-x)
    below = _hurwitz(s, rest) - _hurwitz(s, 1 - x)
    return factor * (_hurwitz(s, 1 - rest) + (-below if s % 2 else below))


def _scaled_bessel(v: float, x: float) -> float:
    """Return the modified Bessel function of the first kind and an integer order, times `exp(-abs(x))`."""
    size, sign = abs(x), -1.0 if x < 0 and v % 2 else 1.0
    if math.isnan(x) or math.isinf(x):
        return math.nan if math.isnan(x) else 0.0
    if size <= SERIES.bessel_start:
        total = term = (size / 2) ** v / math.gamma(v + 1)
        for k in range(1, SERIES.power_terms):
            term *= size * size / (4 * k * (k + v))
            total += term
        return float(sign * total * math.exp(-size))
    total = term = 1.0
    for k in range(1, SERIES.inverse_terms):
        term *= ((2 * k - 1) ** 2 - 4 * v * v) / (8 * k * size)
        total += term
    return sign * total / math.sqrt(2 * math.pi) / math.sqrt(size)


log_gamma = _elementwise(_log_gamma)
polygamma = _elementwise(_polygamma)
scaled_bessel = _elementwise(_scaled_bessel)
