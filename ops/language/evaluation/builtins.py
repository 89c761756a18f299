"""Table of the functions that declarations call on sizes, lists and indices.

Scalar functions of elements are those of `ir.functions`; a name in both tables (`min`, `abs`, ...) is static while its
arguments are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from functools import reduce as fold
from itertools import count

from attrs import frozen

from ....ir import FUNCTIONS, DType, Index, clamp, delinearise, linearise, row_major
from .values import Absent, TensorRef, Trouble, Value, check_bits, describe, elementwise, is_expr


@frozen
class Builtin:
    """Static function of declarations.

    `arity` has the least and greatest number of arguments, `apply` the meaning, `summary` one line for the manual.
    """

    name: str
    arity: tuple[int, int]
    apply: Callable[..., Value]
    summary: str


def _ints(value: Value, what: str = "a list of integers") -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
        raise Trouble(f"expected {what}, found {describe(value)}")
    return value


def _length(value: Value) -> int:
    if isinstance(value, TensorRef):
        return len(value.type.shape)
    if not isinstance(value, tuple):
        raise Trouble(f"expected a list or a tensor, found {describe(value)}")
    return len(value)


def _fill(like: Value, item: int) -> tuple[int, ...]:
    return (item,) * _short(like if isinstance(like, int) else _length(like))


def _short(length: int) -> int:
    if length > 1 << 16:
        raise Trouble(f"a list of {length} items is too long")
    return length


def _broadcast(*shapes: Value) -> tuple[int, ...]:
    lists = shapes[0] if len(shapes) == 1 and all(isinstance(s, tuple) for s in shapes[0]) else shapes
    rank = max((len(s) for s in lists), default=0)
    result = []
    for axis in range(rank):
        sizes = {s[axis - rank + len(s)] for s in map(_ints, lists) if axis - rank + len(s) >= 0}
        wide = sizes - {1}
        if len(wide) > 1:
            raise Trouble(
                f"shapes {' and '.join(map(describe, lists))} do not broadcast: "
                f"sizes {' and '.join(map(str, sorted(wide)))} differ"
            )
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _fit(indices: Value, shape: Value) -> Value:
    """Return the indices of a tensor of `shape` that broadcasts to the axes of `indices`, aligned at the end."""
    excess = len(indices) - len(shape)
    if excess < 0:
        raise Trouble(f"{len(shape)} dims do not fit {len(indices)} indices")
    return tuple(Index() if size == 1 else i for i, size in zip(indices[excess:], shape, strict=True))


def _indices(value: Value) -> tuple[Index, ...]:
    return tuple(v if isinstance(v, Index) else Index(v) for v in value)


def _ravel(indices: Value, shape: Value) -> Index:
    return linearise(_indices(indices), row_major(_ints(shape)))


def _unravel(flat: Value, shape: Value) -> Value:
    if 0 in _ints(shape):
        return tuple(Index() for _ in shape)  # nothing has a position in an empty shape
    return delinearise(flat if isinstance(flat, Index) else Index(flat), _ints(shape))


def _inverse(permutation: Value) -> Value:
    order = _ints(permutation)
    if sorted(order) != list(range(len(order))):
        raise Trouble(f"{describe(permutation)} is no permutation of {describe(tuple(range(len(order))))}")
    return tuple(order.index(i) for i in range(len(order)))


def _clamp(value: Value, low: Value, high: Value) -> Value:
    def one(v: Value, lo: Value, hi: Value) -> Value:
        if isinstance(v, Index):
            return clamp(v, lo, hi)
        return min(max(v, lo), hi)

    return elementwise(one, value, low, high)


def _extreme(name: str) -> Callable[..., Value]:
    pick = min if name == "min" else max

    def two(a: Value, b: Value) -> Value:
        if isinstance(a, Index) and a.is_const:
            a = a.const
        if isinstance(b, Index) and b.is_const:
            b = b.const
        if isinstance(b, Index):
            a, b = b, a
        if isinstance(a, Index):
            if not isinstance(b, int):
                raise Trouble(f"{name} of an index needs an integer beside it, found {describe(b)}")
            low, high = a.bounds()
            return clamp(a, min(low, b), b) if name == "min" else clamp(a, b, max(high, b))
        return pick(a, b)

    def apply(*args: Value) -> Value:
        items = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        if not items:
            raise Trouble(f"{name} of an empty list")
        return fold(lambda a, b: elementwise(two, a, b), items)

    return apply


def _count(value: Value) -> int:
    return len(value) if isinstance(value, tuple) else int(isinstance(value, TensorRef))


def limit(dtype: Value, low: bool) -> float | int | bool:
    """Return the least or the greatest value of an element type."""
    if not isinstance(dtype, DType):
        raise Trouble(f"expected an element type, found {describe(dtype)}")
    return dtype.element.lowest if low else dtype.element.highest


def _has(items: Value, value: Value) -> bool:
    if not isinstance(items, tuple):
        raise Trouble(f"expected a list, found {describe(items)}")
    return value in items


def _drop(items: Value, positions: Value) -> Value:
    return tuple(v for i, v in enumerate(items) if i not in positions)


def _put(items: Value, positions: Value, values: Value) -> Value:
    result = list(items)
    for position, value in zip(_ints(positions), values, strict=True):
        result[position] = value
    return tuple(result)


def _mirror(index: Value, size: Value) -> Value:
    """Reflect an index at both ends of [0, size), where it overhangs by less than the size."""

    def one(i: Value, n: int) -> Value:
        i = i if isinstance(i, Index) else Index(i)
        low, high = i.bounds()
        over = clamp(i - (n - 1), 0, max(high - n + 1, 0))
        under = clamp(i, min(low, 0), 0)
        return clamp(i - under * 2 - over * 2, 0, n - 1)

    return elementwise(one, index, size)


def _ratio(value: Value) -> tuple[int, int]:
    fraction = Fraction(value).limit_denominator(1 << 12)
    return fraction.numerator, fraction.denominator


def _numbers(name: str, fn: Callable[[float], float]) -> Callable[..., Value]:
    def one(value: Value) -> Value:
        if not isinstance(value, (int, float)):
            raise Trouble(f"{name} needs a number here, found {describe(value)}")
        return fn(value)

    return lambda value: elementwise(one, value)


def _circle(k: Value, n: Value) -> tuple[float, float]:
    """Return cosine and sine of `k / n` of a turn; values that are equal by symmetry are equal to the last bit."""

    def cosine(k: int, n: int) -> float:
        k = min(k % n, -k % n)
        if 4 * k > n:
            return -cosine(n - 2 * k, 2 * n)
        return math.cos(2 * math.pi * k / n) if 8 * k <= n else math.sin(2 * math.pi * (n - 4 * k) / (4 * n))

    if not isinstance(k, int) or not isinstance(n, int):
        raise Trouble(f"circle needs integers, found {describe(k)} and {describe(n)}")
    return cosine(k, n) + 0.0, cosine(4 * k - n, 4 * n) + 0.0


def _radices(n: Value, most: Value) -> tuple[int, ...]:
    """Return factors of `n` from 2 to `most`, as few and as equal as possible; none where a prime factor is greater."""
    if not isinstance(n, int) or not isinstance(most, int) or n < 1:
        raise Trouble(f"radices needs a size and the greatest factor, found {describe(n)} and {describe(most)}")

    @cache
    def split(rest: int, least: int) -> tuple[int, ...] | None:
        found = [
            (f, *others)
            for f in range(least, most + 1)
            if rest % f == 0 and (others := split(rest // f, f)) is not None
        ]
        return () if rest == 1 else min(found, key=lambda factors: (len(factors), sum(factors)), default=None)

    return split(n, 2) or ()


def _circle_distance(index: Value, size: Value) -> Value:
    """Return `min(k, size - k)` of an index in [0, size), as clamps of it."""
    half = size // 2
    return _clamp(_clamp(index, 0, half) - _clamp(index - (size - half), 0, half), 0, half)


def _smooth(n: Value, most: Value) -> int:
    """Return the least number from `n` on whose prime factors are at most `most`."""
    if not isinstance(n, int) or not isinstance(most, int) or n < 1 or most < 2:
        raise Trouble(f"smooth needs a size and the greatest factor, found {describe(n)} and {describe(most)}")

    def rest(number: int) -> int:
        for factor in range(2, most + 1):
            while number % factor == 0:
                number //= factor
        return number

    return next(number for number in count(n) if rest(number) == 1)


def _evaluation(pairs: Value, size: Value) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Return the matrices B, G, A for which `A @ ((G @ g) * (B @ d))` are the inner products of `size` taps g with all
    windows of d: polynomials evaluated at 0, at the points p and -p of `pairs`, and at infinity (Winograd,
    Arithmetic Complexity of Computations, 1980; Lavin and Gray, arXiv 1509.09308, section 4).

    Points of a pair are neighbours, so terms that vanish by symmetry are exactly 0.
    """
    if not isinstance(size, int) or not all(isinstance(p, (int, float)) and p > 0 for p in pairs):
        raise Trouble(f"evaluation needs positive points and a size, found {describe(pairs)} and {describe(size)}")
    points = (0.0, *(sign * float(p) for p in pairs for sign in (1, -1)))
    results = len(points) + 2 - size
    if results < 1:
        raise Trouble(f"{len(points)} points are too few for {size} taps")
    scale = [math.prod(p - q for q in points if q != p) for p in points]
    b = [(*_polynomial([q for q in points if q != p]), 0.0) for p in points]
    g = [tuple(p**k / n for k in range(size)) for p, n in zip(points, scale, strict=True)]
    a = [(*(p**k for p in points), 1.0 if k == results - 1 else 0.0) for k in range(results)]
    return (*b, _polynomial(points)), (*g, (*(0.0,) * (size - 1), 1.0)), tuple(a)


def _polynomial(roots: Sequence[float]) -> tuple[float, ...]:
    """Return the coefficients of the polynomial with some roots, the constant one first."""
    found: tuple[float, ...] = (1.0,)
    for root in roots:
        found = tuple(a - root * b for a, b in zip((0.0, *found), (*found, 0.0), strict=True))
    return found


def _present(value: Value) -> bool:
    return not isinstance(value, Absent) and value is not None


def _product(items: Value) -> Value:
    if any(isinstance(i, Index) for i in items):
        raise Trouble("the product of indices is not affine; convert them, as in f32(i)")
    return math.prod(items)


def _total(items: Value) -> Value:
    return fold(lambda a, b: a + b, items, 0)


_TABLE = [
    Builtin("rank", (1, 1), _length, "rank(s): number of items of a list, or of axes of a tensor"),
    Builtin("count", (1, 1), _count, "count(x): number of operands a variadic operand stands for"),
    Builtin("present", (1, 1), _present, "present(x): whether an optional operand or attribute is given"),
    Builtin("zeros", (1, 1), lambda like: _fill(like, 0), "zeros(s): a list of zeros as long as s, or of s zeros"),
    Builtin("ones", (1, 1), lambda like: _fill(like, 1), "ones(s): a list of ones as long as s, or of s ones"),
    Builtin("range", (1, 1), lambda n: tuple(range(_short(n))), "range(n): [0, ..., n - 1]"),
    Builtin("sum", (1, 1), _total, "sum(list)"),
    Builtin("prod", (1, 1), _product, "prod(list)"),
    Builtin("min", (1, 9), _extreme("min"), "min(a, b, ...) or min(list)"),
    Builtin("max", (1, 9), _extreme("max"), "max(a, b, ...) or max(list)"),
    Builtin("clamp", (3, 3), _clamp, "clamp(v, low, high): v moved into [low, high]"),
    Builtin(
        "ceildiv", (2, 2), lambda a, b: elementwise(lambda x, y: -(-x // y), a, b), "ceildiv(a, b): a / b rounded up"
    ),
    Builtin(
        "broadcast", (1, 9), _broadcast, "broadcast(s, t, ...): the shape NumPy rules give, or the shapes of a list"
    ),
    Builtin("fit", (2, 2), _fit, "fit(i, s): indices of a tensor of shape s that broadcasts along indices i"),
    Builtin("ravel", (2, 2), _ravel, "ravel(i, s): row-major flat position of indices i in shape s"),
    Builtin("unravel", (2, 2), _unravel, "unravel(p, s): indices in shape s of flat position p"),
    Builtin("inverse", (1, 1), _inverse, "inverse(p): the inverse of a permutation"),
    Builtin("has", (2, 2), _has, "has(list, v): whether v is in the list"),
    Builtin("all", (1, 1), lambda items: all(items), "all(list): whether every item is true"),
    Builtin("put", (3, 3), _put, "put(list, positions, values): the list with some items replaced"),
    Builtin("mirror", (2, 2), _mirror, "mirror(i, s): indices reflected at the ends of [0, s), for reflecting pads"),
    Builtin("ratio", (1, 1), _ratio, "ratio(v): the number as [numerator, denominator]"),
    Builtin("drop", (2, 2), _drop, "drop(list, positions): the list without some positions"),
    Builtin("lowest", (1, 1), lambda t: limit(t, True), "lowest(T): least value of an element type, -inf for a float"),
    Builtin(
        "highest", (1, 1), lambda t: limit(t, False), "highest(T): greatest value of an element type, inf for a float"
    ),
    Builtin("floor", (1, 1), _numbers("floor", lambda v: math.floor(v)), "floor(v)"),
    Builtin("ceil", (1, 1), _numbers("ceil", lambda v: math.ceil(v)), "ceil(v)"),
    Builtin("abs", (1, 1), _numbers("abs", abs), "abs(v)"),
    Builtin("sqrt", (1, 1), _numbers("sqrt", math.sqrt), "sqrt(v)"),
    Builtin("exp", (1, 1), _numbers("exp", math.exp), "exp(v)"),
    Builtin("cos", (1, 1), _numbers("cos", math.cos), "cos(v)"),
    Builtin("sin", (1, 1), _numbers("sin", math.sin), "sin(v)"),
    Builtin("circle", (2, 2), _circle, "circle(k, n): [cosine, sine] of k / n of a full turn"),
    Builtin(
        "radices", (2, 2), _radices, "radices(n, most): few factors of n up to most, none if a prime factor is greater"
    ),
    Builtin("circle_distance", (2, 2), _circle_distance, "circle_distance(k, n): k or n - k, the lesser, for k < n"),
    Builtin("smooth", (2, 2), _smooth, "smooth(n, most): the least number from n on with prime factors up to most"),
    Builtin("evaluation", (2, 2), _evaluation, "evaluation(pairs, size): [B, G, A] of Winograd's convolution"),
]

BUILTINS: dict[str, Builtin] = {builtin.name: builtin for builtin in _TABLE}
#: Functions whose arguments are tensors and lists themselves, never their elements.
ABOUT_TENSORS = frozenset({"rank", "count", "present"})
#: Functions that mean a scalar function, or a chain of them, once an argument is computed per element.
ON_ELEMENTS = frozenset({"sum", "prod", "min", "max", "clamp", "all"}) | (frozenset(BUILTINS) & frozenset(FUNCTIONS))
#: Names every declaration knows.
CONSTANTS: dict[str, Value] = {
    "inf": math.inf,
    "nan": math.nan,
    "pi": math.pi,
    "true": True,
    "false": False,
    "none": None,
}


def takes_elements(args: tuple[Value, ...]) -> bool:
    """Return whether an argument, or item of one, is per element."""
    return any(is_expr(a) or (isinstance(a, tuple) and takes_elements(a)) for a in args)


def apply_builtin(name: str, args: tuple[Value, ...]) -> Value:
    """Call a static function.

    Arguments that it cannot take are the declaration's mistake.
    """
    builtin = BUILTINS[name]
    try:
        return check_bits(builtin.apply(*args), f"the value of {name}")
    except (TypeError, ValueError, IndexError, ArithmeticError, AttributeError) as error:
        raise Trouble(f"{name} cannot take {', '.join(map(describe, args))}; {builtin.summary}") from error
