"""Planting a bug: one piece of a function of the compiler, or of a row of one of its tables, is replaced while the
program runs; no file changes.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from attrs import evolve, frozen


@frozen
class Bug:
    """A planted bug: what is wrong, and which text of which function (`module:Class.function`) becomes which other, or
    which value of which row of a table (`module:TABLE[row].field`, `module:ROW.field[key]`).

    `seen` says where to look for it: in random graphs, in the sweep of all operations, or in a file of tests, which
    hold the laws of what no graph shows.
    """

    area: str
    what: str
    where: str
    old: str
    new: str
    seen: str = "graphs"

    @property
    def in_table(self) -> bool:
        """Whether it sits in a table."""
        return "[" in self.where

    @property
    def name(self) -> str:
        """How the bug is called on the command line."""
        return f"{self.where.partition(':')[2]}: {self.what}"


class Stale(Exception):
    """A planted bug whose text is not in its function any more, or more than once."""


def mutated(bug: Bug) -> tuple[FunctionType, FunctionType]:
    """Return the function that a bug lives in, and the one with the bug."""
    module_name, _, path = bug.where.partition(":")
    module = import_module(f"cuts.{module_name}")
    owner: object = module
    for part in path.split(".")[:-1]:
        owner = getattr(owner, part)
    found = inspect.unwrap(_function(owner, path.rpartition(".")[2]))
    source = textwrap.dedent(inspect.getsource(found))
    if source.count(bug.old) != 1:
        raise Stale(f"{bug.name}: the text to replace occurs {source.count(bug.old)} times")
    return found, _compiled(source.replace(bug.old, bug.new), found, module)


def _function(owner: object, name: str) -> FunctionType:
    value = inspect.getattr_static(owner, name)
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    assert callable(value), f"{name} is no function"
    return value  # type: ignore[return-value]


def _compiled(source: str, original: FunctionType, module: ModuleType) -> FunctionType:
    """Compile the changed text of a function in its module's names; decorators stay where they are, around the
    original.
    """
    lines = source.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("def "))
    scope: dict[str, object] = {}
    code = compile(
        "from __future__ import annotations\n" + "\n".join(lines[start:]), f"<planted in {module.__name__}>", "exec"
    )
    exec(code, dict(vars(module)), scope)
    made = scope[original.__name__]
    assert isinstance(made, FunctionType)
    return made


@frozen
class Row:
    """A value of a table, and the one that a bug puts there: `holder[key]`, or a field of the row that stands there."""

    holder: dict[str, Any]
    key: str
    field: str
    value: Any
    changed: Any

    def put(self) -> None:
        """Put the changed value in its place; whoever asks the table gets it."""
        row = self.holder[self.key]
        self.holder[self.key] = evolve(row, **{self.field: self.changed}) if self.field else self.changed


def changed_row(bug: Bug) -> Row:
    """Return the row of a table that a bug changes: a text in which one piece is replaced, or a whole other value."""
    module, _, path = bug.where.partition(":")
    head, key, field = re.fullmatch(r"([\w.]+)\[(\w+)\]\.?(\w*)", path).groups()  # type: ignore[union-attr]
    holder: Any = import_module(f"cuts.{module}")
    for name in head.split("."):
        holder = getattr(holder, name)
    value = getattr(holder[key], field) if field else holder[key]
    if not isinstance(value, str):
        if repr(value) != bug.old:
            raise Stale(f"{bug.name}: the value is {value!r}")
        return Row(holder, key, field, value, ast.literal_eval(bug.new))
    if value.count(bug.old) != 1:
        raise Stale(f"{bug.name}: the text to replace occurs {value.count(bug.old)} times in {value!r}")
    return Row(holder, key, field, value, value.replace(bug.old, bug.new))


def plant(name: str) -> None:
    """Plant the bug of a name: whoever holds the function runs the changed one, however it was imported."""
    from .planted import BUGS

    bug = next(b for b in BUGS if b.name == name)
    if bug.in_table:
        changed_row(bug).put()
        return
    original, changed = mutated(bug)
    assert original.__code__.co_freevars == changed.__code__.co_freevars, "closures keep what they hold"
    original.__code__ = changed.__code__
    original.__defaults__ = changed.__defaults__
    assert sys.modules[original.__module__]
