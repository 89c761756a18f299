"""`cuts cache`: stored results of earlier compilations and searches."""

from __future__ import annotations

import json
import tarfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import asdict

from ...compile import decision_key, load_spec, plan_key
from ...ir import CompileOptions, Graph, UsageError
from ...search import (
    Settings,
    database_path,
    explain,
    explain_question,
    export_pack,
    export_results,
    import_database,
    import_results,
    open_database,
    remove_database,
    summary_of,
)
from ...search.database import FILE, Database
from ...store import (
    EntryStore,
    cache_root,
    clear_store,
    explain_entries,
    explain_key,
    export_store,
    import_store,
    is_row_file,
    store_info,
)
from ..models import chosen_target, is_model, load_graph
from ..options import add_json, add_model_options, refuse, set_defaults
from ..outline import outline
from ..output import console

#: Suffixes of files of results.
_RESULTS = (".json", ".json.gz", ".json.xz")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts cache`."""
    parser.add_argument(
        "action",
        choices=("info", "clear", "explain", "export", "pack", "import"),
        help="show or empty the cache, say what a key stands for or why a model misses, write the cache to a file "
        "(pack: only results that final plans are made of) and add that of one",
    )
    parser.add_argument(
        "what",
        metavar="KEY|MODEL|FILE",
        nargs="?",
        help="explain: key of an entry, a kernel or a trial, or how it begins, or a model; export, pack, import: a "
        "file (results: .json, .json.gz or .json.xz; everything: .tar, .tar.gz or .tar.xz), import also a cache folder "
        "or a tuning database",
    )
    add_model_options(parser)
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show, empty, explain or exchange the cache.

    Raises `UsageError` where a key or a file is given to an action that takes none, or is missing.
    """
    action, what = arguments.action, arguments.what
    if not (action == "explain" and what and is_model(what)):
        refuse(
            arguments,
            ("target", "mode", "precision", "policy", "shape", "dynamic", "buckets", "strict", "debug", "spec"),
            "it is for a model",
        )
    if action == "explain":
        return _explain(arguments)
    if action in ("info", "clear"):
        if what:
            raise UsageError(f"'cuts cache {action}' takes no key, found '{what}'")
        _show(arguments, cache_info() if action == "info" else _clear())
        return 0
    if not what:
        raise UsageError(f"'cuts cache {action}' needs a file", hint="as in results.json.gz or cache.tar.xz")
    with _database() as database:
        _show(arguments, {"export": _export, "pack": _pack, "import": _import}[action](database, what))
    return 0


@contextmanager
def _database() -> Iterator[Database]:
    with closing(open_database(console.note)) as database:
        yield database


def _show(arguments: Namespace, values: dict[str, Any]) -> None:
    if arguments.json:
        console.print_json(values)
    else:
        print("\n".join(outline(values)))


def cache_info() -> dict[str, Any]:
    """Return the content of the store; the tuning database is not created."""
    path = database_path()
    if path is None or not path.exists():
        rows: dict[str, object] = {"path": None if path is None else str(path), "problems": 0, "trials": 0}
    else:
        with _database() as database:
            rows = summary_of(database)
    return store_info(cache_root()) | {"tuning": rows}


def _clear() -> dict[str, Any]:
    return {"removed": clear_store(cache_root()), "trials": remove_database()}


def _export(database: Database, file: str) -> dict[str, Any]:
    """Write the best results as JSON, or all entries and measurements as an archive."""
    if file.endswith(_RESULTS):
        return asdict(export_results(database, file))
    with TemporaryDirectory(prefix="cuts-") as folder:
        rows = Path(folder) / FILE
        database.write_file(rows)
        entries = export_store(EntryStore.open(), file, {FILE: rows})
    return {"entries": entries, "trials": summary_of(database)["trials"]}


def _pack(database: Database, file: str) -> dict[str, Any]:
    return asdict(export_pack(database, file))


def _import(database: Database, file: str) -> dict[str, Any]:
    """Add results, an archive, another cache folder, or another tuning database."""
    path = Path(file)
    if cache_root() is None:
        raise UsageError("there is no cache to import into", hint="unset CUTS_NO_CACHE, or set CUTS_CACHE_DIR")
    if path.is_dir() or (path.is_file() and tarfile.is_tarfile(path)):
        with TemporaryDirectory(prefix="cuts-") as folder:
            rows = Path(folder) / FILE
            counts = asdict(import_store(EntryStore.open(), path, {FILE: rows}))
            results = asdict(import_database(database, rows)) if rows.exists() else {}
        return {"entries": counts, "results": results}
    if path.is_file() and is_row_file(path):
        return asdict(import_database(database, path))
    return asdict(import_results(database, file))


def _explain(arguments: Namespace) -> int:
    """Show the entries and rows of a key, or the plans and decisions that a model finds or misses."""
    what = arguments.what or ""
    records = _entries_of_model(arguments) if is_model(what) else _entries_of_key(what.lower())
    if arguments.json:
        console.print_json({"records": records})
        return 0
    for record in records:
        print(_miss(record) if "nearest" in record else _text(record))
    return 0


def _entries_of_key(key: str) -> list[dict[str, Any]]:
    if not key or any(c not in "0123456789abcdef" for c in key):
        raise UsageError(
            f"expected a key or a model, found '{key}'",
            hint="keys are hexadecimal, as 'cuts explain PLAN' shows them; a prefix will do",
        )
    with _database() as database:
        records = explain(database, key) + explain_entries(EntryStore.open(), key)
    if not records:
        raise UsageError(
            f"no entry, problem or trial has a key that begins with '{key}'",
            hint="see 'cuts cache info' for how many there are",
        )
    return records


def _entries_of_model(arguments: Namespace) -> list[dict[str, Any]]:
    """Return the plan of `cuts tune` and the decision record of a model, with the facts that differ in similar ones."""
    arguments.model = arguments.what
    set_defaults(arguments)
    spec, target = load_spec(arguments.spec), chosen_target(arguments)
    graph = load_graph(arguments, spec)
    if not isinstance(graph, (Graph, type(None))):
        raise UsageError(f"{arguments.model} has sizes that vary", hint="explain it at one size, by --shape")
    if graph is None:
        raise UsageError(f"{arguments.model} is compiled in parts, each with an entry", hint="explain a part's model")
    options = CompileOptions(arguments.mode, debug=arguments.debug, precision=arguments.precision)
    plan = explain_key(EntryStore.open(), plan_key(graph, spec, target, options, Settings()))
    with _database() as database:
        return [plan, explain_question(database, decision_key(graph, spec, target, options))]


def _miss(record: dict[str, Any]) -> str:
    """Return the search for an entry as text: found or missing, and the facts of similar ones that differ."""
    head = f"{record['kind']} {console.brief(record['label'])}: {'found' if record['found'] else 'missing'}"
    lines = [f"{head} (key {record['key'][:16]})"]
    for near in record["nearest"]:
        if near["differs"]:
            label, at = console.brief(near["label"]), _value("at", near["at"])
            lines += [f"  {near['key'][:16]} of {label}, {at}, differs in:", *_differences(near)]
    return "\n".join(lines)


def _differences(record: dict[str, Any]) -> list[str]:
    return [
        f"    {name}: {console.brief(asked)} asked, {console.brief(stored)} stored"
        for name, (asked, stored) in record["differs"].items()
    ]


def _text(record: dict[str, Any]) -> str:
    """Return a record as text: figures one to a line, then the hashed values of the key."""
    record = dict(record)
    hashed, differs = record.pop("hashed"), record.pop("differs", None)
    lines = [f"{record.pop('kind')} {record.pop('key')}"]
    lines += [
        f"  {name}: {_value(name, value)}"
        for name, value in record.items()
        if value is not None and name not in ("schedule", "best")
    ]
    for name in ("best", "schedule"):
        if record.get(name):
            lines += [f"  {name}:", *(f"    {line}" for line in str(record[name]).splitlines() if line)]
    if differs:
        lines += ["  this version misses it, since its key differs in:", *_differences({"differs": differs})]
    lines.append("  the key is the SHA-256 of:")
    lines += [
        f"    {part}: {json.dumps(value) if isinstance(value, dict) else value}"
        for part, value in hashed.items()
        if part != "work"
    ]
    if "work" in hashed:
        lines += ["    work:", *(f"      {line}" for line in str(hashed["work"]).splitlines() if line)]
    return "\n".join(lines)


def _value(name: str, value: object) -> str:
    if name == "at" and isinstance(value, float):
        return datetime.fromtimestamp(value, UTC).isoformat(" ", "seconds")
    return console.seconds(value) if name in ("seconds", "bound", "score") else console.brief(value, 300)
