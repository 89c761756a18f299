"""Packages whose names are imported at their first use.

A later process that finds its plan in the store needs few of the compiler's modules, whose import takes longer than
reading the plan. The `__init__.py` of a package with many modules therefore imports its names for type checkers only:

    if TYPE_CHECKING:
        from .tables import Database

    __getattr__ = lazy_exports(__name__)
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

#: Time at which this process began to import this package's modules.
IMPORT_TIME = time.time()


def lazy_exports(package: str) -> Callable[[str], object]:
    """Return a package's `__getattr__` that imports names at first use.

    They are those that its `__init__.py` imports under `if TYPE_CHECKING`.
    """
    homes = typed_imports(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value: object = getattr(import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def typed_imports(source: str) -> dict[str, str]:
    """Return names imported for type checkers, with their relative modules."""
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    found = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
    return {alias.name: f".{node.module}" for node in found for alias in node.names}
