"""Helpers for arithmetic that C leaves undefined or defines differently.

There is one for each operation and element type:

* `max` and `min` of a NaN are NaN, which C's `fmax` and `fmin` drop. Where one operand is a literal, it takes one
  comparison.
* Integers wrap: operations that may overflow are computed unsigned. Division rounds towards zero; by zero quotient and
  remainder are 0. A shift by a number out of range moves all bits out. A power is exact, and wraps; of a negative
  exponent it is the reciprocal towards zero.
* Divisions of many floats by one share its reciprocal, and are as exact. Those for half types may be approximate.
* A float that is converted to an integer is truncated towards zero; one beyond the range of the type becomes its
  nearest integer, and NaN becomes 0.

The names end in the type's; a kernel's text has only the helpers that it calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ....ir import DType
from .special_functions import special_helpers

#: log1p(e) / e for e from 0 to 1, by powers of e, to a part in 2e8 before it is rounded to f32: for a logarithm of a
#: sum of two exponentials, in half the instructions of log1p.
_LOG1P = (
    1.0, -0.4999990165233612, 0.3332996070384979, -0.24954131245613098, 0.19675926864147186, -0.1530555784702301,
    0.106035977602005, -0.05695897340774536, 0.019851164892315865, -0.0032439595088362694,
)  # fmt: skip
#: Power of two above which a divisor is scaled, and the power of two that scales it.
_DIVISOR_SCALES = {DType.F32: (2.0**100, 2.0**60), DType.F64: (2.0**900, 2.0**500)}


def arithmetic_helpers(qualifier: str, types: Mapping[str, str]) -> dict[str, str]:
    """Return all helpers by name; `types` maps element to register types."""
    helpers: dict[str, str] = {}
    for dtype in DType:
        if dtype.arithmetic is not dtype:
            continue
        kind = types[dtype.value]
        own = _integers(dtype, types) if dtype.is_int else _floats(dtype, kind) if dtype.is_float else ()
        helpers |= _conversions(qualifier, dtype, types) if dtype.is_float else {}
        for name, parameters, body in (*_extremes(dtype), *own):
            full, listed = f"cuts_{name}_{dtype}", ", ".join(f"{kind} {p}" for p in parameters)
            helpers[full] = f"{qualifier} {kind} {full}({listed}) {{ {body} }}"
    return helpers


def _extremes(dtype: DType) -> Iterator[tuple[str, str, str]]:
    unordered = " || b != b" if dtype.element.nan else ""
    yield "max", "ab", f"return a < b{unordered} ? b : a;"
    yield "min", "ab", f"return b < a{unordered} ? b : a;"


def _scales() -> Iterator[tuple[str, str, str]]:
    """Yield powers of two: the exponent of a number (0 has that of 1), and a number times such a power."""
    yield "logb", "a", "return a == 0 ? 0 : logb(a);"
    yield "ldexp", "ab", "return b != b ? b : ldexp(a, b < -9999 ? -9999 : b > 9999 ? 9999 : (int)b);"


def cuda_powers(qualifier: str) -> dict[str, str]:
    """Return CUDA's powers of two, by the bits of f32."""
    exponent = (
        "const bool small = fabsf(a) < 1.17549435e-38f; "
        "const int bits = __float_as_int(small ? a * 8388608.0f : a), n = (bits >> 23 & 255) - (small ? 150 : 127); "
        "return a == 0 ? 0 : a - a == 0 ? (float)n : a * a;"
    )
    # Three steps, only the last can round: a result below it is zero.
    step = "k = n < -126 ? -102 : n < 127 ? n : 127; a *= __int_as_float((k + 127) << 23); n -= k; "
    scaled = (
        f"int n = b < -400 ? -400 : b > 400 ? 400 : (int)b, k; {step}{step}"
        "k = n < -126 ? -126 : n < 127 ? n : 127; return b != b ? b : a * __int_as_float((k + 127) << 23);"
    )
    return {
        "cuts_logb_f32": f"{qualifier} float cuts_logb_f32(float a) {{ {exponent} }}",
        "cuts_ldexp_f32": f"{qualifier} float cuts_ldexp_f32(float a, float b) {{ {scaled} }}",
    }


def _floats(dtype: DType, kind: str) -> Iterator[tuple[str, str, str]]:
    yield from _scales()
    yield from special_helpers(dtype, kind)
    share = "exp(-d)" if dtype is DType.F64 else f"exp2(d * {-1 / math.log(2)!r}f)"
    grown = "log1p(e)" if dtype is DType.F64 else _polynomial(_LOG1P, "e")
    # Equal infinities have no difference.
    difference = f"const {kind} d = a == b ? 0 : fabs(a - b), e = {share};"
    yield "logaddexp", "ab", f"{difference} return cuts_max_{dtype}(a, b) + {grown};"
    found = _quotient(kind, "f" if dtype is DType.F32 else "", *_DIVISOR_SCALES[dtype])
    yield "product", "ab", "return fma(a, b, -0.0f);"
    yield "near_quotient", "ab", f"{found} return q;"
    yield "approximate_quotient", "ab", "return a / b;"
    yield "quotient", "ab", f"{found} const {kind} c = fma(fma(-q, d, n), r, q); return fabs(c) > 0 ? c : q;"


def _polynomial(coefficients: Sequence[float], x: str) -> str:
    """Return `x` times a polynomial of it in f32, the highest power first."""
    found = f"{coefficients[-1]!r}f"
    for each in reversed(coefficients[:-1]):
        found = f"fma({found}, {x}, {each!r}f)"
    return f"{x} * ({found})"


def _quotient(kind: str, suffix: str, far: float, by: float) -> str:
    """Return code for `a / b` by way of the reciprocal of b, which compilers compute once for all a.

    A divisor beyond the power of two `far`, or below its reciprocal, is scaled `by` another one, so that its reciprocal
    is a normal number. The product q is off by a unit in its last place at most; one step with the exact remainder
    (Markstein, IA-64 and Elementary Functions, 2000, section 8.2) rounds it as a division would. Infinities have no
    remainder, and a zero keeps the sign of the product.
    """
    scale = f"fabs(b) > {far!r}{suffix} ? {1 / by!r}{suffix} : fabs(b) < {1 / far!r}{suffix} ? {by!r}{suffix} : 1"
    return f"const {kind} s = {scale}, d = b * s, r = 1 / d, n = a * s, q = n * r;"


def _conversions(qualifier: str, dtype: DType, types: Mapping[str, str]) -> dict[str, str]:
    """Return the helpers that convert a float type to integers; their bounds are powers of two, which are exact."""
    found: dict[str, str] = {}
    suffix = "f" if dtype is DType.F32 else ""
    for whole in DType:
        if not whole.is_int:
            continue
        kind, name = types[whole.value], f"cuts_{whole}_of_{dtype}"
        signed, unsigned = whole.element.kind == "signed", types[unsigned_of(whole).value]
        above = f"(({kind})(({unsigned})-1 >> {8 * max(4, whole.size) - whole.element.digits}))"
        below = f"(-{above} - 1)" if signed else "0"
        low, high = float(whole.element.lowest), float(whole.element.highest + 1)
        body = f"a != a ? 0 : a >= {high!r}{suffix} ? {above} : a <= {low!r}{suffix} ? {below} : ({kind})a"
        found[name] = f"{qualifier} {kind} {name}({types[dtype.value]} a) {{ return {body}; }}"
    return found


def clamped_conversions(qualifier: str, types: Mapping[str, str]) -> dict[str, str]:
    """Return the helpers that convert floats by CUDA's instruction.

    It clamps, and converts NaN to 0, except where either type has 64 bits.
    """
    found: dict[str, str] = {}
    for source, kind in ((DType.F32, "float"), (DType.F64, "double")):
        for whole, into in ((DType.I32, "int"), (DType.U32, "uint"), (DType.I64, "ll"), (DType.U64, "ull")):
            name, cut = f"cuts_{whole}_of_{source}", f"__{kind}2{into}_rz(a)"
            body = cut if max(source.size, whole.size) == 4 else f"a != a ? 0 : {cut}"
            found[name] = f"{qualifier} {types[whole.value]} {name}({types[source.value]} a) {{ return {body}; }}"
    return found


def unsigned_of(dtype: DType) -> DType:
    """Return the unsigned type for integer arithmetic that may overflow.

    C computes narrower types as int.
    """
    return DType.U64 if dtype.size == 8 else DType.U32


def _integers(dtype: DType, types: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    kind, unsigned, bits = types[dtype.value], types[unsigned_of(dtype).value], 8 * dtype.size
    signed = dtype.element.kind == "signed"
    negated = f"({kind})(0 - ({unsigned})a)"
    yield "abs", "a", f"return a < 0 ? {negated} : a;" if signed else "return a;"
    yield "div", "ab", f"return b == 0 ? 0 : {f'b == -1 ? {negated} : ' if signed else ''}a / b;"
    yield "rem", "ab", f"return b == 0 {'|| b == -1 ' if signed else ''}? 0 : a % b;"
    if signed:
        yield "mod", "ab", f"{kind} r = b == 0 || b == -1 ? 0 : a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r;"
    else:
        yield "mod", "ab", "return b == 0 ? 0 : a % b;"
    reciprocal = "if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0; " if signed else ""
    loop = f"{unsigned} r = 1, x = ({unsigned})a; for (; b; b >>= 1, x *= x) if (b & 1) r *= x; return ({kind})r;"
    yield "pow", "ab", reciprocal + loop
    divisor = f"{unsigned} x = a < 0 ? -({unsigned})a : a, y = b < 0 ? -({unsigned})b : b, r;"
    yield "gcd", "ab", f"{divisor} for (; y; y = r) {{ r = x % y; x = y; }} return ({kind})x;"
    yield "shl", "ab", f"return ({unsigned})b < {bits} ? ({kind})(({unsigned})a << b) : 0;"
    yield "shr", "ab", f"return ({unsigned})b < {bits} ? a >> b : {'a < 0 ? -1 : ' if signed else ''}0;"
