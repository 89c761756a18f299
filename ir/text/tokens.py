"""Tokens of the IR's text form, and a stream of them.

A comment runs from `#` to the end of its line. Errors are reported with spans.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container

from attrs import define, field, frozen

from ..errors import ParseError
from ..source import Source, Span
from ..types import as_float

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<mark>//|<=|>=|==|!=|[-+*/%<>=:,.'(){}\[\]])""",
    re.VERBOSE,
)
#: Earlier spellings of a schedule's keywords. Texts in tuning databases, packs and recorded spaces have them.
FORMER_KEYWORDS = {
    "ahead": "prefetch",
    "atom": "mma",
    "cached": "l1",
    "carried": "register_staged",
    "chunk": "block_k",
    "chunks": "k_loop",
    "kept": "row_cache",
    "lanes": "reduction_threads",
    "meets": "privatised",
    "turns": "tiles",
}
#: Keywords of earlier versions that said nothing.
DROPPED_KEYWORDS = frozenset({"zigzag"})
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@frozen
class Token:
    """Token: kind, text and offset.

    The kind is "string", "number", "word", "mark" or "end".
    """

    kind: str
    text: str
    start: int


def tokenise(source: Source) -> tuple[Token, ...]:
    """Split a text into tokens; the last one has kind "end".

    Raises `ParseError` at a character that begins no token.
    """
    found: list[Token] = []
    offset = 0
    while offset < len(source.text):
        match = _TOKEN.match(source.text, offset)
        if match is None:
            raise ParseError("unexpected character", Span(source, offset, offset + 1))
        if match.lastgroup != "space" and match.group() not in DROPPED_KEYWORDS:
            found.append(Token(str(match.lastgroup), match.group(), offset))
        offset = match.end()
    return (*found, Token("end", "", len(source.text)))


def quote(name: str, reserved: Container[str]) -> str:
    """Return a name in text form.

    It is bare where it is an identifier and no word of the language, else a JSON string.
    """
    return name if _PLAIN.fullmatch(name) and name not in reserved else json.dumps(name)


@define
class Tokens:
    """A stream of tokens with one token of lookahead (`peek` looks further)."""

    source: Source
    items: tuple[Token, ...] = field()
    at: int = 0

    @items.default
    def _tokenise(self) -> tuple[Token, ...]:
        return tokenise(self.source)

    def peek(self, ahead: int = 0) -> Token:
        """Return a coming token without taking it."""
        return self.items[min(self.at + ahead, len(self.items) - 1)]

    def fail(self, expected: str) -> ParseError:
        """Return the error that something else was expected at the coming token."""
        token = self.peek()
        found = f"'{token.text}'" if token.text else "the end of the text"
        return ParseError(f"expected {expected}, found {found}", self.span(token))

    def span(self, token: Token) -> Span:
        """Return the span of a token."""
        return Span(self.source, token.start, token.start + max(1, len(token.text)))

    def follows(self, *texts: str, ahead: int = 0) -> bool:
        """Return whether these marks or words come next, after `ahead` tokens."""
        coming = [self.peek(ahead + number) for number in range(len(texts))]
        return all(
            t.kind in ("mark", "word") and text in (t.text, FORMER_KEYWORDS.get(t.text))
            for t, text in zip(coming, texts, strict=True)
        )

    def accept(self, text: str) -> bool:
        """Take the coming token if it is this mark or word."""
        taken = self.follows(text)
        self.at += taken
        return taken

    def expect(self, text: str) -> None:
        """Take this mark or word, or fail."""
        if not self.accept(text):
            raise self.fail(f"'{text}'")

    def take(self, kind: str, expected: str) -> Token:
        """Take a token of a kind, or fail."""
        token = self.peek()
        if token.kind != kind:
            raise self.fail(expected)
        self.at += 1
        return token

    def name(self, expected: str = "a name") -> str:
        """Take a name, bare or quoted."""
        token = self.peek()
        if token.kind == "string":
            self.at += 1
            return str(json.loads(token.text))
        return self.take("word", expected).text

    def integer(self) -> int:
        """Take an integer, signed or not."""
        sign = -1 if self.accept("-") else 1
        token = self.peek()
        if token.kind != "number" or not token.text.isdigit():
            raise self.fail("an integer")
        self.at += 1
        return sign * int(token.text)

    def number(self) -> int | float:
        """Take a number.

        It is an integer where it has neither point nor exponent; `inf` and `nan` are floats.
        """
        sign = -1 if self.accept("-") else 1
        token = self.peek()
        if token.kind != "number" and token.text not in ("inf", "nan"):
            raise self.fail("a number")
        self.at += 1
        return sign * (int(token.text) if token.text.isdigit() else float(token.text))


def number_text(value: float) -> str:
    """Return a number in short form: `0`, `-1.5`, `1e-05`, `inf`."""
    text = repr(as_float(value))
    return text[:-2] if text.endswith(".0") else text
