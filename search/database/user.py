"""Where the tuning database of this user is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...backends import cache_root
from ...ir import BackendError
from .explained import summary_of
from .tables import Database

FILE = "tuning.sqlite3"


def database_path() -> Path | None:
    """Return where the database of this user is, None where caching is switched off."""
    root = cache_root()
    return None if root is None else root / FILE


def open_database(notice: Callable[[str], None] = lambda text: None) -> Database:
    """Open the database of this user."""
    return Database(database_path(), notice)


def remove_database() -> int:
    """Delete the database of this user and return how many trials it held."""
    path = database_path()
    if path is None or not path.exists():
        return 0
    try:
        database = Database(path)
        held = int(str(summary_of(database)["trials"]))
        database.close()
    except BackendError:
        held = 0
    for name in (path.name, path.name + "-wal", path.name + "-shm"):
        path.with_name(name).unlink(missing_ok=True)
    return held
