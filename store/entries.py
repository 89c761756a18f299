"""Entries of the store: named bytes under a key, a file each.

    entries/KIND/NAME   {"facts": {"kind": "cubin", ...}, "parts": {"code": [1032, "<SHA-256>"]}, ...}
                        <bytes of the parts, one after another>

The first line is the head; the facts have the file's name as their digest. A file is written beside its place and
renamed: an entry is complete or absent, of two writers the last one wins, and readers need no lock. A file with another
name or digest than its head says is set aside, so that a crash and a failing disk cost that entry only. The time of
modification is that of the last use.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import cattrs
from attrs import asdict, frozen

from .eviction import ENTRIES, MAX_BYTES, trim
from .folder import cache_root, create_private_folder, set_aside, warn_unusable
from .keys import KINDS, Facts, Key, describe, digest, digest_parts

#: Largest head, in bytes.
_MAX_HEAD_BYTES = 1 << 20
#: Bytes from which an entry is written by a thread: its digests and the disk take seconds per gigabyte.
LARGE_BYTES = 1 << 26
_unwritten: dict[tuple[Path | None, str, str], threading.Thread] = {}
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
_FAULTS = (ValueError, TypeError, KeyError, RecursionError, cattrs.BaseValidationError)


@frozen
class Head:
    """Head of an entry: its facts, and each part's size and digest.

    The digest includes the part's name.
    """

    facts: dict[str, Any]
    label: str
    at: float
    parts: dict[str, tuple[int, str]]

    @property
    def kind(self) -> str:
        """Kind of the entry."""
        return str(self.facts["kind"])

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(size for size, _ in self.parts.values())

    @property
    def name(self) -> str:
        """Name of the entry."""
        return digest(describe(self.facts))


@frozen
class EntryStore:
    """Entries of all kinds in a folder; empty without one."""

    root: Path | None

    @classmethod
    def open(cls) -> EntryStore:
        """Open the user's store."""
        return cls(cache_root())

    def get(self, key: Key) -> dict[str, bytes] | None:
        """Return the parts of an entry, None where missing or damaged."""
        return self.read(key.kind, key.name)

    def put(self, key: Key, parts: Mapping[str, bytes]) -> None:
        """Write an entry; a full or read-only disk only loses it."""
        sizes = {name: (len(content), digest_parts([name, content])) for name, content in parts.items()}
        self.write(Head(dict(key.facts), key.label, time.time(), sizes), parts)

    def put_later(self, key: Key, parts: Callable[[], Mapping[str, bytes]], nbytes: int) -> None:
        """Write an entry; beside the process if it has many bytes.

        `read` waits for it, and so does the end of the process.
        """
        if nbytes < LARGE_BYTES:
            self.put(key, parts())
            return
        # A thread of its own: a forked process has no threads of a pool.
        writer = threading.Thread(target=lambda: self.put(key, parts()), name="cuts-store")
        writer.start()
        _unwritten[self.root, key.kind, key.name] = writer

    def read(self, kind: str, name: str) -> dict[str, bytes] | None:
        """Return the parts of an entry by its name.

        None where it is missing or damaged.
        """
        if (writer := _unwritten.pop((self.root, kind, name), None)) is not None:
            writer.join()
        if self.root is None:
            return None
        path = self.root / ENTRIES / kind / name
        try:
            with path.open("rb") as file:
                parts = read_parts(file, read_head(file, name))
        except OSError:
            return None
        except ValueError as error:
            self.set_aside(kind, name, str(error))
            return None
        with suppress(OSError):  # a read-only disk
            os.utime(path)
        return parts

    def write(self, head: Head, parts: Mapping[str, bytes]) -> None:
        """Write an entry with its head, and evict others beyond the limit."""
        if self.root is None or (folder := create_private_folder(self.root / ENTRIES / head.kind)) is None:
            return
        draft = folder / f".new-{os.getpid()}-{threading.get_ident()}-{head.name}"
        try:
            with open(draft, "wb", opener=_open_private) as file:
                file.write(json.dumps(asdict(head)).encode() + b"\n")
                file.writelines(parts[name] for name in head.parts)
            os.replace(draft, folder / head.name)
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            warn_unusable(self.root, str(error.strerror))
            return
        trim(self.root, MAX_BYTES, head.size)

    def set_aside(self, kind: str, name: str, reason: str) -> None:
        """Set an entry aside whose content cannot be used."""
        if self.root is not None:
            set_aside(self.root / ENTRIES / kind / name, self.root, reason)

    def heads(self, kind: str = "", prefix: str = "") -> Iterator[tuple[Path, Head]]:
        """Yield the files and heads of readable entries, by kind and name.

        They are those of one kind, or of all.
        """
        if self.root is None:
            return
        for each in [kind] if kind else KINDS:
            for path in sorted((self.root / ENTRIES / each).glob(f"{prefix}*")):
                with suppress(OSError, ValueError), path.open("rb") as file:
                    yield path, read_head(file, path.name)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_head(file: IO[bytes], name: str) -> Head:
    """Read the head of an entry.

    Raises `ValueError` where it is damaged, or that of another entry.
    """
    line = file.readline(_MAX_HEAD_BYTES)
    try:
        head = _CONVERTER.structure(json.loads(line), Head)
        own = head.name == name and head.kind in KINDS
    except _FAULTS:
        own = False
    if not own:
        raise ValueError("its head is that of no such entry")
    return head


def read_parts(file: IO[bytes], head: Head) -> dict[str, bytes]:
    """Read the parts that follow a head.

    Raises `ValueError` where their digests differ.
    """
    start = file.tell()
    if any(size < 0 for size, _ in head.parts.values()) or file.seek(0, os.SEEK_END) - start != head.size:
        raise ValueError("it is cut short")
    file.seek(start)
    parts = {name: file.read(size) for name, (size, _) in head.parts.items()}
    if any(digest_parts([name, parts[name]]) != expected for name, (_, expected) in head.parts.items()):
        raise ValueError("its digest does not fit its content")
    return parts


def current_facts(head: Head) -> Facts:
    """Return the facts that an entry has in this version."""
    return {**head.facts, **KINDS[head.kind].facts}
