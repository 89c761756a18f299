"""Rows in a SQLite file beside the entries, shared by processes.

Measurements are rows: a search adds some thousand small ones, each valid at once for other processes, and queries them
by work, machine and score. A row takes 0.1 ms to write and 0.01 ms to read, an entry 0.4 and 0.2 ms, and a query of
entries would read all of them. The laws are those of entries: a writer waits for no reader (write-ahead log), a crash
leaves a readable file, a damaged file is set aside with one notice, and a full or read-only disk degrades to rows in
memory.
"""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from ..ir import BackendError

#: Changes rows of an earlier version to the present one.
Upgrade: TypeAlias = Callable[[sqlite3.Connection], None]
#: Seconds that a process waits for a lock of the file.
_PATIENCE = 30.0
#: Errors of a disk that is full, read-only or gone.
_LOST_DISK = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
#: First bytes of every SQLite file.
_SQLITE = b"SQLite format 3\0"


class RowFile:
    """Connection to a file with a schema of some version.

    Without a path the rows live in memory. `upgrades` change rows of earlier versions to this one.
    """

    def __init__(
        self,
        path: Path | None,
        schema: str,
        version: int,
        notice: Callable[[str], None] = lambda text: None,
        upgrades: Mapping[int, Upgrade] = MappingProxyType({}),
    ) -> None:
        self.path, self._schema, self._version, self._notice = path, schema, version, notice
        self._upgrades = upgrades
        try:
            self._connection = self._open(path)
        except sqlite3.OperationalError as error:
            self._connection = self._in_memory(str(error), None)
        except sqlite3.DatabaseError as error:
            assert path is not None, "rows in memory are sound"
            aside = path.with_suffix(f".damaged-{time.time_ns()}")
            path.replace(aside)
            for rest in (path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                rest.unlink(missing_ok=True)
            notice(f"tuning database {path} is damaged ({error}); it was set aside as {aside.name} and a new one begun")
            self._connection = self._open(path)
        # A file that was never closed causes no warning.
        self._finalizer = weakref.finalize(self, self._connection.close)

    def _open(self, path: Path | None) -> sqlite3.Connection:
        connection = sqlite3.connect(path or ":memory:", timeout=_PATIENCE, isolation_level=None)
        try:
            _write_ahead(connection)
            connection.execute("pragma synchronous = normal")
            version = _version_of(connection)
            if version not in (0, self._version, *self._upgrades):
                raise BackendError(
                    f"tuning database {path} has format {version}, this version reads {self._version}",
                    hint="cuts cache clear, or set CUTS_CACHE_DIR",
                )
            self._upgrade(connection)
            if connection.execute("pragma quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("its pages are inconsistent")
        except BaseException:
            connection.close()
            raise
        return connection

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Create missing tables, and upgrade the rows of an earlier version as one transaction."""
        connection.executescript(self._schema)
        if _version_of(connection) == self._version:
            return
        with _transaction(connection):  # another process may have upgraded them meanwhile
            if (version := _version_of(connection)) in self._upgrades:
                self._upgrades[version](connection)
            connection.execute(f"pragma user_version = {self._version}")

    def _in_memory(self, reason: str, source: sqlite3.Connection | None) -> sqlite3.Connection:
        """Return the rows of an unusable file in memory; as many as can be read."""
        self._notice(f"tuning database {self.path} cannot be written ({reason}); new results are not stored")
        connection = self._open(None)
        with suppress(sqlite3.Error):
            if source is not None:
                source.backup(connection)
            elif self.path is not None:
                _copy(self.path, connection)
            self._upgrade(connection)
        self.path = None
        return connection

    def close(self) -> None:
        """Close the file, and disable the finaliser."""
        self._finalizer.detach()
        self._connection.close()

    def read_file(self, path: Path) -> None:
        """Replace rows in memory by those of a file.

        The file may be of an earlier version of the schema's tables.

        Raises `sqlite3.Error` where it is none.
        """
        _copy(path, self._connection)
        if _version_of(self._connection) not in (self._version, *self._upgrades):
            raise sqlite3.DatabaseError(f"it is not of format {self._version}")
        self._upgrade(self._connection)

    def write_file(self, path: Path) -> None:
        """Write a copy of all rows to a new file."""
        with self._errors(), closing(sqlite3.connect(path)) as target:
            self._connection.backup(target)

    def rows(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query.

        Raises `BackendError`, which names the file, for errors of SQLite.
        """
        with self._errors():
            return self._connection.execute(query, values).fetchall()

    def row(self, query: str, *values: object) -> Any:
        """Return the first row of a query, None without one."""
        return next(iter(self.rows(query, *values)), None)

    def write(self, statement: str, *rows: tuple[object, ...]) -> None:
        """Run a statement for each row of values.

        Where the disk is full or read-only, the rows move to memory.
        """
        try:
            with self._errors():
                self._connection.executemany(statement, rows)
        except BackendError as error:
            cause = error.__cause__
            lost = isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode & 0xFF in _LOST_DISK
            if not lost or self._connection.in_transaction:
                raise
            connection = self._in_memory(str(cause), self._connection)
            self.close()
            self._connection = connection
            self._finalizer = weakref.finalize(self, self._connection.close)
            self._connection.executemany(statement, rows)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise BackendError(f"tuning database {self.path}: {error}", hint="cuts cache clear removes it") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction; a failure undoes its changes."""
        with self._errors(), _transaction(self._connection):
            yield


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("begin immediate")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has undone them
            connection.execute("rollback")
        raise
    connection.execute("commit")


def _version_of(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("pragma user_version").fetchone()[0]
    return found


def _copy(path: Path, connection: sqlite3.Connection) -> None:
    """Copy the rows of a file that need not be writable; a log of later rows beside it is not read."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as source:
        source.backup(connection)


def is_row_file(path: Path) -> bool:
    """Return whether a file begins like a SQLite file."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and writers share the file. SQLite rejects some concurrent requests for this mode without waiting."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)
