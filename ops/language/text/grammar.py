"""Parse trees of `.cuts` text by Lark, and readable syntax errors.

Only this module and `transform.py` import Lark: a compilation that parses nothing does without it.
"""

from __future__ import annotations

import marshal
import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from importlib.resources import files
from typing import Any

import lark
from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken
from lark.grammar import Rule
from lark.lexer import TerminalDef

from ....ir import CutsError, ParseError, Source, Span
from .parser_cache import provided_parser_cache
from .syntax import Declaration
from .transform import TreeBuilder

_MAX_SYNTAX_ERRORS = 8
_MAX_DEPTH = 100
_MAX_DIGITS = 40
_READABLE = {
    "NAME": "a name", "NUMBER": "a number", "STRING": "a string", "REDUCE": "a reduction", "SPREAD": "'...'",
    "COMPARE": "a comparison", "DIVIDE": "'/'", "STAR": "'*'", "PLUS": "'+'", "MINUS": "'-'", "CONCAT": "'++'",
    "POWER": "'**'", "OPTIONAL": "'?'", "COLON": "':'", "LSQB": "'['", "RSQB": "']'", "LPAR": "'('", "RPAR": "')'",
    "LBRACE": "'{'", "RBRACE": "'}'", "COMMA": "','", "EQUAL": "'='",
    "LESSTHAN": "'<'", "VBAR": "'|'", "$END": "the end",
}  # fmt: skip
_OPERATORS = {"COMPARE", "DIVIDE", "STAR", "PLUS", "MINUS", "CONCAT", "POWER", "IF", "OUTSIDE", "AND", "OR"}
_ITEMS = {"IN", "OUT", "TEMP", "ATTR", "LET", "TABLE", "REQUIRE", "TYPE", "EACH", "ALGORITHM", "GRAD", "ARRIVING"}


#: Options of the parser, which its serialised tables contain.
_OPTIONS: dict[str, Any] = {
    "parser": "lalr", "start": ["declaration", "expr"], "propagate_positions": True, "maybe_placeholders": True,
}  # fmt: skip


@lru_cache(maxsize=1)
def _lark() -> Lark:
    """Return the parser, by its cached tables where there are any."""
    grammar = files(__package__.partition(".")[0] + ".spec").joinpath("cuts.lark").read_text()
    cache = provided_parser_cache()
    if cache is None:
        return Lark(grammar, **_OPTIONS)
    facts = {"grammar": grammar, "options": repr(_OPTIONS), "lark": lark.__version__, "python": sys.version}
    tables = cache.get(facts)
    if tables is not None:
        with suppress(ValueError, EOFError, TypeError, KeyError):
            data, memo = marshal.loads(tables)
            return Lark.load({"data": data, "memo": memo})
    parser = Lark(grammar, **_OPTIONS)
    cache.put(facts, marshal.dumps(parser.memo_serialize([TerminalDef, Rule])))
    return parser


def build(source: Source, start: int, text: str, rule: str) -> Any:
    """Return the syntax tree of a text at a source's offset.

    Raises `ParseError` where it does not follow the grammar.
    """
    try:
        tree = _lark().parse(text, start=rule)
    except UnexpectedInput as error:
        raise _syntax_error(source, start, text, error) from error
    return _transform(source, start, tree)


def build_declaration(source: Source, start: int, text: str) -> tuple[Declaration | None, list[CutsError]]:
    """Return the declaration of a text, or all of its syntax errors."""
    try:
        tree = _lark().parse(text, start="declaration")
    except UnexpectedInput as error:
        return None, _syntax_errors(source, start, text, error)
    try:
        return _transform(source, start, tree), []
    except ParseError as error:
        return None, [error]


def _transform(source: Source, start: int, tree: Tree[Token]) -> Any:
    _check_depth(source, start, tree)
    _check_numbers(source, start, tree)
    return TreeBuilder(source, start).transform(tree)


def _check_depth(source: Source, start: int, tree: Tree[Token]) -> None:
    """Refuse expressions nested so deep that later walks over them would exhaust the stack."""
    level: list[Tree[Token]] = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in node.children if isinstance(child, Tree)]
        if not level:
            return
    meta = next((node.meta for node in level if not node.meta.empty), None)
    span = Span(source, start + meta.start_pos, start + meta.end_pos) if meta else Span(source, start, start + 1)
    raise ParseError(f"this is nested more than {_MAX_DEPTH} levels deep", span, "give parts of it names")


def _check_numbers(source: Source, start: int, tree: Tree[Token]) -> None:
    """Refuse numbers that nothing could hold."""
    for token in tree.scan_values(lambda value: isinstance(value, Token) and value.type == "NUMBER"):
        first = start + (token.start_pos or 0)
        span, digits = Span(source, first, first + len(token)), sum(map(str.isdigit, token))
        if digits > _MAX_DIGITS:
            raise ParseError(f"a number has at most {_MAX_DIGITS} digits, found {digits}", span)
        if not token.isdigit() and math.isinf(float(token)):
            raise ParseError("this number is too large", span, "write inf for infinity")


def _syntax_errors(source: Source, start: int, text: str, first: UnexpectedInput) -> list[CutsError]:
    errors: list[CutsError] = []
    error: UnexpectedInput | None = first
    while error is not None and len(errors) < _MAX_SYNTAX_ERRORS:
        found = _syntax_error(source, start, text, error)
        at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        if at_end and errors:
            break
        errors.append(found)
        blanked = None if at_end else _blank_line(text, error.pos_in_stream or 0)
        if blanked is None:
            break
        text, error = blanked, None
        try:
            _lark().parse(text, start="declaration")
        except UnexpectedInput as following:
            error = following
    return errors


def _blank_line(text: str, position: int) -> str | None:
    """Blank the line an error lies on, or the one before when its first word already fails; None at the head."""
    low = text.rfind("\n", 0, position) + 1
    if not text[low:position].strip() and text.rstrip()[low:].strip() != "}":
        earlier = text[:low].rstrip()
        low = earlier.rfind("\n") + 1
    high = (text + "\n").index("\n", low)
    return text[:low] + " " * (high - low) + text[high:] if low > 0 else None


def _syntax_error(source: Source, start: int, text: str, error: UnexpectedInput) -> ParseError:
    if isinstance(error, UnexpectedCharacters):
        position = error.pos_in_stream or 0
        span = Span(source, start + position, start + position + 1)
        return ParseError(f"unexpected character {text[position]!r}", span, _expected_text(error.allowed))
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        position = error.token.start_pos or 0
        span = Span(source, start + position, start + position + len(error.token))
        return ParseError(f"unexpected {str(error.token)!r}", span, _expected_text(error.accepts or error.expected))
    assert isinstance(error, (UnexpectedToken, UnexpectedEOF))
    position = len(text.rstrip())
    span = Span(source, start + max(0, position - 1), start + position)
    return ParseError(
        "unexpected end of the declaration",
        span,
        _expected_text(error.accepts if isinstance(error, UnexpectedToken) else ()),
    )


def _expected_text(terminals: Iterable[str] | None) -> str:
    """Return a text for the terminals that could stand here, with operators and items of a declaration summed up."""
    names = set(terminals or ())
    parts: list[str] = []
    if len(names & _OPERATORS) > 3:
        names -= _OPERATORS
        parts.append("an operator")
    if len(names & _ITEMS) > 3:
        names -= _ITEMS | {"NAME"}
        parts.append("a line of the declaration (in, out, attr, let, require, ... or an assignment)")
    if "NAME" in names:  # which begins an assignment too
        names -= {"ARRIVING"}
    if {"NAME", "NUMBER", "LPAR"} <= names:
        names -= {"NAME", "NUMBER", "LPAR", "LSQB", "STRING", "MINUS", "REDUCE", "NOT"}
        parts.append("an expression")
    parts.extend(sorted(_READABLE.get(n, f"'{n.lower()}'") for n in names))
    return "expected " + " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""
