"""File of the tuning database: shared by processes, set aside where damaged."""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...ir import BackendError

_VERSION = 1
#: Seconds that a process waits for a lock of the file.
_PATIENCE = 30.0
_SCHEMA = """
create table if not exists problems (
  key text primary key, description text not null, work text not null, label text not null,
  done integer not null default 0, best text, seconds real, spread real, source text, trials integer, points real,
  proven real, at real not null);
create index if not exists problems_work on problems (work);
create table if not exists trials (
  problem text not null, schedule text not null, key text not null, outcome text not null, seconds real, spread real,
  registers integer, source text, message text, bound real, score real, at real not null,
  primary key (problem, schedule)) without rowid;
create index if not exists trials_key on trials (key);
create table if not exists costs (key text primary key, seconds real not null);
create table if not exists decisions (
  key text primary key, description text not null, label text not null, decisions text not null,
  problems text not null, seconds real not null, finished integer not null, at real not null);
create table if not exists offers (
  problem text primary key, best text not null, seconds real not null, spread real not null, source text not null,
  trials integer not null, points real not null, proven real not null, finished integer not null);
create table if not exists offered_decisions (
  key text primary key, description text not null, label text not null, decisions text not null,
  problems text not null, seconds real not null, finished integer not null, at real not null);
create table if not exists written (point text primary key, source text not null, version text not null) without rowid;
create table if not exists times (
  name text primary key, seconds real not null, source text not null, schedule text not null);
create table if not exists expected (name text primary key, seconds real not null, version text not null);
"""


class DatabaseFile:
    """Connection to the file; without a path the database lives in memory."""

    def __init__(self, path: Path | None, notice: Callable[[str], None] = lambda text: None) -> None:
        self.path = path
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if path is None or isinstance(error, sqlite3.OperationalError):
                raise BackendError(
                    f"cannot open tuning database {path}: {error}", hint="set CUTS_CACHE_DIR, or CUTS_NO_CACHE=1"
                ) from error
            aside = path.with_suffix(f".damaged-{time.time_ns()}")
            path.replace(aside)
            for rest in (path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                rest.unlink(missing_ok=True)
            notice(f"tuning database {path} is damaged ({error}); it was set aside as {aside.name} and a new one begun")
            self._connection = self._open()
        # A file that was never closed causes no warning.
        self._finalizer = weakref.finalize(self, self._connection.close)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path or ":memory:", timeout=_PATIENCE, isolation_level=None)
        try:
            _write_ahead(connection)
            connection.execute("pragma synchronous = normal")
            version = connection.execute("pragma user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise BackendError(
                    f"tuning database {self.path} has format {version}, this version reads {_VERSION}",
                    hint="cuts cache clear, or set CUTS_CACHE_DIR",
                )
            connection.executescript(_SCHEMA)
            connection.execute(f"pragma user_version = {_VERSION}")
            if connection.execute("pragma quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("its pages are inconsistent")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the file, and disable the finaliser."""
        self._finalizer.detach()
        self._connection.close()

    @contextmanager
    def errors(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection.

        Raises `BackendError`, which names the file, for errors of SQLite.
        """
        try:
            yield self._connection
        except sqlite3.DatabaseError as error:
            raise BackendError(f"tuning database {self.path}: {error}", hint="cuts cache clear removes it") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction; a failure undoes its changes."""
        with self.errors() as db:
            db.execute("begin immediate")
            try:
                yield
            except BaseException:
                db.execute("rollback")
                raise
            db.execute("commit")


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
