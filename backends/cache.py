"""Content-addressed cache of compiled kernels in an owner-only folder.

A writer of a cache of binaries can run code in the process that reads it. So the folder is created with mode 0700, a
folder that others own or may write is refused, entries carry a SHA-256 of their content that is checked when they are
read, and nothing is unpickled. `CUTS_CACHE_DIR` moves the cache, `CUTS_NO_CACHE=1` switches it off.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

import platformdirs
from attrs import frozen

from ..ir import BackendError

#: Kinds of entries: cubins, PoCL's own cache, sources that a compiler refused, fitted latency models, plan keys of
#: graphs captured by PyTorch.
ENTRY_KINDS = ("cubin", "pocl", "refused", "latency", "door")
_DIGEST = 64


def cache_key(parts: Iterable[str | bytes]) -> str:
    """Return the entry name for these parts, including their boundaries."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def cache_root() -> Path | None:
    """Return the created and checked cache folder; None where caching is off."""
    if os.environ.get("CUTS_NO_CACHE", "0") not in ("", "0"):
        return None
    root = Path(os.environ.get("CUTS_CACHE_DIR") or platformdirs.user_cache_dir("cuts"))
    return create_private_folder(root)


def create_private_folder(folder: Path) -> Path:
    """Create a folder that only its owner can write.

    Raises `BackendError` where the folder cannot be made, or belongs to someone else or can be written by others.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise BackendError(
            f"cannot use cache folder {folder}: {error.strerror}", hint="set CUTS_CACHE_DIR, or CUTS_NO_CACHE=1"
        ) from error
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022):
        raise BackendError(
            f"cache folder {folder} can be written by others, so it could hold foreign code",
            hint="expected a folder of your own with mode 0700: chmod 700 it, "
            "or set CUTS_CACHE_DIR, or CUTS_NO_CACHE=1",
        )
    return folder


@frozen
class KernelStore:
    """Entries of one kind in the cache folder; empty without a folder."""

    folder: Path | None

    @classmethod
    def open(cls, kind: str) -> KernelStore:
        """Open the store of one kind of entry."""
        assert kind in ENTRY_KINDS
        root = cache_root()
        return cls(None if root is None else create_private_folder(root / kind))

    def get(self, key: str) -> bytes | None:
        """Return an entry; None where missing or damaged.

        A damaged one is deleted.
        """
        if self.folder is None:
            return None
        path = self.folder / key
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        digest, content = raw[:_DIGEST], raw[_DIGEST:]
        if hashlib.sha256(content).hexdigest().encode() == digest:
            return content
        path.unlink(missing_ok=True)
        return None

    def put(self, key: str, content: bytes) -> None:
        """Write an entry atomically; a full disk only loses the entry."""
        if self.folder is None:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).hexdigest().encode() + content)
            os.replace(name, self.folder / key)
        except OSError:
            Path(name).unlink(missing_ok=True) if "name" in locals() else None


def cache_info() -> dict[str, object]:
    """Return the path of the cache, and entries and bytes by kind."""
    root = cache_root()
    if root is None:
        return {"path": None, "entries": 0, "bytes": 0, "kinds": {}}
    kinds: dict[str, dict[str, int]] = {}
    for path in _files(root):
        entry = kinds.setdefault(path.relative_to(root).parts[0], {"entries": 0, "bytes": 0})
        entry["entries"] += 1
        entry["bytes"] += file_size(path)
    return {
        "path": str(root),
        "entries": sum(kind["entries"] for kind in kinds.values()),
        "bytes": sum(kind["bytes"] for kind in kinds.values()),
        "kinds": dict(sorted(kinds.items())),
    }


def clear_cache() -> int:
    """Delete every entry and return how many there were."""
    root = cache_root()
    paths = [] if root is None else _files(root)
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _files(root: Path) -> list[Path]:
    """Return every file of the cache; other processes make and delete some meanwhile."""
    return [
        Path(place, name)
        for kind in ENTRY_KINDS
        for place, _, names in os.walk(root / kind)
        for name in names
        if not os.path.islink(os.path.join(place, name))
    ]


def file_size(path: Path) -> int:
    """Return a file's bytes, 0 for one that is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
