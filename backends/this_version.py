"""Which version of this package runs, as digests of its sources: whatever is kept from one process to the next, and
depends on what the compiler makes, is tied to one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: Folders of the repository that no compilation depends on.
_APART = {"tests", "bench", "examples", "docs", "build", "dist"}


@cache
def compiler_digest(*folders: str) -> str:
    """Return a digest of this version of the compiler: its sources and declarations, in all folders, or in some."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for top in folders or ("",) for path in _sources(root / top)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
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
