"""Versions of installed packages."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
