"""Eviction of the least recently used items, by size.

Entries, programs of PoCL, files for diagnosis and files of earlier versions count together. The database of
measurements counts, but stays: its rows cost device time.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from .folder import DAMAGED_FOLDER
from .keys import KINDS

ENTRIES = "entries"
#: Bytes of the whole store.
MAX_BYTES = 8 << 30
#: Folders without entries -> levels of folders above an item: programs of PoCL, the library that runs packed plans,
#: refused sources and wrong plans for diagnosis, damaged entries; entries of earlier versions.
OTHER_FOLDERS = {
    "pocl": 1,
    "native": 0,
    "refused": 0,
    "wrong": 0,
    DAMAGED_FOLDER: 0,
    "cubin": 0,
    "latency": 0,
    "door": 0,
    "plans": 0,
}
#: A process looks for entries to evict after having written this share of the store, on average.
_WRITTEN_SHARE = 64


@frozen
class Item:
    """File or folder that is evicted as a whole."""

    kind: str
    path: Path
    size: int
    used: float

    def delete(self) -> None:
        """Delete it; another process may do so too."""
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)
            return
        with suppress(OSError):
            self.path.unlink()


def items(root: Path) -> Iterator[Item]:
    """Yield everything that can be evicted.

    Other processes add and delete items meanwhile.
    """
    folders = [(kind, root / ENTRIES / kind, 0) for kind in KINDS]
    folders += [(kind, root / kind, depth) for kind, depth in OTHER_FOLDERS.items()]
    for kind, folder, depth in folders:
        for place in folder.glob("*"):
            for path in place.glob("*") if depth and place.is_dir() else [place]:
                size, used = _usage(path)
                if used:
                    yield Item(kind, path, size, used)


def _usage(path: Path) -> tuple[int, float]:
    """Return the bytes of a file or folder and its last use; (0, 0.0) for one that is gone."""
    inner = [Path(place, name) for place, _, names in os.walk(path) for name in names]
    size, used = 0, 0.0
    for file in inner or [path]:
        try:
            status = file.lstat()
        except OSError:
            continue
        size, used = size + (0 if file.is_dir() else status.st_size), max(used, status.st_mtime)
    return size, used


def trim(root: Path, limit: int, written: int) -> None:
    """Delete the least recently used items beyond a limit.

    The newest one stays.

    Listing takes time, so that only some calls do it: the more was `written`, the more likely. No process needs to know
    of the others' writing.
    """
    if random.random() * limit >= written * _WRITTEN_SHARE:
        return
    found = sorted(items(root), key=lambda item: item.used)
    total = sum(item.size for item in found)
    for item in found[:-1]:
        if total <= limit:
            return
        item.delete()
        total -= item.size


def store_info(root: Path | None) -> dict[str, object]:
    """Return the folder, its limit, and entries and bytes by kind."""
    kinds: dict[str, dict[str, int]] = {}
    for item in () if root is None else items(root):
        entry = kinds.setdefault(item.kind, {"entries": 0, "bytes": 0})
        entry["entries"] += 1
        entry["bytes"] += item.size
    totals = {name: sum(kind[name] for kind in kinds.values()) for name in ("entries", "bytes")}
    return {"path": root and str(root), "limit": MAX_BYTES, **totals, "kinds": dict(sorted(kinds.items()))}


def clear_store(root: Path | None) -> int:
    """Delete everything that can be evicted, and return the number of items."""
    found = [] if root is None else list(items(root))
    for item in found:
        item.delete()
    return len(found)
