"""Packs: files of finished results, one for each tuned GPU.

A search, and a compilation without one, begins with their results. On the machine of a pack its results are used like
local ones; elsewhere they are hints. Each pack is read into a database once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files

from ...ir import Target, UsageError
from ..tasks import DecisionRecord, Question
from .exchange import import_bytes
from .tables import Database
from .user import open_database

FOLDER = "data"
#: Dialect of the machines that have packs.
PACK_DIALECT = "cuda"


def shipped_packs() -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of this package's packs."""
    folder = files(__package__).joinpath(FOLDER)
    for entry in sorted(folder.iterdir(), key=lambda e: e.name) if folder.is_dir() else ():
        if entry.name.endswith(".json.xz"):
            yield entry.name, entry.read_bytes()


def known_answer(question: Question, target: Target) -> DecisionRecord | None:
    """Return the decision record of a question or of a similar graph.

    It comes from the user's database or from a pack.
    """
    with closing(_offered_database(target)) as database:
        return database.answer(question.key) or question.nearest(database.answers())


def known_answers(target: Target) -> tuple[DecisionRecord, ...]:
    """Return all decision records of the user's database and of packs."""
    with closing(_offered_database(target)) as database:
        return database.answers()


def _offered_database(target: Target) -> Database:
    """Return the user's database, with the packs for a target."""
    database = open_database()
    if target.dialect == PACK_DIALECT:
        offer_packs(database)
    return database


def offer_packs(database: Database, notice: Callable[[str], None] = lambda text: None) -> int:
    """Read new packs into a database and return their number.

    A damaged one is skipped with a notice.
    """
    read = 0
    for name, data in shipped_packs():
        key = f"pack {hashlib.sha256(data).hexdigest()}"
        if database.cost(key) is not None:
            continue
        try:
            import_bytes(database, data, name)
        except UsageError as error:
            notice(f"a pack of this package is left out: {error}")
        database.keep_cost(key, 0.0)
        read += 1
    return read
