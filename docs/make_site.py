"""Hooks of `mkdocs.yml`: generated pages, links out of `docs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cuts.docs.make_modules import document as modules
from cuts.ops import Registry
from cuts.ops.manual import manual

ROOT = Path(__file__).parents[1]
#: Documents that others link to and that are not written yet.
PENDING: set[str] = set()
#: Files outside of `docs` that are pages of the site.
OUTSIDE_PAGES = {"spec/README.md": "reference/language.md", "README.md": "index.md"}


def pending() -> set[str]:
    """Return the documents that do not exist yet."""
    return {name for name in PENDING if not (ROOT / "docs" / name).is_file()}


def on_config(config: Any) -> Any:
    """Leave documents that do not exist out of the navigation."""
    config["nav"] = [entry for entry in map(_existing, config["nav"]) if entry]
    return config


def _existing(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of the navigation without documents that do not exist."""
    ((title, inside),) = entry.items()
    if isinstance(inside, str):
        return {} if inside in pending() else entry
    return {title: [each for each in map(_existing, inside) if each]}


def on_files(files: Any, config: Any) -> Any:
    """Add generated pages and the language of declarations."""
    from mkdocs.structure.files import File

    pages = {
        "ops.md": manual(Registry.builtin()),
        "modules.md": modules(),
        "reference/language.md": (ROOT / "spec" / "README.md").read_text(encoding="utf-8"),
    }
    for name, text in pages.items():
        if (old := files.get_file_from_path(name)) is not None:
            files.remove(old)
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links out of `docs`, and remove those to missing documents."""
    up = "../" * page.file.src_uri.count("/")
    for path, name in OUTSIDE_PAGES.items():
        markdown = markdown.replace(f"]({up}../{path}", f"]({up}{name}")
    for name in pending():
        markdown = re.sub(rf"\[([^\]]*)\]\((?:\.\./)*{re.escape(name)}[^)]*\)", r"\1", markdown)
    return markdown
