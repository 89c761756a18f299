"""Declaration of an operation, including the lines of its families."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import takewhile

from attrs import define

from ...ir import Span
from .text import syntax as s


@define(frozen=True, slots=False)
class Declaration:
    """A declared operation; everything else about it is derived from `items`."""

    name: str
    family: str
    summary: str
    items: tuple[s.Item, ...]
    span: Span

    @cached_property
    def operands(self) -> tuple[s.Operand, ...]:
        """The operands in order."""
        return tuple(o for item in self.items if isinstance(item, s.InItem) for o in item.operands)

    @cached_property
    def results(self) -> tuple[s.Result, ...]:
        """The results in order."""
        return tuple(r for item in self.items if isinstance(item, s.OutItem) for r in item.results)

    @cached_property
    def attributes(self) -> Mapping[str, s.AttributeItem]:
        """The attributes by name, in order."""
        return {a.name: a for item in self.items if isinstance(item, s.AttrItem) for a in item.attributes}

    @cached_property
    def element_types(self) -> Mapping[str, tuple[str, ...]]:
        """The classes of each element type parameter."""
        return {item.name: item.classes for item in self.items if isinstance(item, s.TypeItem)}

    @cached_property
    def assignments(self) -> tuple[s.Assignment, ...]:
        """Assignments in the order of the text.

        Repeated ones occur once.
        """
        return tuple(_assignments(self.items))

    @cached_property
    def algorithms(self) -> tuple[s.Algorithm, ...]:
        """Other ways to compute it."""
        return tuple(item for item in self.items if isinstance(item, s.Algorithm))

    @cached_property
    def gradient(self) -> s.Gradient | None:
        """The declared gradient, None where the derived one is wanted."""
        return next((item for item in self.items if isinstance(item, s.Gradient)), None)

    @cached_property
    def text(self) -> str:
        """Text of the declaration: first line and the indented ones below."""
        line, _ = self.span.source.line_column(self.span.start)
        first, *rest = self.span.source.text.split("\n")[line - 1 :]
        body = takewhile(lambda text: not text or text[0].isspace() or text.startswith("}"), rest)
        return "\n".join([first, *body]).rstrip()

    @cached_property
    def digest(self) -> str:
        """Hash of the declaration's meaning.

        It changes with any line but not with comments or layout.
        """
        text = "\n".join([self.name, *map(repr, self.items)])
        return hashlib.sha256(text.encode()).hexdigest()


def _assignments(items: tuple[s.Item, ...]) -> Iterator[s.Assignment]:
    for item in items:
        if isinstance(item, s.Assignment):
            yield item
        elif isinstance(item, s.Repetition):
            yield from _assignments(item.items)
