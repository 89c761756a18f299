"""Contents of the tuning database, for people."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from .versions import VersionedFile


def summary_of(database: VersionedFile) -> dict[str, object]:
    """Return the counts of stored entries, and of valid measurements."""
    with database.errors() as db:
        outcomes = dict(db.execute("select outcome, count(*) from trials group by outcome order by outcome").fetchall())
        problems, done = db.execute("select count(*), coalesce(sum(done), 0) from problems").fetchone()
        holding, otherwise = db.execute(
            "select coalesce(sum(w.source = t.source), 0), coalesce(sum(w.source <> t.source), 0) from trials t "
            "join written w on w.point = t.key and w.version = ?",
            (database.version,),
        ).fetchone()
    trials = sum(outcomes.values())
    return {
        "path": str(database.path),
        "problems": problems,
        "finished": done,
        "trials": trials,
        "outcomes": outcomes,
        "holding": holding,
        "made otherwise since": otherwise,
        "not looked at by this version": trials - holding - otherwise,
    }


def explain(database: VersionedFile, prefix: str) -> list[dict[str, Any]]:
    """Return the entries whose key has a prefix: problems or single trials."""
    like = prefix.lower() + "%"
    with database.errors() as db:
        problems = db.execute(
            "select key, description, label, done, best, seconds, spread, points, proven, at from problems where "
            "key like ?",
            (like,),
        ).fetchall()
        trials = db.execute(
            "select t.key, p.description, p.label, t.schedule, t.outcome, t.seconds, t.spread, t.registers, "
            "t.source, t.message,"
            " t.bound, t.score, t.at, w.source = t.source from trials t join problems p on p.key = t.problem "
            "left join written w on w.point = t.key and w.version = ? where t.key like ?",
            (database.version, like),
        ).fetchall()
        return [_problem_record(db, row) for row in problems] + [_trial_record(row) for row in trials]


def _problem_record(db: sqlite3.Connection, row: Sequence[Any]) -> dict[str, Any]:
    names = ("key", "hashed", "label", "finished", "best", "seconds", "spread", "points", "proven slower", "at")
    record = dict(zip(names, row, strict=True)) | {
        "kind": "problem",
        "hashed": _key_source(row[1]),
        "finished": bool(row[3]),
    }
    counts = db.execute("select outcome, count(*) from trials where problem = ? group by outcome", (row[0],)).fetchall()
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
        "holds",
    )
    holds = None if row[-1] is None else bool(row[-1])
    return dict(zip(names, row, strict=True)) | {"kind": "trial", "hashed": _key_source(row[1]), "holds": holds}


def _key_source(description: object) -> dict[str, Any]:
    """Return the source of a key; a damaged description as text."""
    try:
        found = json.loads(description) if isinstance(description, str) else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"damaged": repr(description)[:200]}
