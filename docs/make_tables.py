"""Fills the tables of documents from their commands: `python docs/make_tables.py`.

A document has a table between two comments, `<!-- table: DOCUMENT NUMBER -->` and `<!-- end of table -->`. It is the
one that `python -m cuts.bench paper DOCUMENT --table NUMBER --print` prints; rows without times are computed anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from cuts.bench.paper import PaperTable, TableRequest, read_table
from cuts.bench.paper.registry import find_table

DOCS = Path(__file__).parent
#: Tables whose rows take minutes to compute: those of the file count.
SLOW_TABLES = {("latency", "own"), ("latency", "figure-6")}
TABLE = re.compile(r"<!-- table: (\S+) (\S+) -->\n.*?<!-- end of table -->", re.DOTALL)


def table_text(document: str, table: PaperTable) -> str:
    """Return a table as Markdown, computed where it needs no device."""
    if table.make is None or (document, table.number) in SLOW_TABLES:
        return table.text(read_table(document, table))
    return table.text(list(table.make(TableRequest(tuple(table.names()), commit="current"))))


def fill_tables(text: str) -> str:
    """Return a document with its tables."""

    def fill(found: re.Match[str]) -> str:
        document, number = found.groups()
        made = table_text(document, find_table(document, number))
        return f"<!-- table: {document} {number} -->\n\n{made}\n\n<!-- end of table -->"

    return TABLE.sub(fill, text)


def documents() -> list[Path]:
    """Return the documents that have tables."""
    paths = [DOCS.parent / "README.md", *sorted(DOCS.glob("**/*.md"))]
    return [path for path in paths if TABLE.search(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    for path in documents():
        path.write_text(fill_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
