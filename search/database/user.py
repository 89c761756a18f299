"""Location of the user's tuning database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...ir import BackendError
from ...store import cache_root
from .report import summary_of
from .tables import Database

FILE = "tuning.sqlite3"


def database_path() -> Path | None:
    """Return the path of the user's database, None where caching is off."""
    root = cache_root()
    return None if root is None else root / FILE


def open_database(notice: Callable[[str], None] = lambda text: None) -> Database:
    """Open the user's database."""
    return Database(database_path(), notice)


def remove_database() -> int:
    """Delete the user's database and return its number of trials."""
    path = database_path()
    if path is None or not path.exists():
        return 0
    try:
        database = Database(path)
        count = int(str(summary_of(database)["trials"]))
        database.close()
    except BackendError:
        count = 0
    for name in (path.name, path.name + "-wal", path.name + "-shm"):
        path.with_name(name).unlink(missing_ok=True)
    return count
