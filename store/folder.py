"""Folder of the store: its place, its owner, its faults.

A writer of a store of code can run code in the process that reads it. So the folder is created with mode 0700, and a
folder that others own or may write is refused. A folder that cannot be created, a read-only one and a full disk degrade
to no cache, with one warning. `CUTS_CACHE_DIR` moves the folder, `CUTS_NO_CACHE=1` switches the store off.
"""

from __future__ import annotations

import os
import stat
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs

from ..ir import BackendError, CutsWarning

#: Folder of damaged entries.
DAMAGED_FOLDER = "damaged"


def cache_root() -> Path | None:
    """Return the created and checked cache folder.

    None where caching is off or the folder cannot be created.
    """
    if os.environ.get("CUTS_NO_CACHE", "0") not in ("", "0"):
        return None
    return create_private_folder(Path(os.environ.get("CUTS_CACHE_DIR") or platformdirs.user_cache_dir("cuts")))


def create_private_folder(folder: Path) -> Path | None:
    """Create a folder that only its owner can write.

    None where that fails.

    Raises `BackendError` where the folder belongs to someone else or can be written by others.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        warn_unusable(folder, str(error.strerror))
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022):
        raise BackendError(
            f"cache folder {folder} can be written by others, so it could hold foreign code",
            hint="expected a folder of your own with mode 0700: chmod 700 it, "
            "or set CUTS_CACHE_DIR, or CUTS_NO_CACHE=1",
        )
    return folder


@cache
def warn_unusable(folder: Path, reason: str) -> None:
    """Warn once that results are not stored."""
    warnings.warn(
        f"cannot use cache folder {folder}: {reason}; results are not stored (set CUTS_CACHE_DIR, or CUTS_NO_CACHE=1)",
        CutsWarning,
        stacklevel=2,
    )


def set_aside(path: Path, root: Path, reason: str) -> None:
    """Move a damaged file to the folder of damaged ones, and warn."""
    aside = root / DAMAGED_FOLDER / f"{path.name}-{time.time_ns()}"
    with suppress(OSError):  # another process was faster, or the disk is read-only
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        path.rename(aside)
        warnings.warn(f"{path} is damaged ({reason}); it was set aside as {aside}", CutsWarning, stacklevel=2)
