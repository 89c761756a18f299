"""Planting of bugs in the running compiler.

One piece of a function, or of a row of a table, is replaced in memory; no file changes.
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
    """Planted bug: its description, and the replaced text or table value.

    Texts are those of a function (`module:Class.function`), values those of a table's row (`module:TABLE[row].field`,
    `module:ROW.field[key]`).

    `seen` names the detector: random graphs, the sweep of all operations, or a file of tests, for laws that no graph
    shows.
    """

    area: str
    what: str
    where: str
    old: str
    new: str
    seen: str = "graphs"

    @property
    def in_table(self) -> bool:
        """Return whether the bug is in a table."""
        return "[" in self.where

    @property
    def name(self) -> str:
        """Name of the bug on the command line."""
        return f"{self.where.partition(':')[2]}: {self.what}"


class Stale(Exception):
    """Error of a planted bug whose text is missing or ambiguous."""


def mutate_function(bug: Bug) -> tuple[FunctionType, FunctionType]:
    """Return a bug's function without and with the bug."""
    module_name, _, path = bug.where.partition(":")
    module = import_module(f"cuts.{module_name}")
    owner: object = module
    for part in path.split(".")[:-1]:
        owner = getattr(owner, part)
    found = inspect.unwrap(_function(owner, path.rpartition(".")[2]))
    source = textwrap.dedent(inspect.getsource(found))
    if source.count(bug.old) != 1:
        raise Stale(f"{bug.name}: the text to replace occurs {source.count(bug.old)} times")
    return found, _compile_function(source.replace(bug.old, bug.new), found, module)


def _function(owner: object, name: str) -> FunctionType:
    value = inspect.getattr_static(owner, name)
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    assert callable(value), f"{name} is no function"
    return value  # type: ignore[return-value]


def _compile_function(source: str, original: FunctionType, module: ModuleType) -> FunctionType:
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
    """Value of a table and its replacement.

    It is `holder[key]`, or a field of the row there.
    """

    holder: dict[str, Any]
    key: str
    field: str
    value: Any
    changed: Any

    def put(self) -> None:
        """Store the changed value in its table."""
        row = self.holder[self.key]
        self.holder[self.key] = evolve(row, **{self.field: self.changed}) if self.field else self.changed


def changed_row(bug: Bug) -> Row:
    """Return the table row that a bug changes.

    One piece of its text is replaced, or the whole value.
    """
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
    """Plant a bug by name, in every imported reference to its function."""
    from .planted_bugs import BUGS

    bug = next(b for b in BUGS if b.name == name)
    if bug.in_table:
        changed_row(bug).put()
        return
    original, changed = mutate_function(bug)
    assert original.__code__.co_freevars == changed.__code__.co_freevars, "closures keep what they hold"
    original.__code__ = changed.__code__
    original.__defaults__ = changed.__defaults__
    assert sys.modules[original.__module__]
