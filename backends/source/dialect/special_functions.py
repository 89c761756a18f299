"""Helpers for special functions that C does not have.

They are those of `ir/special_functions.py`, in the type of the operands. Orders are integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....ir import SERIES, DType


def special_helpers(dtype: DType, kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, parameters and body of each helper for a float type."""
    suffix = "f" if dtype is DType.F32 else ""

    def number(value: float) -> str:
        return f"{value!r}{suffix}"

    pi, far = number(math.pi), number(SERIES.gamma_start)
    yield "hurwitz", "aq", _hurwitz(kind, far, [number(v) for v in SERIES.zeta])
    yield "digamma", "x", _digamma(kind, far, pi, [number(v) for v in SERIES.digamma])
    yield "polygamma", "ax", _polygamma(kind, dtype)
    yield "bessel_ie", "ax", _bessel(kind, number(SERIES.bessel_start), number(math.sqrt(2 * math.pi)))


#: Binary logarithm of the complementary error function of a, over -a: coefficients of 1, a, a ** 2, ... Fits of the
#: least greatest error: in [0, 4] of the function, a part in a million; in [0, 9.3] relative to it, 3 in 100,000.
_LOG2_NEAR_ERFC = (
    1.62794673, 0.917970955, 0.150206938, -0.0313445739,
    0.00367210899, 2.12184586e-05, -6.45476975e-05, 5.6907561e-06,
)  # fmt: skip
_LOG2_ERFC = (
    1.62790871, 0.917237282, 0.152938157, -0.0348369926, 0.00582713215,
    -0.000678766344, 5.15582251e-05, -2.28029057e-06, 4.43562378e-08,
)  # fmt: skip
#: Below, the error function is a line, but for a part in 30,000.
_ERF_LINE = 0.01


def half_functions(qualifier: str, power_of_two: str) -> dict[str, str]:
    """Return the helpers of functions of half types.

    They have no branches, and are off by less than a part in 10,000. `power_of_two` is C code that declares `r`, the
    power of two of `p`.
    """
    line = f"{2 / math.sqrt(math.pi)!r}f * a"
    bodies = {
        "erf": (_LOG2_NEAR_ERFC, f"copysign(a < {_ERF_LINE!r}f ? {line} : 1.0f - r, x)"),
        "erfc": (_LOG2_ERFC, "x < 0.0f ? 2.0f - r : r"),
    }
    return {
        f"cuts_{name}_half": f"{qualifier} float cuts_{name}_half(float x) {{ const float a = fabs(x), "
        f"p = -a * {_polynomial(terms)}; {power_of_two} return {result}; }}"
        for name, (terms, result) in bodies.items()
    }


def _polynomial(terms: Sequence[float]) -> str:
    """Return a polynomial of `a` with coefficients of 1, a, a ** 2, ..."""
    found = f"{terms[-1]!r}f"
    for each in reversed(terms[:-1]):
        found = f"fma({found}, a, {each!r}f)"
    return found


def _hurwitz(kind: str, far: str, terms: Sequence[str]) -> str:
    added = "".join(
        f" t += {f} * u; u *= (a + {2 * k + 1}) * (a + {2 * k + 2}) / (q * q);" for k, f in enumerate(terms)
    )
    return (
        f"{kind} t = 0, p, u; for (; q < {far}; q += 1) t += pow(q, -a); p = pow(q, -a);"
        f" t += q * p / (a - 1) + p / 2; u = a * p / q;{added} return t;"
    )


def _digamma(kind: str, far: str, pi: str, terms: Sequence[str]) -> str:
    polynomial = terms[-1]
    for factor in reversed(terms[:-1]):
        polynomial = f"({polynomial} * s + {factor})"
    return (
        f"{kind} y = 0, s; if (x == 0) return copysign(1 / ({kind})0, -x);"
        f" if (x < 0) {{ if (x == floor(x)) return 0 * (x / 0); y = -{pi} / tan({pi} * (x - trunc(x))); x = 1 - x; }}"
        f" for (; x < {far}; x += 1) y -= 1 / x; s = 1 / (x * x);"
        f" return y + log(x) - ({kind})1 / 2 / x - {polynomial} * s;"
    )


def _polygamma(kind: str, dtype: DType) -> str:
    zeta = f"cuts_hurwitz_{dtype}"
    return (
        f"if (x != x || a == 0) return x != x ? x : cuts_digamma_{dtype}(x);"
        f" {kind} f = fmod(a, ({kind})2) == 0 ? -1 : 1;"
        f" for ({kind} k = 2; k <= a; k += 1) f *= k; if (fabs(x) == 1 / ({kind})0) return x > 0 ? 0 : 0 * x;"
        f" if (x <= 0 && x == floor(x)) return f / ({kind})0;"
        f" if (x > 0) return f * {zeta}(a + 1, x); {kind} r = -x - floor(-x);"
        f" {kind} b = {zeta}(a + 1, r) - {zeta}(a + 1, 1 - x);"
        f" return f * ({zeta}(a + 1, 1 - r) + (fmod(a, ({kind})2) == 0 ? -b : b));"
    )


def _bessel(kind: str, far: str, turn: str) -> str:
    return (
        f"{kind} s = fabs(x), t = 1, y; if (s != s || s == 1 / ({kind})0) return s != s ? s : 0;"
        f" if (s <= {far}) {{ for ({kind} k = 1; k <= a; k += 1) t *= s / 2 / k; y = t;"
        f" for (int k = 1; k < {SERIES.power_terms}; ++k) {{ t *= s * s / (4 * k * (k + a)); y += t; }}"
        f" y *= exp(-s); }}"
        f" else {{ y = 1; for (int k = 1; k < {SERIES.inverse_terms}; ++k)"
        f" {{ t *= ((2 * k - 1) * (2 * k - 1) - 4 * a * a) / (8 * k * s); y += t; }} y = y / {turn} / sqrt(s); }}"
        f" return x < 0 && fmod(a, ({kind})2) != 0 ? -y : y;"
    )
