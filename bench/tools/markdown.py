"""Tables of results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; a missing value is an empty cell."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def digits(value: float | None, count: int = 3) -> str | None:
    """Return a figure in a few digits."""
    return None if value is None else f"{value:.{count}g}"


def exponent(value: float | None) -> str | None:
    """Return an error by its order of magnitude."""
    return None if value is None else f"{value:.0e}"
