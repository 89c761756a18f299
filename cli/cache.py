"""`cuts cache`: what is kept of earlier compilations and searches."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from typing import Any

from ..backends import cache_info, clear_cache
from ..compile import clear_plans, plans_info
from ..ir import UsageError
from ..search import database_path, open_database, remove_database
from . import console
from .options import add_json


def add_arguments(parser: ArgumentParser) -> None:
    """Add what `cuts cache` takes."""
    parser.add_argument(
        "action", choices=("info", "clear", "explain"), help="show or empty the cache, or say what a key stands for"
    )
    parser.add_argument(
        "key", metavar="KEY", nargs="?", help="key of a kernel or a trial in the tuning database, or how it begins"
    )
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show or empty the cache, or say what a key of the tuning database stands for.

    Raises `UsageError` where a key is given to an action that takes none.
    """
    if arguments.action == "explain":
        return _explain(arguments)
    if arguments.key:
        raise UsageError(f"'cuts cache {arguments.action}' takes no key, found '{arguments.key}'")
    if arguments.action == "info":
        values: dict[str, object] = cache_info() | {"plans": plans_info(), "tuning": _tuning()}
    else:
        values = {"removed": clear_cache(), "trials": remove_database(), "plans": clear_plans()}
    if arguments.json:
        console.print_json(values)
    else:
        print("\n".join(f"{key}: {console.brief(value, 300)}" for key, value in values.items()))
    return 0


def _tuning() -> dict[str, object]:
    """Return what the tuning database holds; asking makes none."""
    path = database_path()
    if path is None or not path.exists():
        return {"path": None if path is None else str(path), "problems": 0, "trials": 0}
    database = open_database(console.note)
    try:
        return database.info()
    finally:
        database.close()


def _explain(arguments: Namespace) -> int:
    """Show every problem and trial whose key begins as the one given: what was hashed, and what came of it."""
    key = (arguments.key or "").lower()
    if not key or any(c not in "0123456789abcdef" for c in key):
        raise UsageError(
            f"expected a key, found '{arguments.key or ''}'",
            hint="keys are hexadecimal, as 'cuts explain PLAN' shows them; a prefix will do",
        )
    database = open_database(console.note)
    try:
        records = database.explain(key)
    finally:
        database.close()
    if not records:
        raise UsageError(
            f"no problem and no trial has a key that begins with '{key}'",
            hint="see 'cuts cache info' for how many there are",
        )
    if arguments.json:
        console.print_json({"records": records})
        return 0
    for record in records:
        print(_text(record))
    return 0


def _text(record: dict[str, Any]) -> str:
    """Return a record for people: figures a line each, then what the key was hashed from."""
    hashed = record.pop("hashed")
    lines = [f"{record.pop('kind')} {record.pop('key')}"]
    lines += [
        f"  {name}: {_value(name, value)}"
        for name, value in record.items()
        if value is not None and name not in ("schedule", "best")
    ]
    for name in ("best", "schedule"):
        if record.get(name):
            lines += [f"  {name}:", *(f"    {line}" for line in str(record[name]).splitlines() if line)]
    lines.append("  the key is the SHA-256 of:")
    lines += [
        f"    {part}: {json.dumps(value) if isinstance(value, dict) else value}"
        for part, value in hashed.items()
        if part != "work"
    ]
    lines += ["    work:", *(f"      {line}" for line in str(hashed.get("work", "")).splitlines() if line)]
    return "\n".join(lines)


def _value(name: str, value: object) -> str:
    if name == "at" and isinstance(value, float):
        return datetime.fromtimestamp(value, UTC).isoformat(" ", "seconds")
    return console.seconds(value) if name in ("seconds", "bound", "score") else console.brief(value, 300)
