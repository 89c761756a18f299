"""Which version of this package runs, as digests of its sources: whatever is kept from one process to the next, and
depends on what the compiler makes, is tied to one of them.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: Folders of the repository that no compilation depends on.
_APART = {"tests", "bench", "examples", "docs", "build", "dist"}
#: When this process began to import what it runs.
_BEGUN = time.time()


@cache
def compiler_digest(*folders: str) -> str:
    """Return a digest of this version of the compiler: its sources and declarations, in all folders, or in some. Where
    some of them changed while this process ran, which may have read either, the version is that of this process alone.
    """
    root, digest, now = Path(__file__).parents[1], hashlib.sha256(), time.time()
    paths = sorted(path for top in folders or ("",) for path in _sources(root / top))
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    if any(_BEGUN < path.stat().st_mtime <= now for path in paths):
        digest.update(f"{os.getpid()} {now}".encode())
    return digest.hexdigest()


def model_digest() -> str:
    """Return a digest of what decides about what the model expects of a kernel."""
    return compiler_digest("ir", "passes")


def _sources(root: Path) -> Iterator[Path]:
    """Yield every source of the package below a folder; hidden folders are not the package's."""
    for path in root.iterdir():
        if path.is_dir() and path.name not in _APART and not path.name.startswith((".", "__")):
            yield from _sources(path)
        elif path.suffix in (".py", ".cuts", ".lark", ".toml") and path.name != "pyproject.toml":
            yield path
