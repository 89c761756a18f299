"""Text form of indices, guards and variables.

Examples: `2*p + r - 1`, `0 <= 2*p + r - 1 < 13`, `(q // 4)`, `ids[n]{1000}`.

A variable is written by its name; its range stands once, in a declaration `var p < 13` at the head of the text. A
second variable of the same name and another range is written with its range, `p'7`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import pairwise

from attrs import define, field

from ..affine import Clamp, FloorDiv, Guard, Index, Indirect, Mod, Primary, Var, as_index, primary_index
from ..errors import ParseError
from ..expr import Expr
from .tokens import Tokens, quote

_WIDTH = 120


@define
class IndexNames:
    """Names of variables and tensors in a text; caches printed texts.

    Declared variables are printed by name, words of the language in quotes. `indices` and `expressions` are the texts
    that were printed, as most occur several times.
    """

    reserved: Container[str] = frozenset()
    declared: dict[str, Var] = field(factory=dict)
    indices: dict[Index, str] = field(factory=dict)
    expressions: dict[Expr, tuple[str, int]] = field(factory=dict)

    def declare(self, variables: Iterable[Var]) -> None:
        """Declare variables; of those that share a name, the first."""
        self.indices.clear()
        self.expressions.clear()
        for variable in variables:
            self.declared.setdefault(variable.name, variable)

    def quote(self, name: str) -> str:
        """Return the name of a tensor, buffer or reduction."""
        return quote(name, self.reserved)

    def variable(self, variable: Var) -> str:
        """Return a variable's name.

        Its range follows where another variable has the name.
        """
        text = self.quote(variable.name)
        return text if self.declared.get(variable.name) == variable else f"{text}'{variable.extent}"

    def declarations(self) -> list[str]:
        """Return the lines that declare the variables."""
        lines: list[str] = []
        for variable in self.declared.values():
            text = f"{self.quote(variable.name)} < {variable.extent}"
            if lines and len(lines[-1]) + len(text) < _WIDTH:
                lines[-1] += f", {text}"
            else:
                lines.append(f"var {text}")
        return lines


def print_index(index: Index, names: IndexNames) -> str:
    """Return the text of an index."""
    found = names.indices.get(index)
    if found is None:
        found = names.indices[index] = _index_text(index, names)
    return found


def _index_text(index: Index, names: IndexNames) -> str:
    parts: list[str] = []
    for primary, factor in index.terms:
        text = _print_primary(primary, names)
        text = text if abs(factor) == 1 else f"{abs(factor)}*{text}"
        sign = ("" if factor > 0 else "-") if not parts else ("+ " if factor > 0 else "- ")
        parts.append(sign + text)
    if not parts:
        return str(index.const)
    if index.const:
        parts.append(f"{'+' if index.const > 0 else '-'} {abs(index.const)}")
    return " ".join(parts)


def _print_primary(primary: Primary, names: IndexNames) -> str:
    if isinstance(primary, Var):
        return names.variable(primary)
    if isinstance(primary, (FloorDiv, Mod)):
        inner = print_index(primary.num, names)
        is_sum = len(primary.num.terms) + bool(primary.num.const) > 1
        return f"({f'({inner})' if is_sum else inner} {'//' if isinstance(primary, FloorDiv) else '%'} {primary.den})"
    if isinstance(primary, Clamp):
        return f"clamp({print_index(primary.arg, names)}, {primary.low}, {primary.high})"
    inner = ", ".join(print_index(i, names) for i in primary.indices)
    notes = f"{'' if primary.wraps else ' nowrap'}{' held' if primary.held else ''}"
    return f"{names.quote(primary.tensor)}[{inner}]{{{primary.extent}{notes}}}"


def print_guard(guard: Guard, names: IndexNames) -> str:
    """Return the text of a guard."""
    return f"{guard.low} <= {print_index(guard.index, names)} < {guard.high}"


def parse_declarations(tokens: Tokens) -> dict[str, Var]:
    """Read the `var` lines at the head of a text.

    Raises `ParseError` where a variable is declared twice.
    """
    found: dict[str, Var] = {}
    while tokens.accept("var"):
        more = True
        while more:
            token = tokens.peek()
            name = tokens.name("a variable")
            if name in found:
                raise ParseError(f"variable '{name}' is declared twice", tokens.span(token))
            tokens.expect("<")
            found[name] = Var(name, tokens.integer())
            more = tokens.accept(",")
    return found


def parse_variable(tokens: Tokens, declared: Mapping[str, Var]) -> Var:
    """Read a variable, declared or with its range.

    Raises `ParseError` where it has no range and is not declared.
    """
    token = tokens.peek()
    name = tokens.name("a variable")
    if tokens.accept("'"):
        return Var(name, tokens.integer())
    if name not in declared:
        known = f"declared are: {', '.join(declared)}" if declared else "none is declared"
        raise ParseError(f"unknown variable '{name}'", tokens.span(token), known)
    return declared[name]


def parse_index(tokens: Tokens, declared: Mapping[str, Var]) -> Index:
    """Read an index.

    A printed index is read back unchanged; other sums are brought into canonical form.
    """
    const = 0
    terms: list[tuple[Primary, int]] = []
    sign = -1 if tokens.accept("-") else 1
    while True:
        factor, part = _parse_term(tokens, declared)
        const += sign * factor * part.const
        terms.extend((primary, sign * factor * inner) for primary, inner in part.terms)
        sign = 1 if tokens.accept("+") else -1
        if sign < 0 and not tokens.accept("-"):
            return _sum(const, terms)


def _sum(const: int, terms: list[tuple[Primary, int]]) -> Index:
    texts = [primary.text for primary, _ in terms]
    if all(a < b for a, b in pairwise(texts)) and all(factor for _, factor in terms):
        return Index(const, tuple(terms))
    total = as_index(const)
    for primary, factor in terms:
        total = total + primary_index(primary) * factor
    return total


def _parse_term(tokens: Tokens, declared: Mapping[str, Var]) -> tuple[int, Index]:
    if tokens.peek().kind == "number":
        factor = tokens.integer()
        return (factor, _parse_factor(tokens, declared)) if tokens.accept("*") else (factor, Index(1))
    return 1, _parse_factor(tokens, declared)


def _parse_factor(tokens: Tokens, declared: Mapping[str, Var]) -> Index:
    """Read a primary, or a sum in parentheses."""
    if not tokens.accept("("):
        return Index(0, ((_parse_primary(tokens, declared), 1),))
    inner = parse_index(tokens, declared)
    kind = FloorDiv if tokens.accept("//") else Mod if tokens.accept("%") else None
    if kind is not None:
        inner = Index(0, ((kind(inner, _divisor(tokens)), 1),))
    tokens.expect(")")
    return inner


def _parse_primary(tokens: Tokens, declared: Mapping[str, Var]) -> Primary:
    if tokens.accept("clamp"):
        tokens.expect("(")
        inner = parse_index(tokens, declared)
        tokens.expect(",")
        low = tokens.integer()
        tokens.expect(",")
        high = tokens.integer()
        tokens.expect(")")
        return Clamp(inner, low, high)
    after = tokens.peek(1)
    if after.kind == "mark" and after.text == "[":
        return _parse_indirect(tokens, declared)
    return parse_variable(tokens, declared)


def _divisor(tokens: Tokens) -> int:
    token = tokens.peek()
    value = tokens.integer()
    if value < 1:
        raise ParseError(f"expected a divisor above 0, found {value}", tokens.span(token))
    return value


def _parse_indirect(tokens: Tokens, declared: Mapping[str, Var]) -> Indirect:
    tensor = tokens.name("a tensor")
    tokens.expect("[")
    indices: list[Index] = []
    while not tokens.follows("]"):
        indices.append(parse_index(tokens, declared))
        if not tokens.accept(","):
            break
    tokens.expect("]")
    tokens.expect("{")
    extent = tokens.integer()
    wraps = not tokens.accept("nowrap")
    held = tokens.accept("held")
    tokens.expect("}")
    return Indirect(tensor, tuple(indices), extent, wraps, held)


def parse_guard(tokens: Tokens, declared: Mapping[str, Var]) -> Guard:
    """Read a guard."""
    low = tokens.integer()
    tokens.expect("<=")
    index = parse_index(tokens, declared)
    tokens.expect("<")
    return Guard(index, low, tokens.integer())
