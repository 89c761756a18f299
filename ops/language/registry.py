"""Vocabulary: declarations from `.cuts` files, built-in and the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from difflib import get_close_matches
from functools import cached_property, lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from ...ir import CutsError, Node, Source, SpecError, UnknownOp, UsageError, raise_all
from .checks import check_declaration
from .inference import Instances
from .instantiate import OpDecl
from .text import parse_all, parse_piece, parse_written, pieces
from .text import syntax as s

T = TypeVar("T")


class Table(MutableMapping[str, T]):
    """Mapping with lazily made values."""

    def __init__(self, values: Mapping[str, T]) -> None:
        known = values if isinstance(values, Table) else None
        self._names = dict.fromkeys(values)
        self._made: dict[str, T] = dict(values if known is None else known._made)
        self._makers: dict[str, Callable[[], T]] = {} if known is None else dict(known._makers)

    def later(self, name: str, make: Callable[[], T]) -> None:
        """Give a name a value that is made at its first use."""
        self._names[name] = None
        self._makers[name] = make

    def __getitem__(self, name: str) -> T:
        if name not in self._made:  # two threads may both make it: either will do
            self._made.setdefault(name, self._makers[name]())
        return self._made[name]

    def __setitem__(self, name: str, value: T) -> None:
        self._names[name] = None
        self._made[name] = value

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._made.pop(name, None)
        self._makers.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Registry(Mapping[str, OpDecl]):
    """Operations by name.

    Loading returns a new registry, so the cached built-in one never changes.
    """

    def __init__(
        self, ops: Mapping[str, OpDecl] | None = None, families: Mapping[str, s.Declaration] | None = None
    ) -> None:
        self._ops: Table[OpDecl] = Table(ops or {})
        self._families: Table[s.Declaration] = Table(families or {})

    @staticmethod
    def builtin() -> Registry:
        """Return the vocabulary that comes with the package."""
        return _builtin()

    def load(self, *paths: str | Path) -> Registry:
        """Return this registry, extended by the declarations of some files.

        A folder stands for the `.cuts` files in it.
        """
        sources: list[Source] = []
        for path in map(Path, paths):
            found = sorted(path.glob("*.cuts")) if path.is_dir() else [path]
            sources.extend(Source(str(file), _read(file)) for file in found)
        return self.extend(*sources)

    def extend(self, *sources: Source) -> Registry:
        """Return this registry, extended by declarations in text form.

        Raises every error in them at once.
        """
        errors: list[CutsError] = []
        parsed: list[s.Declaration] = []
        for source in sources:
            declarations, syntax_errors = parse_all(source)
            errors.extend(syntax_errors)
            parsed.extend(declarations)
        return self._extend(parsed, errors)

    def extend_generated(self, *sources: Source) -> Registry:
        """Return this registry, extended by texts that `declare` wrote.

        There is one declaration in each.
        """
        return self._extend([parse_written(source) for source in sources], [])

    def _extend(self, parsed: Sequence[s.Declaration], errors: list[CutsError]) -> Registry:
        result = Registry(self._ops, self._families)
        for declaration in parsed:
            errors.extend(result._define(declaration))
        for declaration in parsed:
            errors.extend(check_declaration(declaration, result._families))
        for declaration in parsed:
            errors.extend(_unknown_steps(declaration, result))
        errors.sort(key=lambda e: (e.span.source.name, e.span.start) if e.span else ("", 0))
        raise_all(errors)
        return result

    def of(self, node: Node) -> OpDecl:
        """Return the declaration of a node's operation, its own if present.

        Raises `UnknownOp` where no declaration exists, `SpecError` where its own one is invalid.
        """
        return _brought(node.op, node.declaration) if node.declaration else self[node.op]

    @cached_property
    def instances(self) -> Instances:
        """Cached instances of this vocabulary, shared by all callers."""
        return Instances(self)

    def _define(self, declaration: s.Declaration) -> list[CutsError]:
        table: Mapping[str, s.Declaration | OpDecl] = self._families if declaration.kind == "family" else self._ops
        if declaration.name in table:
            first = table[declaration.name].span.position
            return [
                SpecError(
                    f"{declaration.kind} '{declaration.name}' is declared twice",
                    declaration.span,
                    f"the first is at {first}",
                )
            ]
        if declaration.kind == "family":
            self._families[declaration.name] = declaration
        else:
            self._ops[declaration.name] = _op_of(declaration, self._families)
        return []

    def __getstate__(self) -> dict[str, object]:
        """Return the state of an equal registry, without caches."""
        return {"_ops": self._ops, "_families": self._families}

    def __getitem__(self, name: str) -> OpDecl:
        if name not in self._ops:
            raise _unknown_op(name, self._ops)
        return self._ops[name]

    def __contains__(self, name: object) -> bool:
        return name in self._ops

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)


def _op_of(declaration: s.Declaration, families: Mapping[str, s.Declaration]) -> OpDecl:
    """Return an operation with the items of its families."""
    items = tuple(i for f in family_chain(declaration, families) for i in f.items) + declaration.items
    return OpDecl(declaration.name, declaration.family or "", declaration.summary, items, declaration.span)


def _unknown_op(name: str, known: Iterable[str]) -> UnknownOp:
    close = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "declare it in a .cuts file"
    return UnknownOp(f"unknown op {name!r}", hint=hint)


def family_chain(declaration: s.Declaration, families: Mapping[str, s.Declaration]) -> list[s.Declaration]:
    """Return the families of a declaration, outermost first.

    Unknown ones and cycles end the chain.
    """
    chain: list[s.Declaration] = []
    name = declaration.family
    while name is not None and name in families and families[name] not in chain:
        chain.insert(0, families[name])
        name = families[name].family
    return chain


def _unknown_steps(declaration: s.Declaration, registry: Registry) -> list[CutsError]:
    steps = [step for item in declaration.items if isinstance(item, (s.Algorithm, s.Gradient)) for step in item.steps]
    return [SpecError(f"unknown op '{step.op}'", step.span) for step in steps if step.op not in registry]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read spec file '{path}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"spec file '{path}' is no UTF-8 text (byte {error.start})") from error


@lru_cache(maxsize=1 << 10)
def _brought(name: str, text: str) -> OpDecl:
    return Registry().extend(Source(f"{name}.cuts", text))[name]


@lru_cache(maxsize=1)
def _builtin() -> Registry:
    folder = files(__package__.partition(".")[0] + ".spec")
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".cuts"))
    found = Registry()
    for name in names:
        _add_pieces(found, Source(f"spec/{name}", folder.joinpath(name).read_text(encoding="utf-8")))
    return found


def _add_pieces(registry: Registry, source: Source) -> None:
    """Add declarations that are parsed at first use: a model uses few of the built-in ones, and tests find their
    errors.
    """
    for kind, name, start, end in pieces(source):
        if kind == "family":
            registry._families.later(name, partial(parse_piece, source, start, end))
        else:
            registry._ops.later(name, partial(_parsed_op, registry, source, start, end))


def _parsed_op(registry: Registry, source: Source, start: int, end: int) -> OpDecl:
    return _op_of(parse_piece(source, start, end), registry._families)
