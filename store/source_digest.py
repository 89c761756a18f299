"""Source digests of this package.

Entries of the store that depend on the compiler have one of them in their keys.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..ir import IMPORT_TIME

#: Folders of the repository that no compilation depends on.
_EXCLUDED_FOLDERS = {"tests", "bench", "examples", "docs", "build", "dist"}
#: Time at which this process began to import its sources; this file may be one of the last.
_START_TIME = IMPORT_TIME


@cache
def compiler_digest(*folders: str) -> str:
    """Return a digest of the compiler's sources and declarations.

    It covers all folders, or some. Where a source changed while this process ran, which may have read either version,
    the digest is unique to this process.
    """
    root, digest, now = Path(__file__).parents[1], hashlib.sha256(), time.time()
    paths = sorted(path for top in folders or ("",) for path in _sources(root / top))
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    if any(_START_TIME < path.stat().st_mtime <= now for path in paths):
        digest.update(f"{os.getpid()} {now}".encode())
    return digest.hexdigest()


def model_digest() -> str:
    """Return a digest of the sources that the cost model depends on."""
    return compiler_digest("ir", "passes")


def _sources(root: Path) -> Iterator[Path]:
    """Yield every source of the package below a folder; hidden folders are not the package's."""
    for path in root.iterdir():
        if path.is_dir() and path.name not in _EXCLUDED_FOLDERS and not path.name.startswith((".", "__")):
            yield from _sources(path)
        elif path.suffix in (".py", ".cuts", ".lark", ".toml") and path.name != "pyproject.toml":
            yield path
