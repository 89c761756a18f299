"""Write `docs/modules.md` from docstrings: `python docs/make_modules.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[1]
#: Folders of the repository that are not shipped.
NOT_SHIPPED = {"tests", "bench", "examples", "docs", "build", "dist"}
HEAD = """# Modules

Written by `docs/make_modules.py` from the first sentence of every docstring. [architecture.md](architecture.md) says
how the rooms belong together.
"""


def modules(root: Path = ROOT) -> list[Path]:
    """Return the shipped modules relative to the root, package by package."""
    paths = [path.relative_to(root) for path in root.rglob("*.py")]
    shipped = [p for p in paths if p.parts[0] not in NOT_SHIPPED and not p.parts[0].startswith(".")]
    return sorted(shipped, key=lambda p: (p.parent.parts, p.name != "__init__.py", p.name))


def purpose(module: Path) -> str:
    """Return the first sentence of a module's docstring, or nothing."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    words = " ".join(text.split("\n\n")[0].split())
    end = words.find(". ")
    return words if end < 0 else words[: end + 1]


def lines(root: Path = ROOT) -> Iterator[str]:
    """Yield the lines of the document, package by package."""
    yield HEAD
    for package, found in groupby(modules(root), key=lambda path: path.parent):
        yield f"## `{package.as_posix()}/`\n" if package.parts else "## The package itself\n"
        for module in found:
            face = module.name == "__init__.py" and package.parts
            text = purpose(root / module) if face else f"* `{module.name}`: {purpose(root / module)}"
            yield from wrap(text, 120, subsequent_indent="" if face else "  ", break_on_hyphens=False)
            yield from [""] * bool(face)
        yield ""


def document(root: Path = ROOT) -> str:
    """Return the whole document."""
    return "\n".join(lines(root))


if __name__ == "__main__":
    Path(__file__).with_name("modules.md").write_text(document(), encoding="utf-8")
