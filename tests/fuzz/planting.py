"""Planting a bug: one piece of a function of the compiler is replaced while the program runs; no file changes."""

from __future__ import annotations

import inspect
import sys
import textwrap
from importlib import import_module
from types import FunctionType, ModuleType

from attrs import frozen


@frozen
class Bug:
    """A planted bug: what is wrong, and which text of which function (`module:Class.function`) becomes which other."""

    area: str
    what: str
    where: str
    old: str
    new: str

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


def plant(name: str) -> None:
    """Plant the bug of a name: whoever holds the function runs the changed one, however it was imported."""
    from .planted import BUGS

    original, changed = mutated(next(b for b in BUGS if b.name == name))
    assert original.__code__.co_freevars == changed.__code__.co_freevars, "closures keep what they hold"
    original.__code__ = changed.__code__
    original.__defaults__ = changed.__defaults__
    assert sys.modules[original.__module__]
