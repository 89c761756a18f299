"""Checks of PoCL's cache: a damaged file would end the process.

PoCL loads a kernel's library without a check, and treats a program with unreadable bitcode as one without kernels. So a
process checks once the beginning and the end of every file, and renames the folder of a program with a damaged one;
PoCL builds that program again.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

#: Seconds in which another process may still be writing a file.
_MAX_WRITE_SECONDS = 5.0
#: Fields of the 64-bit ELF header: offset of the section table, bytes of a row, and number of rows (System V ABI, "ELF
#: Header").
_ELF, _ELF_BYTES, _TABLE = b"\x7fELF", 64, struct.Struct("<40xQ10xHH")
#: After its first word bitcode is a list of blocks: a word with its kind, a word with its length in words, its content
#: (LLVM Bitcode File Format, "ENTER_SUBBLOCK Encoding").
_BITCODE, _WORD = b"BC\xc0\xde", 4


def quarantine_damaged(folder: Path) -> list[Path]:
    """Rename folders of damaged programs, and return their new names.

    PoCL does not find them then. Folders that were renamed earlier stay: `cuts cache clear` removes them.
    """
    settled = time.time() - _MAX_WRITE_SECONDS
    return _move_aside(
        folder, (p for p in _programs(folder) if any(_is_damaged(path, size) for path, size in _files(str(p), settled)))
    )


def quarantine_programs(folder: Path, kernel: str) -> list[Path]:
    """Rename the folders of programs with a kernel of this name."""
    return _move_aside(folder, (program for program in _programs(folder) if (program / kernel).is_dir()))


def _move_aside(folder: Path, programs: Iterable[Path]) -> list[Path]:
    moved = []
    for program in programs:
        aside = folder / f"damaged-{time.time_ns()}-{program.name}"
        try:
            program.rename(aside)
        except OSError:  # another process did it
            continue
        moved.append(aside)
    return moved


def _programs(folder: Path) -> Iterator[Path]:
    """Yield the folders of programs: their names are cut after two letters."""
    for group in _entries(folder):
        if len(group.name) == 2:
            yield from (Path(program.path) for program in _entries(Path(group.path)))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # gone since
        return []


def _files(folder: str, before: float) -> Iterator[tuple[str, int]]:
    """Yield the files of known formats written before a time, with their sizes in bytes."""
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:  # gone since
        return
    for entry in entries:
        name = entry.name
        if name.endswith((".so", ".bc")):
            try:
                status = entry.stat()
            except OSError:
                continue
            if status.st_mtime <= before:
                yield entry.path, status.st_size
        elif entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, before)


def _is_damaged(path: str, size: int) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(_ELF_BYTES)
            if path.endswith(".bc"):
                return not head.startswith(_BITCODE) or _end_of_blocks(file, size) != size
    except OSError:
        return False
    if not head.startswith(_ELF) or len(head) < _ELF_BYTES:
        return True
    start, width, rows = _TABLE.unpack_from(head)
    return bool(start + width * rows > size)


def _end_of_blocks(file: FileIO, size: int) -> int:
    """Return the end of the last of the outermost blocks, in bytes."""
    place = _WORD
    while place < size:
        file.seek(place + _WORD)
        place += 2 * _WORD + _WORD * int.from_bytes(file.read(_WORD), "little")
    return place
