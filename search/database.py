"""The tuning database: one SQLite file that keeps what was measured, failures and wrong results included.

A *problem* is a kernel on a machine (`Problem.description`), a *trial* one schedule of it. Several processes may share
the file (WAL). A file that is damaged is set aside and a new one begun, with a notice: results can be measured again.
Results of other machines are hints only.
"""

from __future__ import annotations

import json
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import astuple, frozen

from ..backends import cache_root
from ..ir import BackendError
from .decisions import DecidedGraph
from .problem import Problem, trial_key

FILE = "tuning.sqlite3"
#: What may become of a trial.
OUTCOMES = ("ok", "spilled", "wrong", "failed", "timeout")
_VERSION = 1
#: Seconds that a process waits for others to be done with the file.
_PATIENCE = 30.0
_TRIAL = "schedule, outcome, trials.seconds, trials.spread, registers, trials.source, message, bound, score"
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
"""


@frozen
class Trial:
    """What became of one schedule: times in seconds where it ran right, else the reason in `message`.

    `source` is a digest of the kernel's text; a result counts only for the code that it was measured with.
    """

    schedule: str
    outcome: str
    seconds: float | None = None
    spread: float = 0.0
    registers: int = 0
    source: str = ""
    message: str = ""
    bound: float = 0.0
    score: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it ran and computed what it must."""
        return self.outcome == "ok" and self.seconds is not None


@frozen
class Winner:
    """The schedule that a finished search chose, its time and spread,
    and how much of the space was looked at or proven slower.
    """

    schedule: str
    seconds: float
    spread: float
    source: str = ""
    trials: int = 0
    points: float = 0.0
    proven: float = 0.0


@frozen
class Result:
    """The best that is known of a problem, whose search is `finished` or not, in a form that any database takes."""

    key: str
    description: str
    label: str
    finished: bool
    winner: Winner


#: What the columns of a winner and of a trial hold.
_NUMBER, _PERHAPS = (int, float), (int, float, type(None))
_WINNER_KINDS = (str, _NUMBER, _NUMBER, str, _NUMBER, _NUMBER, _NUMBER)
_ANSWER_KINDS = (str, str, str, str, str, _NUMBER, int)
_TRIAL_KINDS = (str, str, _PERHAPS, _NUMBER, int, str, str, _NUMBER, _NUMBER)


class Database:
    """Reads and writes the file; without a path it lives in memory for as long as the object does."""

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
        # A file that nobody closed is no reason to warn.
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
        """Close the file; nothing is left to do when the object goes, which may be in another thread."""
        self._finalizer.detach()
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection
        except sqlite3.DatabaseError as error:
            raise BackendError(f"tuning database {self.path}: {error}", hint="cuts cache clear removes it") from error

    # ---- problems

    def winner(self, problem: Problem) -> Winner | None:
        """Return what a finished search chose, nothing where none was finished."""
        with self._errors() as db:
            row = db.execute(
                "select best, seconds, spread, source, trials, points, proven from problems where key = ? and done = 1",
                (problem.key,),
            ).fetchone()
        return Winner(*row) if row and _fits(row, _WINNER_KINDS) else None

    def finish(self, problem: Problem, winner: Winner) -> None:
        """Keep the choice of a finished search."""
        self.register(problem)
        with self._errors() as db:
            db.execute(
                "update problems set done = 1, label = ?, best = ?, seconds = ?, spread = ?, source = ?, trials = ?, "
                "points = ?,"
                " proven = ?, at = ? where key = ?",
                (problem.label, *astuple(winner), time.time(), problem.key),
            )

    def register(self, problem: Problem) -> None:
        """Make a problem known, so that its key can be explained."""
        with self._errors() as db:
            db.execute(
                "insert or ignore into problems (key, description, work, label, at) values (?, ?, ?, ?, ?)",
                (problem.key, problem.description, problem.work, problem.label, time.time()),
            )

    def evict(self, problem: Problem) -> None:
        """Forget all results of a problem: one of them did not hold. Its winner stays as a hint."""
        with self._errors() as db:
            db.execute("delete from trials where problem = ?", (problem.key,))
            db.execute("update problems set done = 0 where key = ?", (problem.key,))

    # ---- trials

    def trials(self, problem: Problem) -> list[Trial]:
        """Return all results of a problem, in the order of its points."""
        with self._errors() as db:
            rows = db.execute(
                f"select {_TRIAL} from trials where problem = ? order by score, schedule", (problem.key,)
            ).fetchall()
        return [Trial(*row) for row in rows if _fits(row, _TRIAL_KINDS)]

    def recorded(self, work: str) -> list[Trial]:
        """Return all results for the same work, on whatever machine, the oldest first."""
        joined = "trials join problems on problems.key = trials.problem"
        query = f"select {_TRIAL} from {joined} where work = ? order by trials.at"
        with self._errors() as db:
            rows = db.execute(query, (work,)).fetchall()
        return [Trial(*row) for row in rows if _fits(row, _TRIAL_KINDS)]

    def record(self, problem: Problem, trials: Sequence[Trial]) -> None:
        """Keep results; a later one of the same schedule replaces the earlier."""
        rows = [
            (problem.key, t.schedule, trial_key(problem.key, t.schedule), t.outcome, t.seconds, t.spread, t.registers,
             t.source, t.message,
             t.bound, t.score, time.time())
            for t in trials
        ]  # fmt: skip
        with self._errors() as db:
            db.executemany("insert or replace into trials values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def hints(self, problem: Problem, most: int = 4) -> list[str]:
        """Return the best schedules that other machines, or other versions, found for the same work."""
        with self._errors() as db:
            rows = db.execute(
                "select best from problems where work = ? and (key <> ? or done = 0) and best is not null "
                "order by at desc limit ?",
                (problem.work, problem.key, most),
            ).fetchall()
        return list(dict.fromkeys(row[0] for row in rows if isinstance(row[0], str)))

    # ---- results that travel

    def results(self) -> tuple[Result, ...]:
        """Return the best result of every problem that has one, by key."""
        chosen = "p.key, p.description, p.label, p.done"
        with self._errors() as db:
            rows = db.execute(
                f"select {chosen}, best, seconds, spread, source, trials, points, proven from problems p "
                "where done = 1 and best is not null union all "
                f"select {chosen}, t.schedule, min(t.seconds), t.spread, t.source, 1, 0.0, 0.0 from problems p "
                "join trials t on t.problem = p.key where p.done = 0 and t.outcome = 'ok' group by p.key order by 1"
            ).fetchall()
        return tuple(
            Result(key, description, label, bool(done), Winner(*best))
            for key, description, label, done, *best in rows
            if _fits(best, _WINNER_KINDS)
        )

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Write what a block changes together, or nothing of it where it fails."""
        with self._errors() as db:
            db.execute("begin immediate")
            try:
                yield
            except BaseException:
                db.execute("rollback")
                raise
            db.execute("commit")

    def adopt(self, result: Result, work: str) -> bool:
        """Take a result from elsewhere, of the work that its description states; say whether it is news.

        A finished search is kept as it is, and so is a faster time of an unfinished one.
        """
        found = result.winner
        with self._errors() as db:
            known = db.execute("select done from problems where key = ?", (result.key,)).fetchone()
            best = db.execute(
                "select min(seconds) from trials where problem = ? and outcome = 'ok'", (result.key,)
            ).fetchone()[0]
            if (known and known[0]) or (best is not None and best <= found.seconds):
                return False
            now = time.time()
            db.execute(
                "insert or ignore into problems (key, description, work, label, at) values (?, ?, ?, ?, ?)",
                (result.key, result.description, work, result.label, now),
            )
            db.execute(
                "update problems set done = ?, best = ?, seconds = ?, spread = ?, source = ?, trials = ?, points = ?, "
                "proven = ?, at = ? where key = ?",
                (int(result.finished), *astuple(found), now, result.key),
            )
            trial = (result.key, found.schedule, trial_key(result.key, found.schedule), "ok", found.seconds)
            db.execute(
                "insert or replace into trials values (?, ?, ?, ?, ?, ?, 0, ?, '', 0.0, 0.0, ?)",
                (*trial, found.spread, found.source, now),
            )
        return True

    # ---- decisions about graphs

    def answer(self, key: str) -> DecidedGraph | None:
        """Return what is known of a question."""
        return next(iter(self._answers("where key = ?", key)), None)

    def answers(self) -> tuple[DecidedGraph, ...]:
        """Return all that is known of graphs, by key."""
        return self._answers("order by key")

    def keep_answer(self, answer: DecidedGraph) -> None:
        """Keep what a search decided; it replaces what was decided before."""
        row = (answer.key, answer.description, answer.label, answer.decisions, json.dumps(answer.problems),
               answer.seconds, int(answer.finished), time.time())  # fmt: skip
        with self._errors() as db:
            db.execute("insert or replace into decisions values (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def adopt_answer(self, answer: DecidedGraph) -> bool:
        """Take decisions from elsewhere, unless those that are known are as good; say whether they are news."""
        known = self.answer(answer.key)
        if known is not None and known.seconds <= answer.seconds:
            return False
        self.keep_answer(answer)
        return True

    def _answers(self, which: str, *values: str) -> tuple[DecidedGraph, ...]:
        columns = "key, description, label, decisions, problems, seconds, finished"
        with self._errors() as db:
            rows = db.execute(f"select {columns} from decisions {which}", values).fetchall()
        return tuple(
            DecidedGraph(key, description, label, decisions, tuple(json.loads(problems)), seconds, bool(finished))
            for key, description, label, decisions, problems, seconds, finished in rows
            if _fits((key, description, label, decisions, problems, seconds, finished), _ANSWER_KINDS)
        )

    # ---- modelled costs, which are slow to compute again

    def cost(self, key: str) -> float | None:
        """Return a kept cost."""
        with self._errors() as db:
            row = db.execute("select seconds from costs where key = ?", (key,)).fetchone()
        return float(row[0]) if row and isinstance(row[0], (int, float)) else None

    def keep_cost(self, key: str, seconds: float) -> None:
        """Keep a cost."""
        with self._errors() as db:
            db.execute("insert or replace into costs values (?, ?)", (key, seconds))

    # ---- for people

    def info(self) -> dict[str, object]:
        """Return how much is kept."""
        with self._errors() as db:
            outcomes = dict(
                db.execute("select outcome, count(*) from trials group by outcome order by outcome").fetchall()
            )
            problems, done = db.execute("select count(*), coalesce(sum(done), 0) from problems").fetchone()
        return {
            "path": str(self.path),
            "problems": problems,
            "finished": done,
            "trials": sum(outcomes.values()),
            "outcomes": outcomes,
        }

    def explain(self, prefix: str) -> list[dict[str, Any]]:
        """Return what every key with a prefix stands for: problems with their trials' counts, or single trials."""
        like = prefix.lower() + "%"
        with self._errors() as db:
            problems = db.execute(
                "select key, description, label, done, best, seconds, spread, points, proven, at from problems where "
                "key like ?",
                (like,),
            ).fetchall()
            trials = db.execute(
                "select t.key, p.description, p.label, t.schedule, t.outcome, t.seconds, t.spread, t.registers, "
                "t.source, t.message,"
                " t.bound, t.score, t.at from trials t join problems p on p.key = t.problem where t.key like ?",
                (like,),
            ).fetchall()
            return [self._problem_record(db, row) for row in problems] + [_trial_record(row) for row in trials]

    @staticmethod
    def _problem_record(db: sqlite3.Connection, row: Sequence[Any]) -> dict[str, Any]:
        names = ("key", "hashed", "label", "finished", "best", "seconds", "spread", "points", "proven slower", "at")
        record = dict(zip(names, row, strict=True)) | {
            "kind": "problem",
            "hashed": _hashed(row[1]),
            "finished": bool(row[3]),
        }
        counts = db.execute(
            "select outcome, count(*) from trials where problem = ? group by outcome", (row[0],)
        ).fetchall()
        return record | {"trials": dict(counts)}


def _trial_record(row: Sequence[Any]) -> dict[str, Any]:
    names = (
        "key",
        "hashed",
        "label",
        "schedule",
        "outcome",
        "seconds",
        "spread",
        "registers",
        "source",
        "message",
        "bound",
        "score",
        "at",
    )
    return dict(zip(names, row, strict=True)) | {"kind": "trial", "hashed": _hashed(row[1])}


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and writers share the file. Of processes that ask for it at once SQLite refuses some, without
    waiting.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)


def _fits(row: Sequence[object], kinds: Sequence[Any]) -> bool:
    """Whether a row's values are of the kinds that we write: SQLite keeps whatever it is given."""
    return all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True))


def _hashed(description: object) -> dict[str, Any]:
    """Return what a key was made from; a damaged description as what it is."""
    try:
        found = json.loads(description) if isinstance(description, str) else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"damaged": repr(description)[:200]}


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
        held = int(str(database.info()["trials"]))
        database.close()
    except BackendError:
        held = 0
    for name in (path.name, path.name + "-wal", path.name + "-shm"):
        path.with_name(name).unlink(missing_ok=True)
    return held
