"""Match of a pattern: a statement with the captured expressions and definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

from attrs import evolve, field, frozen

from ...ir import Expr, Index, Read, Statement, Var
from .def_use import DefUse

T = TypeVar("T")


@frozen
class DefinedElement:
    """A definition at an element: read, statement, values of its axes."""

    read: Read
    statement: Statement
    values: Mapping[Var, Index]


@frozen
class Match:
    """Captures by name, of a statement in an index."""

    root: Statement
    index: DefUse
    captures: Mapping[str, object] = field(factory=dict)

    def bind(self, name: str, value: object) -> Match | None:
        """Return the match with a capture, None where it has another one."""
        if not name:
            return self
        known = self.captures.get(name, value)
        return evolve(self, captures={**self.captures, name: value}) if known == value else None

    def get(self, name: str, kind: type[T]) -> T:
        """Return a capture of a kind."""
        found = self.captures[name]
        assert isinstance(found, kind), f"capture '{name}': expected {kind.__name__}, found {found}"
        return found

    def expr(self, name: str) -> Expr:
        """Return a captured expression."""
        return cast("Expr", self.captures[name])

    def statement(self, name: str) -> Statement:
        """Return the statement of a captured definition."""
        return self.get(name, DefinedElement).statement
