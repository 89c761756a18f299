"""Values of a declaration's expressions at known shapes, and their arithmetic.

Three stages meet in one language: static values (numbers, strings, lists, element types), index expressions, and scalar
expressions computed per element. An operation takes the highest stage of its operands; lists work item by item.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import frozen

from ....ir import (
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    IndexValue,
    InRange,
    Read,
    TensorType,
    call,
    dtype_of,
    variables,
)


@frozen
class TensorRef:
    """Tensor by its formal name.

    `items` is its declared shape entry by entry, a tuple for a spread one.

    With a `row` it is one of a list of tensors, the one with that number: part `row` of the tensor `name`, which has
    one more leading axis than `type`.
    """

    name: str
    type: TensorType
    items: tuple[int | tuple[int, ...], ...] = ()
    row: Index | None = None


@frozen
class TensorList:
    """`count` intermediates of one type, the declared `name[j]`.

    Each has a name of its own as long as numbers select it. Where an index does (the iteration of a loop), they are the
    rows of one tensor `name`.
    """

    name: str
    type: TensorType
    items: tuple[int | tuple[int, ...], ...]
    count: int

    @property
    def whole(self) -> TensorType:
        """The type of the tensor whose rows they are."""
        return TensorType(self.type.dtype, (self.count, *self.type.shape))

    def item(self, name: str) -> TensorRef:
        """Return one of them that has a name of its own."""
        return TensorRef(name, self.type, self.items)

    def row(self, place: Index) -> TensorRef:
        """Return the one that an index names."""
        return TensorRef(self.name, self.type, self.items, place)


@frozen
class Absent:
    """An optional operand that was not given."""

    name: str


Value: TypeAlias = Any  #: int, float, bool, str, None, DType, Index, Expr, TensorRef, Absent, or a tuple of values

EXPRS = (Const, Read, IndexValue, InRange, Call, Cast)
_STATIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_SCALAR = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "%": "floormod", "**": "pow", "<": "lt", "<=": "le", ">": "gt",
    ">=": "ge", "==": "eq",
    "!=": "ne", "and": "and", "or": "or",
}  # fmt: skip
_NUMBERS = (int, float)
#: Most bits of an integer, and digits that a message shows of a longer one.
_MAX_INTEGER_BITS, _MAX_SHOWN_DIGITS = 128, 40
_NEUTRAL = {("+", 0): "both", ("-", 0): "right", ("*", 1): "both", ("/", 1): "right", ("**", 1): "right"}


class Trouble(Exception):
    """An operation that has no meaning; the evaluator adds where it stands."""


def is_expr(value: Value) -> bool:
    """Return whether a value is computed per element."""
    return isinstance(value, EXPRS)


def is_static(value: Value) -> bool:
    """Return whether a value is known at instantiation and is no list."""
    return value is None or isinstance(value, (int, float, str, DType))


def describe(value: Value) -> str:
    """Return the words for a value in a message."""
    if isinstance(value, tuple):
        return "[" + ", ".join(describe(v) for v in value) + "]"
    if isinstance(value, TensorList):
        return f"the list of tensors '{value.name}'"
    if isinstance(value, TensorRef):
        return f"tensor '{value.name}'"
    if isinstance(value, Absent):
        return f"the absent operand '{value.name}'"
    if isinstance(value, Index):
        return value.text
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return _integer_text(value)
    return "an element value" if is_expr(value) else str(value)


def _integer_text(value: int) -> str:
    """Return an integer, truncated if long: converting many digits takes long, and Python refuses."""
    if value.bit_length() <= _MAX_INTEGER_BITS:
        return str(value)
    if value.bit_length() > 1 << 13:
        return f"an integer of {value.bit_length()} bits"
    text = str(value)
    return f"{text[:_MAX_SHOWN_DIGITS]}... ({len(text.lstrip('-'))} digits)"


def to_expr(value: Value, dtype: DType) -> Expr:
    """Return a value as a scalar expression.

    Literals and indices take the element type `dtype`.
    """
    if is_expr(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, Index):
        return Const(value.const, dtype) if value.is_const else IndexValue(value, dtype)
    if isinstance(value, bool):
        return Const(value if dtype is DType.BOOL else dtype.numpy.type(value).item(), dtype)
    if isinstance(value, _NUMBERS):
        if dtype is DType.BOOL:
            raise Trouble(f"expected a condition, found the number {value}")
        return literal(value, dtype)
    raise Trouble(f"expected a number or an element, found {describe(value)}")


def literal(value: float | int | bool, dtype: DType) -> Const:
    """Return a number as one of an element type.

    Raises `Trouble` where the type does not have it.
    """
    if not dtype.holds(value):
        raise Trouble(f"{value} is no value of element type {dtype}")
    return Const(float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value), dtype)


class Arithmetic:
    """Infix and scalar functions over values.

    The tensors' types give literals an element type.
    """

    def __init__(self, tensors: Mapping[str, TensorType]) -> None:
        self.tensors = tensors

    def dtype(self, expr: Expr) -> DType:
        """Return the element type of a scalar expression."""
        return dtype_of(expr, self.tensors)

    def infix(self, op: str, left: Value, right: Value) -> Value:
        """Return `left op right`."""
        if op == "++":
            return _as_list(left) + _as_list(right)
        if op in ("==", "!=") and isinstance(left, tuple) and isinstance(right, tuple):
            return _STATIC[op](left, right)
        return elementwise(lambda a, b: self._infix(op, a, b), left, right)

    def _infix(self, op: str, left: Value, right: Value) -> Value:
        if is_expr(left) or is_expr(right):
            return self._scalar_infix(op, left, right)
        if isinstance(left, Index) or isinstance(right, Index):
            return _index_infix(op, left, right)
        if op in ("==", "!="):
            return _STATIC[op](left, right)
        if not isinstance(left, _NUMBERS) or not isinstance(right, _NUMBERS):
            raise Trouble(f"cannot compute {describe(left)} {op} {describe(right)}")
        if op in ("/", "//", "%") and right == 0:
            raise Trouble(f"division by zero in {describe(left)} {op} {describe(right)}")
        return _static_infix(op, left, right)

    def _scalar_infix(self, op: str, left: Value, right: Value) -> Value:
        if is_static(right) and _NEUTRAL.get((op, right)) in ("both", "right"):
            return left
        if is_static(left) and _NEUTRAL.get((op, left)) == "both":
            return right
        if op == "**" and right == 2:
            return call("mul", left, left)
        if op not in _SCALAR:
            raise Trouble(f"'{op}' is for sizes and indices, not for elements; use floor(a / b)")
        return call(_SCALAR[op], *self.unify(left, right))

    def unify(self, *values: Value) -> tuple[Expr, ...]:
        """Return values as expressions of one element type."""
        types = list(dict.fromkeys(self.dtype(v) for v in values if is_expr(v)))
        if len(types) > 1:
            raise Trouble(
                f"operands have element types {' and '.join(map(str, types))}; convert one, as in {types[0]}(...)"
            )
        return tuple(to_expr(v, types[0]) for v in values)

    def condition(self, value: Value) -> Expr:
        """Return a value as a condition."""
        expr = to_expr(value, DType.BOOL)
        if self.dtype(expr) is not DType.BOOL:
            raise Trouble(f"expected a condition, found a value of type {self.dtype(expr)}")
        return expr

    def select(self, test: Value, then: Value, other: Value, dtype: DType) -> Value:
        """Return `then if test else other` for a per-element test."""
        if not is_expr(then) and not is_expr(other):
            then, other = to_expr(then, dtype), to_expr(other, dtype)
        return call("select", self.condition(test), *self.unify(then, other))

    def widen(self, value: Value) -> Value:
        """Return an element in the type of its sums."""
        return self.convert(DType(self.dtype(value).element.wide), value) if is_expr(value) else value

    def convert(self, dtype: DType, value: Value) -> Value:
        """Return a value converted to an element type."""
        if isinstance(value, tuple):
            return tuple(self.convert(dtype, v) for v in value)
        if isinstance(value, Index):
            return to_expr(value, dtype)
        if not is_expr(value):
            return to_expr(value, dtype)
        return value if self.dtype(value) is dtype else Cast(dtype, value)


def _static_infix(op: str, left: float, right: float) -> float:
    """Return `left op right` of numbers; too large numbers are a mistake, and could take for ever."""
    text = f"{describe(left)} {op} {describe(right)}"
    whole = isinstance(left, int) and isinstance(right, int)
    if op == "**" and whole and abs(left) > 1 and right > _MAX_INTEGER_BITS:
        raise Trouble(f"{text} has more than {_MAX_INTEGER_BITS} bits")
    try:
        value = _STATIC[op](left, right)
    except OverflowError:
        raise Trouble(f"{text} is too large for a number") from None
    except ZeroDivisionError:
        raise Trouble(f"division by zero in {text}") from None
    if isinstance(value, complex):
        raise Trouble(f"{text} is no real number")
    return check_bits(value, text)  # type: ignore[no-any-return]


def check_bits(value: Value, text: str) -> Value:
    """Return a value, unless it is an integer with too many bits.

    Such an integer can only be a mistake; `text` names its source.
    """
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise Trouble(f"{text} has more than {_MAX_INTEGER_BITS} bits")
    return value


def elementwise(fn: Callable[..., Value], *args: Value) -> Value:
    """Apply a function item by item where arguments are lists.

    The others repeat.
    """
    lengths = {len(a) for a in args if isinstance(a, tuple)}
    if not lengths:
        return fn(*args)
    if len(lengths) > 1:
        raise Trouble(f"lists of lengths {' and '.join(map(str, sorted(lengths)))} do not go together")
    (length,) = lengths
    return tuple(elementwise(fn, *(a[i] if isinstance(a, tuple) else a for a in args)) for i in range(length))


def _as_list(value: Value) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


def _index_infix(op: str, left: Value, right: Value) -> Value:
    for value in (left, right):
        if not isinstance(value, (Index, int)):
            raise Trouble(f"an index takes integers only, found {describe(value)}")
    if op in ("+", "-"):
        left = left if isinstance(left, Index) else Index(left)
        return left + right if op == "+" else left - right
    if op == "*":
        if isinstance(left, Index) and isinstance(right, Index):
            if left.is_const:
                return right * left.const
            if right.is_const:
                return left * right.const
            raise Trouble(f"the product of {left.text} and {right.text} is not affine")
        return left * right if isinstance(left, Index) else right * left
    if op in ("//", "%"):
        divisor = right.const if isinstance(right, Index) and right.is_const else right
        if divisor == 0 and isinstance(left, Index) and not all(v.extent for v in variables(left)):
            return Index()  # of no values
        if not isinstance(divisor, int) or divisor <= 0 or not isinstance(left, Index):
            raise Trouble(
                f"an index is divided by positive integers only, found {describe(left)} {op} {describe(right)}"
            )
        return left // divisor if op == "//" else left % divisor
    if op in ("<", "<=", ">", ">=", "==", "!="):
        return _compare(op, left, right)
    raise Trouble(
        f"'{op}' has no meaning between indices {describe(left)} and {describe(right)}; convert one, as in f32(i)"
    )


def _compare(op: str, left: Index | int, right: Index | int) -> Value:
    """Return a comparison of indices as a guard, or as true or false where the ranges decide it."""
    difference = (left if isinstance(left, Index) else Index(left)) - right
    low, high = difference.bounds()
    span = {"<": (low, 0), "<=": (low, 1), ">": (1, high + 1), ">=": (0, high + 1), "==": (0, 1), "!=": (0, 1)}[op]
    guard = Guard(difference, *span)
    if op == "!=":
        return True if guard.never else False if guard.always else call("not", InRange((guard,)))
    return False if guard.never else True if guard.always else InRange((guard,))
