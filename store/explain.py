"""Explanation of entries and of misses, fact by fact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .entries import EntryStore, Head, current_facts
from .keys import Facts, Key, describe, differences, digest

#: Number of entries that a missing key is compared with.
MAX_NEAREST = 3


def explain_entries(store: EntryStore, prefix: str) -> list[dict[str, Any]]:
    """Return the entries whose name begins with a prefix.

    Each has the facts that differ in this version.
    """
    found = [(_record(path, head), current_facts(head)) for path, head in store.heads(prefix=prefix)]
    return [record | {"differs": differences(facts, record["hashed"])} for record, facts in found]


def explain_key(store: EntryStore, key: Key) -> dict[str, Any]:
    """Explain whether the store has an entry, by the nearest ones."""
    records = (_record(path, head) for path, head in store.heads(key.kind))
    return explain_facts(key.kind, key.label, key.facts, records, ("content",))


def explain_facts(
    kind: str, label: str, facts: Facts, records: Iterable[dict[str, Any]], content: Sequence[str]
) -> dict[str, Any]:
    """Explain whether a record has these `hashed` facts, by the nearest ones.

    Each has the facts that differ. Records of the same content come first: they have another target, other options,
    another version or lowering.
    """
    name = digest(describe(facts))
    found = [record | {"differs": differences(facts, record["hashed"])} for record in records]

    def distance(record: dict[str, Any]) -> tuple[int, int, float]:
        others = sum(fact.split(".")[0] in content for fact in record["differs"])
        return others, len(record["differs"]), -record["at"]

    found.sort(key=distance)
    hit = any(record["key"] == name for record in found)
    return {"kind": kind, "key": name, "label": label, "found": hit, "nearest": found[:MAX_NEAREST]}


def _record(path: Path, head: Head) -> dict[str, Any]:
    record = {"kind": head.kind, "key": head.name, "label": head.label, "at": head.at, "path": str(path)}
    return record | {"bytes": head.size, "hashed": head.facts}
