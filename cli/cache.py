"""`cuts cache`: stored results of earlier compilations and searches."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from attrs import asdict

from ..backends import cache_info, clear_cache
from ..compile import clear_plans, plans_info
from ..ir import UsageError
from ..search import (
    database_path,
    explain,
    export_pack,
    export_results,
    import_results,
    open_database,
    remove_database,
    summary_of,
)
from . import console
from .options import add_json

#: Actions on a file of results.
_EXCHANGES: dict[str, Callable[[Any, str], Any]] = {
    "export": export_results,
    "pack": export_pack,
    "import": import_results,
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts cache`."""
    parser.add_argument(
        "action",
        choices=("info", "clear", "explain", "export", "pack", "import"),
        help="show or empty the cache, say what a key stands for, or write the best results of searches to a file "
        "(pack: only those that final plans are made of) and add those of one",
    )
    parser.add_argument(
        "what",
        metavar="KEY|FILE",
        nargs="?",
        help="explain: key of a kernel or a trial in the tuning database, or how it begins; export, pack, import: a "
        "file (.json, .json.gz or .json.xz)",
    )
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show or empty the cache, explain a key, or exchange results.

    Results are exchanged with a file; a key is one of the tuning database.

    Raises `UsageError` where a key or a file is given to an action that takes none, or is missing.
    """
    if arguments.action == "explain":
        return _explain(arguments)
    if arguments.action in _EXCHANGES:
        return _exchange(arguments)
    if arguments.what:
        raise UsageError(f"'cuts cache {arguments.action}' takes no key, found '{arguments.what}'")
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
    """Return a summary of the tuning database; it is not created."""
    path = database_path()
    if path is None or not path.exists():
        return {"path": None if path is None else str(path), "problems": 0, "trials": 0}
    database = open_database(console.note)
    try:
        return summary_of(database)
    finally:
        database.close()


def _exchange(arguments: Namespace) -> int:
    """Write the best results to a file, or add those of one."""
    if not arguments.what:
        raise UsageError(f"'cuts cache {arguments.action}' needs a file", hint="as in results.json.gz")
    database = open_database(console.note)
    try:
        values = asdict(_EXCHANGES[arguments.action](database, arguments.what))
    finally:
        database.close()
    if arguments.json:
        console.print_json(values)
    else:
        print("\n".join(f"{key}: {value}" for key, value in values.items()))
    return 0


def _explain(arguments: Namespace) -> int:
    """Show every tuning task and measurement whose key has a prefix: the hashed values and the results."""
    key = (arguments.what or "").lower()
    if not key or any(c not in "0123456789abcdef" for c in key):
        raise UsageError(
            f"expected a key, found '{arguments.what or ''}'",
            hint="keys are hexadecimal, as 'cuts explain PLAN' shows them; a prefix will do",
        )
    database = open_database(console.note)
    try:
        records = explain(database, key)
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
    """Return a record as text: figures one to a line, then the hashed values of the key."""
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
