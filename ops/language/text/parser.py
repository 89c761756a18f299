"""Reading `.cuts` text into the syntax tree.

The text is cut at the lines that begin a declaration, and each piece is parsed alone: a slip in one declaration hides
no error of another. Within a piece, a line with an error is blanked and the rest parsed again, to find the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from attrs import evolve

from ....ir import CutsError, ParseError, Source, Span, raise_all
from .syntax import Declaration, Expression, Item

#: A value to put into a message: an expression in braces.
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_HEAD = re.compile(r"^(?:op|family)\b", re.MULTILINE)
_NAMED_HEAD = re.compile(r"^(?P<kind>op|family)\s+(?P<name>\w+)", re.MULTILINE)


def parse(source: Source) -> tuple[Declaration, ...]:
    """Return the declarations of a text; raise every syntax error at once."""
    declarations, errors = parse_all(source)
    raise_all(errors)
    return declarations


def parse_all(source: Source) -> tuple[tuple[Declaration, ...], list[CutsError]]:
    """Return the declarations that parse, and the errors of the others."""
    from .grammar import build_declaration

    declarations: list[Declaration] = []
    starts = [m.start() for m in _HEAD.finditer(source.text)] + [len(source.text)]
    errors: list[CutsError] = list(_stray_text(source, starts[0]))
    for start, end in pairwise(starts):
        declaration, found = build_declaration(source, start, source.text[start:end])
        declarations += [declaration] if declaration else []
        errors += found
    return tuple(declarations), errors


def pieces(source: Source) -> Iterator[tuple[str, str, int, int]]:
    """Yield kind, name, start and end of each declaration of a text.

    Nothing is parsed.
    """
    heads = [*_NAMED_HEAD.finditer(source.text)]
    ends = [*(m.start() for m in heads[1:]), len(source.text)]
    for head, end in zip(heads, ends, strict=True):
        yield head["kind"], head["name"], head.start(), end


def parse_piece(source: Source, start: int, end: int) -> Declaration:
    """Return the declaration that stands there.

    Raises `ParseError` where it is none.
    """
    declaration: Declaration = _build(source, start, source.text[start:end], "declaration")
    return declaration


def parse_written(source: Source) -> Declaration:
    """Return the declaration of a text that `declare` wrote.

    The text has a head, items of whole lines, and a brace. Each item is parsed once, however many declarations have it:
    of the gradients of a network most have most lines in common.
    """
    head, *lines = source.text.rstrip().split("\n")
    assert head.endswith("{") and lines[-1:] == ["}"], "that is how it is written"
    declaration: Declaration = _build(source, 0, f"{head}\n}}", "declaration")
    return evolve(declaration, items=tuple(item for text in _chunks(lines[:-1]) for item in _written_items(text)))


def _chunks(lines: Sequence[str]) -> Iterator[str]:
    """Yield items: lines that are indented further than the first one belong to the item before, as does its closing
    brace.
    """
    chunk: list[str] = []
    for line in lines:
        if chunk and not line.startswith(("   ", "  }")):
            yield "\n".join(chunk)
            chunk = []
        chunk.append(line)
    if chunk:
        yield "\n".join(chunk)


@lru_cache(maxsize=1 << 13)
def _written_items(text: str) -> tuple[Item, ...]:
    whole = f'op item "" {{\n{text}\n}}'
    declaration: Declaration = _build(Source("a line that was written", whole), 0, whole, "declaration")
    return declaration.items


def parse_expression(source: Source, start: int, text: str) -> Expression:
    """Parse one expression that stands at an offset of a source."""
    node: Expression = _build(source, start, text, "expr")
    return node


def _build(source: Source, start: int, text: str, rule: str) -> Any:
    """Return a syntax tree; Lark is imported where a text is parsed, as a cached plan needs no declaration."""
    from .grammar import build

    return build(source, start, text, rule)


def _stray_text(source: Source, end: int) -> Sequence[ParseError]:
    for line in re.finditer(r"[^\n]+", source.text[:end]):
        if line.group().split("#")[0].strip():
            return [
                ParseError("expected 'op' or 'family' at the start of a line", Span(source, line.start(), line.end()))
            ]
    return []
