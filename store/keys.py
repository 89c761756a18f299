"""Keys of entries: the digest of named facts.

An entry follows from its facts and from nothing else: `content` (source, graph, weights), `target`, `options`, the
`version` of the kind's format, and the `lowering`, a digest of the compiler's sources that the content depends on. The
name is the SHA-256 of the facts as text, so it is equal on every host, and two keys can be compared fact by fact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from attrs import field, fields, frozen

from .source_digest import compiler_digest

#: Named values of JSON.
Facts: TypeAlias = Mapping[str, Any]


@frozen
class Kind:
    """Kind of entry: its format's version, and sources that it depends on.

    The sources are folders: `()` means all folders, None no folder.
    """

    version: int
    lowering: tuple[str, ...] | None = None

    @property
    def facts(self) -> Facts:
        """Facts that a change of the compiler changes."""
        lowering = None if self.lowering is None else compiler_digest(*self.lowering)
        return {"version": self.version, "lowering": lowering}


KINDS: dict[str, Kind] = {
    "plan": Kind(1, ()),
    "signature": Kind(1, ()),  # of graphs captured by PyTorch, with the names of their plans
    "cubin": Kind(1),
    "parser": Kind(1),  # tables of the grammar
    "fit": Kind(1, ("latency",)),  # latency models
}


def digest(content: str | bytes) -> str:
    """Return the SHA-256 of a text or of bytes."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def digest_parts(parts: Iterable[str | bytes]) -> str:
    """Return a digest of these parts, including their boundaries."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def describe(facts: Facts) -> str:
    """Return facts as text, from which `digest` makes a key."""
    return json.dumps(facts, indent=1, sort_keys=True)


def field_facts(value: Any) -> Facts:
    """Return the fields of an attrs object as facts."""
    return {each.name: repr(getattr(value, each.name)) for each in fields(type(value))}


@frozen
class Key:
    """Key of an entry.

    `label` is for people and no part of it.
    """

    kind: str
    content: Facts
    target: Facts = field(factory=dict)
    options: Facts = field(factory=dict)
    label: str = field(default="", eq=False)
    facts: Facts = field(init=False, repr=False, eq=False)
    name: str = field(init=False, eq=False)

    @facts.default
    def _facts(self) -> Facts:
        own = {"kind": self.kind, "content": self.content, "target": self.target, "options": self.options}
        return own | dict(KINDS[self.kind].facts)

    @name.default
    def _name(self) -> str:
        return digest(describe(self.facts))


def differences(asked: Facts, found: Facts) -> dict[str, tuple[Any, Any]]:
    """Return facts that differ, by path such as `target.arch`.

    Each has both values.
    """
    left, right = _leaves(asked), _leaves(found)
    names = sorted({*left, *right})
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}


def _leaves(facts: Facts, prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in facts.items():
        leaves |= _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return leaves
