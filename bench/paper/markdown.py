"""Markdown tables and stamped rows of the documents' tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cuts.bench.tools.records import Row

from .registry import TableRequest, row_of


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; a missing value is an empty cell."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def stamp_rows(number: str, request: TableRequest, found: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[Row]:
    """Yield the rows that a request names."""
    for name, fields in found:
        if not request.names or name in request.names:
            yield row_of(number, name, "", fields, request.commit)
