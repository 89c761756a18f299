"""Text form of scalar expressions.

Examples: `x[n, c, 2*p + r if 0 <= 2*p + r < 13 else 0] * f[k, c, r]`, `max(y[n, k], 0.0)`.

Arithmetic and comparisons are infix, other functions calls, conversions calls of the element type (`f16(x[i])`).
Literals are f32 with a point, i64 without one, or carry their type: `0.5:f16`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ..affine import Guard, Index, Var
from ..errors import ParseError
from ..expr import Call, Cast, Const, Expr, IndexValue, InRange, Read
from ..functions import FUNCTIONS
from ..types import DType, as_float
from .indices import IndexNames, parse_guard, parse_index, print_guard, print_index
from .tokens import Tokens, number_text

T = TypeVar("T")

#: Infix functions: sign and precedence; comparisons do not associate.
_INFIX = {
    "add": ("+", 3), "sub": ("-", 3), "mul": ("*", 4), "div": ("/", 4),
    "lt": ("<", 2), "le": ("<=", 2), "gt": (">", 2), "ge": (">=", 2), "eq": ("==", 2), "ne": ("!=", 2),
}  # fmt: skip
_BY_SIGN = {sign: (fn, level) for fn, (sign, level) in _INFIX.items()}
_COMPARE, _NEGATE, ATOM = 2, 5, 6
#: Texts before which a minus sign would read as part of a literal or as a second sign.
_MINUS_AMBIGUOUS = re.compile(r"-|\d|inf\b|nan\b")
DTYPES = {d.value: d for d in DType}


def print_expr(expr: Expr, names: IndexNames) -> str:
    """Return the text of an expression."""
    return _print(expr, names)[0]


def _print(expr: Expr, names: IndexNames) -> tuple[str, int]:
    """Return the text of an expression and its precedence; shared subexpressions are printed once."""
    found = names.expressions.get(expr)
    if found is None:
        found = names.expressions[expr] = _print_node(expr, names)
    return found


def _print_node(expr: Expr, names: IndexNames) -> tuple[str, int]:
    if isinstance(expr, Const):
        return literal_text(expr.value, expr.dtype)
    if isinstance(expr, Call):
        return call_text(expr.fn, [_print(a, names) for a in expr.args])
    if isinstance(expr, Cast):
        return f"{expr.dtype}({print_expr(expr.arg, names)})", ATOM
    return _print_leaf(expr, names), ATOM


def _print_leaf(expr: Read | IndexValue | InRange, names: IndexNames) -> str:
    if isinstance(expr, Read):
        inner = ", ".join(print_index(i, names) for i in expr.indices)
        return f"{names.quote(expr.tensor)}[{inner}{guards_text(expr.guards, expr.fill, names)}]"
    if isinstance(expr, InRange):
        return f"inside({', '.join(print_guard(g, names) for g in expr.guards)})"
    dtype = "" if expr.dtype is DType.I64 else f":{expr.dtype}"
    return f"index({print_index(expr.index, names)}){dtype}"


def guards_text(guards: Sequence[Guard], fill: float, names: IndexNames) -> str:
    """Return ` if GUARDS else FILL`, or an empty text without guards.

    A fill other than 0 is printed without guards too.
    """
    if not guards and repr(float(fill)) == "0.0":
        return ""
    return f" if {', '.join(print_guard(g, names) for g in guards)} else {number_text(fill)}"


def call_text(fn: str, args: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Return the text of a function of printed operands, with its precedence.

    Each operand comes with its precedence.
    """
    if fn == "neg" and not _MINUS_AMBIGUOUS.match(negated := _wrap(*args[0], _NEGATE)):
        return f"-{negated}", _NEGATE
    if fn not in _INFIX:
        return f"{fn}({', '.join(text for text, _ in args)})", ATOM
    sign, level = _INFIX[fn]
    left = _wrap(*args[0], level + (level == _COMPARE))
    return f"{left} {sign} {_wrap(*args[1], level + 1)}", level


def _wrap(text: str, level: int, least: int) -> str:
    return text if level >= least else f"({text})"


def literal_text(value: float | bool, dtype: DType) -> tuple[str, int]:
    """Return a literal and its precedence.

    The type is printed where the text does not imply it.
    """
    if isinstance(value, bool):
        text, usual = ("true" if value else "false"), DType.BOOL
    elif isinstance(value, float):
        text, usual = repr(value), DType.F32
    else:
        text, usual = str(value), DType.I64
    return text if dtype is usual else f"{text}:{dtype}", _NEGATE if text.startswith("-") else ATOM


def parse_dtype(tokens: Tokens) -> DType:
    """Read an element type."""
    if tokens.peek().text not in DTYPES:
        raise tokens.fail("an element type")
    return DTYPES[tokens.take("word", "an element type").text]


def parse_literal(tokens: Tokens) -> tuple[float | int | bool, DType] | None:
    """Read a literal if one follows."""
    value: float | int | bool
    token = tokens.peek(1) if tokens.follows("-") else tokens.peek()
    if token.kind == "word" and token.text in ("true", "false"):
        tokens.at += 1
        value, dtype = token.text == "true", DType.BOOL
    elif token.kind == "number" or (token.kind == "word" and token.text in ("inf", "nan")):
        value = tokens.number()
        dtype = DType.F32 if isinstance(value, float) else DType.I64
    else:
        return None
    return value, parse_dtype(tokens) if tokens.accept(":") else dtype


def parse_guards(tokens: Tokens, declared: Mapping[str, Var], stop: str) -> tuple[Guard, ...]:
    """Read guards up to a closing word, which stays."""
    found: list[Guard] = []
    while not tokens.follows(stop):
        found.append(parse_guard(tokens, declared))
        if not tokens.accept(","):
            break
    return tuple(found)


def parse_operation(
    tokens: Tokens, leaf: Callable[[], T], make: Callable[[str, tuple[T, ...]], T], least: int = 0
) -> T:
    """Read infix operations and calls over leaves.

    `leaf` reads a leaf, `make` builds a node of a function and its operands.
    """
    left = _parse_unary(tokens, leaf, make)
    while tokens.peek().kind == "mark" and tokens.peek().text in _BY_SIGN:
        fn, level = _BY_SIGN[tokens.peek().text]
        if level < least:
            break
        tokens.at += 1
        left = make(fn, (left, parse_operation(tokens, leaf, make, level + 1)))
        least = level + 1 if level == _COMPARE else least
    return left


def _parse_unary(tokens: Tokens, leaf: Callable[[], T], make: Callable[[str, tuple[T, ...]], T]) -> T:
    number_next = tokens.peek(1).kind == "number" or tokens.peek(1).text in ("inf", "nan")
    if tokens.follows("-") and not number_next:
        tokens.expect("-")
        return make("neg", (_parse_unary(tokens, leaf, make),))
    if tokens.accept("("):
        inner = parse_operation(tokens, leaf, make)
        tokens.expect(")")
        return inner
    token = tokens.peek()
    if token.kind != "word" or token.text not in FUNCTIONS or tokens.peek(1).text != "(":
        return leaf()
    tokens.at += 2
    args = [parse_operation(tokens, leaf, make)]
    while tokens.accept(","):
        args.append(parse_operation(tokens, leaf, make))
    tokens.expect(")")
    if len(args) != FUNCTIONS[token.text].arity:
        expected = f"'{token.text}' takes {FUNCTIONS[token.text].arity} operands, found {len(args)}"
        raise ParseError(expected, tokens.span(token))
    return make(token.text, tuple(args))


def parse_expr(tokens: Tokens, declared: Mapping[str, Var]) -> Expr:
    """Read an expression."""

    def make(fn: str, args: tuple[Expr, ...]) -> Expr:
        return Call(fn, args)

    def leaf() -> Expr:
        literal = parse_literal(tokens)
        if literal is not None:
            return Const(*literal)
        if tokens.peek().kind == "word" and tokens.peek(1).text == "(":
            return _parse_word(tokens, declared)
        return _parse_read(tokens, declared)

    return parse_operation(tokens, leaf, make)


def _parse_word(tokens: Tokens, declared: Mapping[str, Var]) -> Expr:
    if tokens.peek().text in DTYPES:
        dtype = parse_dtype(tokens)
        tokens.expect("(")
        arg = parse_expr(tokens, declared)
        tokens.expect(")")
        return Cast(dtype, arg)
    if tokens.accept("inside"):
        tokens.expect("(")
        guards = parse_guards(tokens, declared, ")")
        tokens.expect(")")
        return InRange(guards)
    if not tokens.accept("index"):
        raise tokens.fail("a function")
    tokens.expect("(")
    index = parse_index(tokens, declared)
    tokens.expect(")")
    return IndexValue(index, parse_dtype(tokens)) if tokens.accept(":") else IndexValue(index)


def _parse_read(tokens: Tokens, declared: Mapping[str, Var]) -> Read:
    tensor = tokens.name("an expression")
    tokens.expect("[")
    indices: list[Index] = []
    while not tokens.follows("]") and not tokens.follows("if"):
        indices.append(parse_index(tokens, declared))
        if not tokens.accept(","):
            break
    guards: tuple[Guard, ...] = ()
    fill: float = 0.0
    if tokens.accept("if"):
        guards = parse_guards(tokens, declared, "else")
        tokens.expect("else")
        fill = as_float(tokens.number())
    tokens.expect("]")
    return Read(tensor, tuple(indices), guards, fill)
