"""Results of searches in a file, to be carried to another machine: `cuts cache export`, `cuts cache import`.

The file is JSON (compressed where its name ends in `.gz`): for each problem the description that its key is made of,
and the best schedule that was found, with its time. Schedules are text that is read and checked like any of the
database: a stranger's file may lead to slow kernels, never to wrong ones.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import cattrs
from attrs import frozen

from ..ir import UsageError, quote
from .database import Database, Result
from .problem import digest

FORMAT = 1
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
#: What a file may hold when it is unpacked, in bytes.
_LARGEST = 1 << 28


@frozen
class ResultFile:
    """What a file of results holds."""

    format: int
    results: tuple[Result, ...]


@frozen
class Imported:
    """What became of a file's results: new ones, those that the database had or had better, and damaged ones."""

    new: int
    known: int
    damaged: int


def export_results(database: Database, path: str | os.PathLike[str]) -> int:
    """Write the best result of every problem, and return how many there are.

    Raises `UsageError` where the file cannot be written.
    """
    found = ResultFile(FORMAT, database.results())
    text = json.dumps(_CONVERTER.unstructure(found), indent=1, sort_keys=True).encode()
    packed = gzip.compress(text, mtime=0) if Path(path).suffix == ".gz" else text
    temporary = Path(f"{os.fspath(path)}.part")
    try:
        temporary.write_bytes(packed)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {os.fspath(path)}: {error.strerror}") from error
    return len(found.results)


def import_results(database: Database, path: str | os.PathLike[str]) -> Imported:
    """Add the results of a file, and return how many were new.

    A finished search of the database is kept, and an unfinished one where it is faster. Raises `UsageError` where the
    file cannot be read, is none of this kind, or is of another format.
    """
    results = _read(path).results
    sound = [(r, work) for r in results if r.key == digest(r.description) and (work := _work(r.description))]
    new = sum(database.adopt(result, work) for result, work in sound)
    return Imported(new, len(sound) - new, len(results) - len(sound))


def _read(path: str | os.PathLike[str]) -> ResultFile:
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
        text = _unpacked(data) if data[:2] == b"\x1f\x8b" else data
        document = json.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    except (ValueError, EOFError, zlib.error, RecursionError) as error:
        raise UsageError(f"{name}: expected results of 'cuts cache export', found something else: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{name}: expected results of 'cuts cache export', found: {type(document).__name__}")
    if document.get("format") not in (FORMAT, None):
        raise UsageError(
            f"{name}: expected format {FORMAT}, found {quote(str(document['format']))}",
            hint="export it again with this version",
        )
    try:
        return _CONVERTER.structure(document, ResultFile)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError) as error:
        reasons = "; ".join(cattrs.transform_error(error)[:3])
        raise UsageError(f"{name}: expected results of 'cuts cache export', found: {reasons}") from error


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(data, _LARGEST)
    if not unpacker.eof:
        raise ValueError("it is cut short, or unpacks to more than such a file holds")
    return text


def _work(description: str) -> str:
    """Return what a description says is computed; nothing where it is none of ours."""
    try:
        found = json.loads(description)
    except (ValueError, RecursionError):
        return ""
    work = found.get("work") if isinstance(found, dict) else None
    return work if isinstance(work, str) else ""
