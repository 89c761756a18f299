"""Textual templates: printer and parser of an IR class derive from them.

A class's *form* is the text of its head with the fields in it, and the sections of its body:

    Form("tile (<axes>) block <block> thread <thread>{? vector <vector>?}")
    Form("kernel blocks <blocks> threads <threads>", body=("*shared", "inputs <reads>", "*items"))

`<field>` is written as the field's type says, a tuple with commas between its elements. `{?...?}` is left out where all
fields in it have their defaults; `<!field>` is a flag, true where the words around it stand. In a body, `*field` writes
every element of a tuple on lines of its own; `*field: text` writes every entry of a mapping by a text over `<key>` and
`<value>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import field, frozen

from ..source import Source
from .tokens import tokenise

_PART = re.compile(r"(\{\?|\?\}|<!?\w+>)")


@frozen
class Word:
    """Fixed text of a template, with its tokens."""

    text: str
    tokens: tuple[str, ...]


@frozen
class Slot:
    """Field in a template.

    `stop` is the fixed token after it, which ends a list; a `flag` is implied by the words around it.
    """

    name: str
    stop: str = ""
    flag: bool = False


@frozen
class Maybe:
    """Part of a template that is omitted when its fields have defaults."""

    parts: tuple[Part, ...]


@frozen
class Lines:
    """Field of a body whose elements stand on lines of their own.

    `entry` is the template of a mapping's entries.
    """

    name: str
    entry: tuple[Part, ...] = ()


Part: TypeAlias = Union[Word, Slot, Maybe]


def _words(text: str) -> tuple[str, ...]:
    return tuple(t.text for t in tokenise(Source("<form>", text))[:-1])


def parse_template(text: str) -> tuple[Part, ...]:
    """Split a template into its parts."""
    pieces = [piece for piece in _PART.split(text) if piece]
    stack: list[list[Part]] = [[]]
    for position, piece in enumerate(pieces):
        if piece == "{?":
            stack.append([])
        elif piece == "?}":
            inner = tuple(stack.pop())
            stack[-1].append(Maybe(inner))
        elif _PART.fullmatch(piece):
            stack[-1].append(Slot(piece.strip("<!>"), _stop(pieces[position + 1 :]), piece.startswith("<!")))
        else:
            stack[-1].append(Word(piece, _words(piece)))
    return tuple(stack[0])


def _stop(rest: list[str]) -> str:
    """Return the first fixed token of the pieces after a slot."""
    return next((_words(piece)[0] for piece in rest if not _PART.fullmatch(piece) and _words(piece)), "")


def _sections(texts: Iterable[str]) -> tuple[Lines | Maybe, ...]:
    return tuple(_section(text) for text in texts)


def _section(text: str) -> Lines | Maybe:
    if not text.startswith("*"):
        return Maybe(parse_template(text))
    name, _, entry = text[1:].partition(": ")
    return Lines(name, parse_template(entry))


@frozen
class Form:
    """Textual form of a class: its head and an optional body."""

    head: tuple[Part, ...] = field(converter=parse_template)
    body: tuple[Lines | Maybe, ...] = field(default=(), converter=_sections)

    @property
    def keyword(self) -> str:
        """The word that every text of the class begins with."""
        first = self.head[0]
        assert isinstance(first, Word)
        return first.tokens[0]


_TYPES: dict[type, Mapping[str, Any]] = {}
_DEFAULTS: dict[type, Mapping[str, Any]] = {}


def field_types(cls: type) -> Mapping[str, Any]:
    """Return the declared type of every compared field of an attrs class.

    Positions in a source are not compared.
    """
    if cls not in _TYPES:
        hints = get_type_hints(cls)
        _TYPES[cls] = {a.name: hints[a.name] for a in attrs.fields(cls) if a.init and a.eq}
    return _TYPES[cls]


def field_defaults(cls: type) -> Mapping[str, Any]:
    """Return the default of every field that has one."""
    if cls not in _DEFAULTS:
        given: dict[str, Any] = {
            a.name: a.default for a in attrs.fields(cls) if a.init and a.eq and a.default is not attrs.NOTHING
        }
        _DEFAULTS[cls] = {name: d.factory() if hasattr(d, "factory") else d for name, d in given.items()}
    return _DEFAULTS[cls]


def element_type(kind: Any) -> Any | None:
    """Return the element type of a variadic tuple, None for other types."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def entry_types(kind: Any) -> tuple[Any, Any] | None:
    """Return a mapping's key and value types, None for other types."""
    if get_origin(kind) is not None and isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping):
        key, value = get_args(kind)
        return key, value
    return None


def members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union without `None`, else the type itself."""
    if get_origin(kind) in (Union, UnionType):
        return tuple(m for m in get_args(kind) if m is not NoneType)
    return (kind,)
