"""Files of search results: `cuts cache export`, `pack` and `import`.

The file is JSON (compressed where its name ends in `.gz` or `.xz`). It has, for each tuning task, the description that
its key is made of, and its best schedule with the time; for each graph its decision record; and a digest of all that.
Schedules and decisions are read and checked like those of the database: a foreign file may lead to slow kernels, never
to wrong ones.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import cattrs
from attrs import evolve, frozen

from ...ir import UsageError, atomic_write, quote, renew_keywords
from ...store import describe, digest
from ..tasks import EARLIER_FORMATS, DecisionRecord
from ..tasks import FORMAT as TODAY
from .records import Result
from .tables import Database

#: Version 3 has fingerprints of nodes and units, version 4 today's keywords in schedules.
FORMAT = 4
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
#: Largest size of an unpacked file, in bytes.
_MAX_UNPACKED_BYTES = 1 << 28
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ"


@frozen
class ResultFile:
    """Contents of a file; `digest` is that of the results and answers."""

    format: int
    results: tuple[Result, ...]
    answers: tuple[DecisionRecord, ...] = ()
    digest: str = ""


@frozen
class ImportCounts:
    """Counts of new, known and damaged results, and of new graphs."""

    new: int
    known: int
    damaged: int
    graphs: int = 0


@frozen
class ExportCounts:
    """Counts of a file's results and of its graphs."""

    results: int
    graphs: int


def export_results(database: Database, path: str | os.PathLike[str]) -> ExportCounts:
    """Write the best result of every task, and every decision record.

    Raises `UsageError` where the file cannot be written.
    """
    return _write(path, database.results(), database.answers())


def export_pack(database: Database, path: str | os.PathLike[str]) -> ExportCounts:
    """Write every decision record as final, and the results of their kernels.

    Raises `UsageError` where the file cannot be written.
    """
    answers = tuple(evolve(answer, finished=True) for answer in database.answers())
    needed = {key for answer in answers for key in answer.problems}
    return _write(path, (result for result in database.results() if result.key in needed), answers)


def import_results(database: Database, path: str | os.PathLike[str]) -> ImportCounts:
    """Add the results of a file, and return the counts.

    A finished search of the database is kept, and so is a faster result. Raises `UsageError` where the file cannot be
    read, is none of this kind, is damaged, or is of another format.
    """
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    return import_bytes(database, data, name)


def import_bytes(database: Database, data: bytes, name: str) -> ImportCounts:
    """Add the results of a file's content; `name` is for errors."""
    file = _read(data, name)
    return _import(database, file.results, file.answers)


def import_database(database: Database, path: Path) -> ImportCounts:
    """Add the results and measurements of another database's file.

    The file is not changed.

    Raises `UsageError` where it is none.
    """
    with closing(Database(None)) as other:
        try:
            other.read_file(path)
        except sqlite3.Error as error:
            raise UsageError(f"{path}: expected a tuning database, found something else: {error}") from error
        counts = _import(database, other.results(), other.answers())
        database.absorb(other)
    return counts


def _import(database: Database, results: Sequence[Result], all_answers: Sequence[DecisionRecord]) -> ImportCounts:
    sound = [(r, work) for r in results if r.key == digest(r.description) and (work := _work(r.description))]
    answers = [a for a in all_answers if a.key == digest(a.description) and a.read() is not None]
    renewed = {result.key: _renew(result) for result, _ in sound}
    with database.transaction():
        new = sum(database.adopt(renewed[result.key], work) for result, work in sound)
        graphs = sum(database.adopt_answer(_with_renewed_keys(answer, renewed)) for answer in answers)
    damaged = len(results) - len(sound) + len(all_answers) - len(answers)
    return ImportCounts(new, len(sound) - new, damaged, graphs)


def _write(path: str | os.PathLike[str], results: Iterable[Result], answers: Iterable[DecisionRecord]) -> ExportCounts:
    found = ResultFile(FORMAT, tuple(results), tuple(answers))
    values = _CONVERTER.unstructure(found)
    text = json.dumps(values | {"digest": _digest(values)}, indent=1, sort_keys=True).encode()
    pack = {".gz": lambda: gzip.compress(text, mtime=0), ".xz": lambda: lzma.compress(text)}.get(Path(path).suffix)
    with atomic_write(path) as draft:
        draft.write_bytes(text if pack is None else pack())
    return ExportCounts(len(found.results), len(found.answers))


def _digest(values: dict[str, Any]) -> str:
    """Return the digest of a file's contents, independent of its layout."""
    said = json.dumps([values["results"], values.get("answers", [])], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def _read(data: bytes, name: str) -> ResultFile:
    try:
        document = json.loads(_unpack(data))
    except (ValueError, EOFError, zlib.error, lzma.LZMAError, RecursionError) as error:
        raise UsageError(f"{name}: expected results of 'cuts cache export', found something else: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{name}: expected results of 'cuts cache export', found: {type(document).__name__}")
    if document.get("format") not in (*range(1, FORMAT + 1), None):
        raise UsageError(
            f"{name}: expected format {FORMAT}, found {quote(str(document['format']))}",
            hint="export it again with this version",
        )
    try:
        found = _CONVERTER.structure(document, ResultFile)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError) as error:
        reasons = "; ".join(cattrs.transform_error(error)[:3])
        raise UsageError(f"{name}: expected results of 'cuts cache export', found: {reasons}") from error
    if found.format > 1 and found.digest != _digest(document):
        raise UsageError(f"{name}: it was changed or damaged: its digest is not that of its results")
    return evolve(found, results=tuple(map(_renew_keywords, found.results))) if found.format < FORMAT else found


def _renew_keywords(result: Result) -> Result:
    return evolve(result, winner=evolve(result.winner, schedule=renew_keywords(result.winner.schedule)))


def _unpack(data: bytes) -> bytes:
    if data[: len(_GZIP)] == _GZIP:
        unpacker: Any = zlib.decompressobj(wbits=31)
    elif data[: len(_XZ)] == _XZ:
        unpacker = lzma.LZMADecompressor()
    else:
        return data
    text: bytes = unpacker.decompress(data, _MAX_UNPACKED_BYTES)
    if not unpacker.eof:
        raise ValueError("it is cut short, or unpacks to more than such a file holds")
    return text


def _renew(result: Result) -> Result:
    """Return a result of an earlier format as one of today's.

    Its schedule was the fastest, and its time is longer than by today's timing, so that any new measurement replaces
    it.
    """
    found = json.loads(result.description)
    if found.get("format") not in EARLIER_FORMATS:
        return result
    description = describe(found | {"format": str(TODAY)})
    return evolve(result, key=digest(description), description=description)


def _with_renewed_keys(answer: DecisionRecord, renewed: Mapping[str, Result]) -> DecisionRecord:
    return evolve(answer, problems=tuple(renewed[key].key if key in renewed else key for key in answer.problems))


def _work(description: str) -> str:
    """Return the work of a description, empty for another text."""
    try:
        found = json.loads(description)
    except (ValueError, RecursionError):
        return ""
    work = found.get("work") if isinstance(found, dict) else None
    return work if isinstance(work, str) else ""
