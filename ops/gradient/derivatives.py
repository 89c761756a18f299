"""Derivatives of scalar functions, and reverse accumulation over an expression.

The functions are those of `ir/functions.py`.

Conventions, chosen so that exactly one operand gets the gradient:

* `max` and `min`: at a tie a literal wins over a tensor (the gradient of `relu` at 0 is 0), else the first operand;
* `abs` has the gradient 0 at 0; `sign floor ceil trunc round` have the gradient 0 everywhere;
* `floormod` and `fmod` are differentiated between their jumps;
* conditions and integers have no gradient: nothing flows through comparisons, `select`'s test, or a conversion to an
  integer.

A derivative is written in a form that neither cancels nor overflows on the way: `(1 - y) * (1 + y)`, not `1 - y * y`,
whose rounding a large factor would bring to light.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ...ir import Call, Cast, Const, DType, Expr, Read, TensorType, dtype_of

#: Gradient of a function with respect to each operand: from the operands, the result and the gradient of the result;
#: None is zero.
Rule = Callable[[Sequence[Expr], Expr, Expr, DType], tuple[Expr | None, ...]]


#: Functions that are finite for finite operands: a product with one of them is zero where the other factor is.
_TAME = frozenset(
    ("add", "sub", "mul", "neg", "select", "min", "max", "abs", "sign", "lt", "le", "gt", "ge", "eq", "ne", "not",
     "tanh", "erf", "sin", "cos")
)  # fmt: skip


def literal(value: float, dtype: DType) -> Const:
    """Return a number of an element type."""
    return Const(float(value) if dtype.is_float else int(value), dtype)


def preserves_finiteness(expr: Expr) -> bool:
    """Return whether an expression is finite where its operands are.

    Overflow of sums and products does not count.
    """
    if isinstance(expr, Call):
        return expr.fn in _TAME and all(map(preserves_finiteness, expr.args))
    return preserves_finiteness(expr.arg) if isinstance(expr, Cast) else True


def _is(expr: Expr, value: float) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value == value


def negate(a: Expr) -> Expr:
    """Return `-a`, simplified."""
    if isinstance(a, Const):
        return Const(-a.value, a.dtype)
    if isinstance(a, Call) and a.fn == "neg":
        return a.args[0]
    return Call("neg", (a,))


def multiply(a: Expr, b: Expr) -> Expr:
    """Return `a * b`, simplified; signs move outwards."""
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value * b.value, a.dtype)
    for one, other in ((a, b), (b, a)):
        if _is(one, 1):
            return other
        if _is(one, -1):
            return negate(other)
    if isinstance(a, Call) and a.fn == "neg":
        return negate(multiply(a.args[0], b))
    if isinstance(b, Call) and b.fn == "neg":
        return negate(multiply(a, b.args[0]))
    return Call("mul", (a, b))


def add(a: Expr, b: Expr, dtype: DType) -> Expr:
    """Return `a + b`, simplified."""
    if isinstance(a, Call) and isinstance(b, Call) and a.fn == b.fn == "neg":
        return negate(add(a.args[0], b.args[0], dtype))
    if _sort_factors(a) == _sort_factors(b):
        return multiply(literal(2, dtype), a)
    if isinstance(b, Call) and b.fn == "neg":
        return Call("sub", (a, b.args[0]))
    if isinstance(a, Call) and a.fn == "neg":
        return Call("sub", (b, a.args[0]))
    return Call("add", (a, b))


def _sort_factors(expr: Expr) -> Expr:
    """Return a product with its factors in a fixed order."""
    if not isinstance(expr, Call) or expr.fn != "mul":
        return expr
    return Call("mul", tuple(sorted(map(_sort_factors, expr.args), key=repr)))


def _divide(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Call) and a.fn == "neg":
        return negate(_divide(a.args[0], b))
    return _inside_condition(a, lambda core: Call("div", (core, b)))


def _times(seed: Expr, factor: Expr) -> Expr:
    """Return a gradient times a factor."""
    return (
        multiply(seed, factor)
        if preserves_finiteness(factor)
        else _inside_condition(seed, lambda core: _saturating(core, factor))
    )


def _saturating(seed: Expr, factor: Expr) -> Expr:
    """Return a gradient times a factor that may overflow where it also stands in the gradient's divisor:

    g / (c + f) * f    ->    g / (1 + c / f)        for a number c above 0

    The quotient goes from 0 to 1 with f, which may be 0 or infinite. On the left an infinity would meet a zero.
    """
    if isinstance(seed, Call) and seed.fn == "neg":
        return negate(_saturating(seed.args[0], factor))
    if isinstance(seed, Call) and seed.fn == "div":
        core, divisor = seed.args
        rest = _added_to(factor, divisor)
        if rest is not None:
            return Call("div", (core, _plus(1, Call("div", (rest, factor)), rest.dtype)))
    return multiply(seed, factor)


def _added_to(term: Expr, total: Expr) -> Const | None:
    """Return the positive number that a sum has beside a term, None where it is another sum."""
    if not isinstance(total, Call) or total.fn != "add" or term not in total.args:
        return None
    other = total.args[1 - total.args.index(term)]
    return other if isinstance(other, Const) and other.value > 0 else None


def _inside_condition(seed: Expr, made: Callable[[Expr], Expr]) -> Expr:
    """Apply a function to a gradient, keeping a condition outside: the gradient is zero where its condition fails, and
    a factor from the branch that is not taken may be infinite there.
    """
    if not isinstance(seed, Call) or not _is_conditional(seed):
        return made(seed)
    first, *rest = seed.args
    if seed.fn == "select":
        return Call("select", (first, _inside_condition(rest[0], made), rest[1]))
    if _is_conditional(first):
        return _inside_condition(first, lambda core: made(Call(seed.fn, (core, *rest))))
    return _inside_condition(rest[0], lambda core: made(Call(seed.fn, (first, core))))


def _is_conditional(expr: Expr) -> bool:
    """Return whether a product is zero where a condition does not hold."""
    if not isinstance(expr, Call):
        return False
    if expr.fn == "select":
        return _is(expr.args[2], 0)
    places = {"mul": 2, "div": 1, "neg": 1}.get(expr.fn, 0)
    return any(map(_is_conditional, expr.args[:places]))


def _call(fn: str, *args: Expr) -> Expr:
    return Call(fn, args)


def _extremum(better: str) -> Rule:
    """Rule of `max` (better `ge`) or `min` (`le`).

    An operand beats a number exactly where the result does: the test reads a stored result, so that the operand need
    not be saved.
    """

    def rule(args: Sequence[Expr], y: Expr, seed: Expr, dtype: DType) -> tuple[Expr | None, ...]:
        strict = isinstance(args[1], Const)
        asked = y if isinstance(y, Read) and strict else args[0]
        first = _call(better.replace("e", "t") if strict else better, asked, args[1])
        return _where(first, seed, dtype), _where(_call("not", first), seed, dtype)

    return rule


def _unary(derivative: Callable[[Expr, Expr, DType], Expr]) -> Rule:
    """Rule of a function of one operand, from its derivative as a factor of the operand and the result."""
    return lambda args, y, seed, dtype: (_times(seed, derivative(args[0], y, dtype)),)


def _quotient(divisor: Callable[[Expr, Expr, DType], Expr]) -> Rule:
    """Rule of a function whose derivative is 1 over something."""
    return lambda args, y, seed, dtype: (_divide(seed, divisor(args[0], y, dtype)),)


def _square(x: Expr) -> Expr:
    return _call("mul", x, x)


def _without_square(x: Expr, dtype: DType) -> Expr:
    """Return `1 - x * x` as a product: both factors are exact near their zeros."""
    return _call("mul", _minus(1, x, dtype), _plus(1, x, dtype))


def _from_result_or(
    stored: Callable[[Expr, DType], Expr], computed: Callable[[Expr, DType], Expr]
) -> Callable[[Expr, Expr, DType], Expr]:
    """Return a derivative that is computed from a stored result, or else from the operand.

    A result that is nearly constant has few digits left of the difference that the derivative is.
    """
    return lambda x, y, t: stored(y, t) if isinstance(y, Read) else computed(x, t)


def _squared_secant(x: Expr, dtype: DType) -> Expr:
    """Return `1 / cosh(x) ** 2` as `(2 / (1 + e)) ** 2 * e` for `e = exp(-2 * |x|)`, which is at most 1."""
    decay = _call("exp", _call("mul", literal(-2, dtype), _call("abs", x)))
    half = _call("div", literal(2, dtype), _plus(1, decay, dtype))
    return _call("mul", _call("mul", half, half), decay)


def _power(args: Sequence[Expr], y: Expr, seed: Expr, dtype: DType) -> tuple[Expr | None, ...]:
    base, exponent = args
    if isinstance(exponent, Const):
        lower = base if exponent.value == 2 else _call("pow", base, literal(exponent.value - 1, dtype))
        factor = literal(1, dtype) if exponent.value == 1 else multiply(literal(exponent.value, dtype), lower)
        return _times(seed, factor), None
    lower = _call("pow", base, _call("sub", exponent, literal(1, dtype)))
    log = _call("select", _call("eq", base, literal(0, dtype)), literal(0, dtype), _call("log", base))
    return _times(seed, multiply(exponent, lower)), _times(seed, multiply(y, log))


def _where(test: Expr, seed: Expr, dtype: DType) -> Expr:
    """Return a gradient where a test holds, else zero.

    `_inside_condition` and `conditions.split` look for this form.
    """
    return _call("select", test, seed, literal(0, dtype))


def _select(args: Sequence[Expr], _: Expr, seed: Expr, dtype: DType) -> tuple[Expr | None, ...]:
    return None, _where(args[0], seed, dtype), _where(_call("not", args[0]), seed, dtype)


def _product(args: Sequence[Expr], _: Expr, seed: Expr, __: DType) -> tuple[Expr | None, ...]:
    # The gradient replaces the operand, so that rows stay on the left of a contraction (see the manual).
    return _times(seed, args[1]), multiply(args[0], seed) if preserves_finiteness(args[0]) else _times(seed, args[0])


def _quotient_of_two(args: Sequence[Expr], y: Expr, seed: Expr, _: DType) -> tuple[Expr | None, ...]:
    return _divide(seed, args[1]), negate(_divide(_times(seed, y), args[1]))


def _remainder(fn: str) -> Rule:
    def rule(args: Sequence[Expr], _: Expr, seed: Expr, __: DType) -> tuple[Expr | None, ...]:
        return seed, negate(_times(seed, _call(fn, _call("div", *args))))

    return rule


def _angle(args: Sequence[Expr], _: Expr, seed: Expr, dtype: DType) -> tuple[Expr | None, ...]:
    y, x = args
    radius = _call("hypot", x, y)  # its square may overflow, or be 0 where it is not
    return tuple(_divide(_times(seed, _divide(part, radius)), radius) for part in (x, negate(y)))


def _length(args: Sequence[Expr], y: Expr, seed: Expr, _: DType) -> tuple[Expr | None, ...]:
    return _times(seed, _divide(args[0], y)), _times(seed, _divide(args[1], y))


def _shares(args: Sequence[Expr], _: Expr, seed: Expr, dtype: DType) -> tuple[Expr | None, ...]:
    """The share of `a` in `logaddexp(a, b)` is `1 / (1 + exp(b - a))`: of the result, digits have been rounded off."""
    a, b = args
    return tuple(_divide(seed, _plus(1, _call("exp", _call("sub", y, x)), dtype)) for x, y in ((a, b), (b, a)))


def _absolute(args: Sequence[Expr], _: Expr, seed: Expr, dtype: DType) -> tuple[Expr | None, ...]:
    turn = _call("mul", _call("sign", args[0]), _call("copysign", literal(1, dtype), args[1]))
    return multiply(seed, turn), None


def _next_polygamma(args: Sequence[Expr], _: Expr, seed: Expr, dtype: DType) -> tuple[Expr | None, ...]:
    return None, _times(seed, _call("polygamma", _plus(1, args[0], dtype), args[1]))


def _neighbours_of_bessel(args: Sequence[Expr], y: Expr, seed: Expr, dtype: DType) -> tuple[Expr | None, ...]:
    """Differentiate by the mean of the orders below and above; the scale takes off the function itself."""
    (order, x), half = args, literal(0.5, dtype)
    below, above = _call("abs", _plus(-1, order, dtype)), _plus(1, order, dtype)
    mean = multiply(half, _call("add", *(_call("bessel_ie", n, x) for n in (below, above))))
    return None, _times(seed, _call("sub", mean, multiply(_call("sign", x), y)))


def _nothing(arity: int) -> Rule:
    return lambda *_: (None,) * arity


def _plus(value: float, x: Expr, dtype: DType) -> Expr:
    return _call("add", literal(value, dtype), x)


def _minus(value: float, x: Expr, dtype: DType) -> Expr:
    return _call("sub", literal(value, dtype), x)


RULES: Mapping[str, Rule] = {
    "add": lambda args, y, seed, _: (seed, seed),
    "sub": lambda args, y, seed, _: (seed, negate(seed)),
    "mul": _product,
    "div": _quotient_of_two,
    "quotient": _quotient_of_two,
    "near_quotient": _quotient_of_two,
    "approximate_quotient": _quotient_of_two,
    "neg": lambda args, y, seed, _: (negate(seed),),
    "pow": _power,
    "min": _extremum("le"),
    "max": _extremum("ge"),
    "select": _select,
    "floormod": _remainder("floor"),
    "fmod": _remainder("trunc"),
    "abs": _unary(lambda x, y, t: _call("sign", x)),
    "exp": _unary(lambda x, y, t: y),
    "near_exp2": _unary(lambda x, y, t: multiply(literal(math.log(2), t), y)),
    "expm1": _unary(_from_result_or(lambda y, t: _plus(1, y, t), lambda x, t: _call("exp", x))),
    "log": _quotient(lambda x, y, t: x),
    "log1p": _quotient(lambda x, y, t: _plus(1, x, t)),
    "sqrt": _quotient(lambda x, y, t: multiply(literal(2, t), y)),
    "rsqrt": _unary(lambda x, y, t: multiply(literal(-0.5, t), _call("mul", y, _square(y)))),
    "sin": _unary(lambda x, y, t: _call("cos", x)),
    "cos": _unary(lambda x, y, t: negate(_call("sin", x))),
    "tan": _unary(lambda x, y, t: _plus(1, _square(y), t)),
    "asin": _unary(lambda x, y, t: _call("rsqrt", _without_square(x, t))),
    "acos": _unary(lambda x, y, t: negate(_call("rsqrt", _without_square(x, t)))),
    "atan": _quotient(lambda x, y, t: _plus(1, _square(x), t)),
    "sinh": _unary(lambda x, y, t: _call("cosh", x)),
    "cosh": _unary(lambda x, y, t: _call("sinh", x)),
    "tanh": _unary(_from_result_or(_without_square, _squared_secant)),
    "asinh": _quotient(lambda x, y, t: _call("hypot", literal(1, t), x)),
    "acosh": _unary(lambda x, y, t: _call("mul", *(_call("rsqrt", _plus(n, x, t)) for n in (-1, 1)))),
    "atanh": _quotient(lambda x, y, t: _without_square(x, t)),
    "erf": _unary(lambda x, y, t: multiply(literal(2 / math.sqrt(math.pi), t), _call("exp", negate(_square(x))))),
    "erfc": _unary(lambda x, y, t: multiply(literal(-2 / math.sqrt(math.pi), t), _call("exp", negate(_square(x))))),
    "atan2": _angle,
    "hypot": _length,
    "logaddexp": _shares,
    "lgamma": _unary(lambda x, y, t: _call("polygamma", literal(0, t), x)),
    "polygamma": _next_polygamma,
    "bessel_ie": _neighbours_of_bessel,
    "copysign": _absolute,
    "ldexp": lambda args, y, seed, _: (_call("ldexp", seed, args[1]), None),
    **dict.fromkeys(("sign", "logb", "floor", "ceil", "trunc", "round"), _nothing(1)),
}


def differentiate(
    body: Expr, seed: Expr, tensors: Mapping[str, TensorType], value: Expr | None = None
) -> dict[Read, Expr]:
    """Return the gradient of each float read, given the expression's `seed`.

    `value` is a cheaper way to get the expression's own value, as where it has been stored.
    """
    found: dict[Read, Expr] = {}

    def descend(expr: Expr, seed: Expr, value: Expr) -> None:
        if isinstance(seed, Const) and seed.value == 0:
            return
        if isinstance(expr, Read):
            if tensors[expr.tensor].dtype.is_float:
                found[expr] = add(found[expr], seed, tensors[expr.tensor].dtype) if expr in found else seed
        elif isinstance(expr, Cast):
            inner = dtype_of(expr.arg, tensors)
            if inner.is_float and expr.dtype.is_float:
                descend(expr.arg, seed if inner is expr.dtype else Cast(inner, seed), expr.arg)
        elif isinstance(expr, Call) and expr.fn in RULES:
            dtype = dtype_of(expr, tensors)
            if not dtype.is_float:
                return
            for arg, part in zip(expr.args, RULES[expr.fn](expr.args, value, seed, dtype), strict=True):
                if part is not None and _may_vary(arg, tensors):
                    descend(arg, part, value if _shows(expr, arg, value) else arg)

    descend(body, seed, body if value is None else value)
    return found


def _shows(outer: Call, inner: Expr, value: Expr) -> bool:
    """Return whether the stored result of a `clamp`, an extremum of another one, shows the side of its number that one
    is on:

    y = min(max(x, a), b) with a < b:  x > a  where  y > a
    """
    if not (isinstance(value, Read) and isinstance(inner, Call) and {outer.fn, inner.fn} == {"min", "max"}):
        return False
    bound, own = outer.args[1], inner.args[1]
    if not (isinstance(bound, Const) and isinstance(own, Const)):
        return False
    return own.value < bound.value if outer.fn == "min" else bound.value < own.value


def _may_vary(expr: Expr, tensors: Mapping[str, TensorType]) -> bool:
    """Return whether an operand holds a float read, so that its gradient is needed."""
    if isinstance(expr, Read):
        return tensors[expr.tensor].dtype.is_float
    if isinstance(expr, Call):
        return any(_may_vary(a, tensors) for a in expr.args)
    return isinstance(expr, Cast) and _may_vary(expr.arg, tensors)
