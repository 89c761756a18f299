"""Contents of the tuning database, for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...store import explain_facts
from ..tasks import GRAPH_ENTRIES, Question
from .versions import VersionedFile

#: Columns of a decision record.
_ANSWER = "key, description, label, seconds, finished, at"


def summary_of(database: VersionedFile) -> dict[str, object]:
    """Return the counts of stored entries, and of valid measurements."""
    outcomes = dict(database.rows("select outcome, count(*) from trials group by outcome order by outcome"))
    problems, done = database.row("select count(*), coalesce(sum(done), 0) from problems")
    holding, otherwise = database.row(
        "select coalesce(sum(w.source = t.source), 0), coalesce(sum(w.source <> t.source), 0) from trials t "
        "join written w on w.point = t.key and w.version = ?",
        database.version,
    )
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
    problems = database.rows(
        "select key, description, label, done, best, seconds, spread, points, proven, at from problems "
        "where key like ?",
        like,
    )
    trials = database.rows(
        "select t.key, p.description, p.label, t.schedule, t.outcome, t.seconds, t.spread, t.registers, t.source, "
        "t.message, t.bound, t.score, t.at, w.source = t.source from trials t join problems p on p.key = t.problem "
        "left join written w on w.point = t.key and w.version = ? where t.key like ?",
        database.version,
        like,
    )
    answers = database.rows(f"select {_ANSWER} from decisions where key like ?", like)
    return [
        *(_problem_record(database, row) for row in problems),
        *(_trial_record(row) for row in trials),
        *(_answer_record(row) for row in answers),
    ]


def explain_question(database: VersionedFile, question: Question) -> dict[str, Any]:
    """Explain whether a graph has a decision record, by the nearest ones."""
    rows = database.rows(f"select {_ANSWER} from decisions")
    records, asked = map(_answer_record, rows), json.loads(question.description)
    return explain_facts("decisions", question.label, asked, records, GRAPH_ENTRIES)


def _answer_record(row: Sequence[Any]) -> dict[str, Any]:
    found = {"kind": "decisions", "hashed": _key_source(row[1]), "finished": bool(row[4])}
    return dict(zip(("key", "hashed", "label", "seconds", "finished", "at"), row, strict=True)) | found


def _problem_record(database: VersionedFile, row: Sequence[Any]) -> dict[str, Any]:
    names = ("key", "hashed", "label", "finished", "best", "seconds", "spread", "points", "proven slower", "at")
    record = dict(zip(names, row, strict=True)) | {
        "kind": "problem",
        "hashed": _key_source(row[1]),
        "finished": bool(row[3]),
    }
    counts = database.rows("select outcome, count(*) from trials where problem = ? group by outcome", row[0])
    return record | {"trials": dict(counts)}


def _trial_record(row: Sequence[Any]) -> dict[str, Any]:
    names = ("key", "hashed", "label", "schedule", "outcome", "seconds", "spread", "registers", "source", "message",
             "bound", "score", "at", "holds")  # fmt: skip
    holds = None if row[-1] is None else bool(row[-1])
    return dict(zip(names, row, strict=True)) | {"kind": "trial", "hashed": _key_source(row[1]), "holds": holds}


def _key_source(description: object) -> dict[str, Any]:
    """Return the source of a key; a damaged description as text."""
    try:
        found = json.loads(description) if isinstance(description, str) else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"damaged": repr(description)[:200]}
