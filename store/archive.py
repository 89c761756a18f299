"""Archives of entries and other files, for other hosts.

An archive is a tar file (compressed where its name ends in `.gz` or `.xz`) with the files of entries as they are. An
import reads an archive or another store's folder and checks every entry; an own entry stays. An archive is code, like a
plan: import only archives from trusted sources.
"""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from attrs import frozen

from ..ir import UsageError, atomic_write
from .entries import EntryStore, read_head, read_parts
from .eviction import ENTRIES

_MODES = {".gz": "w:gz", ".xz": "w:xz"}
_FAULTS = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)


@frozen
class EntryCounts:
    """Counts of new, known and damaged entries."""

    new: int = 0
    known: int = 0
    damaged: int = 0


def export_store(store: EntryStore, path: str | os.PathLike[str], files: Mapping[str, Path]) -> int:
    """Write all entries and some named files to an archive.

    Return the number of entries.

    Raises `UsageError` where the archive cannot be written.
    """
    found = [(f"{ENTRIES}/{head.kind}/{head.name}", place) for place, head in store.heads()]
    mode: Any = _MODES.get(Path(path).suffix, "w")
    with atomic_write(path, errors=_FAULTS) as draft, tarfile.open(draft, mode) as archive:
        for name, place in [*found, *files.items()]:
            archive.add(place, name, recursive=False)
    return len(found)


def import_store(store: EntryStore, path: str | os.PathLike[str], files: Mapping[str, Path]) -> EntryCounts:
    """Add the entries of an archive or of another store's folder.

    Its `files` are written to the given places.

    Raises `UsageError` where it cannot be read, or is neither.
    """
    counts = {"new": 0, "known": 0, "damaged": 0}
    own = {head.name for _, head in store.heads()}
    try:
        for name, file in _members(Path(path)):
            if name in files:
                with files[name].open("wb") as target:
                    shutil.copyfileobj(file, target)
            elif name.startswith(f"{ENTRIES}/"):
                counts[_import(store, name, file, own)] += 1
    except (OSError, *_FAULTS) as error:
        raise UsageError(f"cannot read {os.fspath(path)}: {getattr(error, 'strerror', None) or error}") from error
    return EntryCounts(**counts)


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the names and contents of an archive's or folder's files."""
    if path.is_dir():
        for file in sorted(each for each in path.rglob("*") if each.is_file() and not each.is_symlink()):
            with file.open("rb") as opened:
                yield file.relative_to(path).as_posix(), opened
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and (content := archive.extractfile(member)) is not None:
                yield member.name, content


def _import(store: EntryStore, name: str, file: IO[bytes], own: set[str]) -> str:
    key = name.rpartition("/")[2]
    if key in own:
        return "known"
    try:
        head = read_head(file, key)
        store.write(head, read_parts(file, head))
    except ValueError:
        return "damaged"
    return "new"
